import pytest

from headway.cost.models_catalogue import MODELS, find_model


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-8b", 131_072),
        ("qwen3-32b", 262_144),
        ("llama-7b", 524_288),
        ("opt-13b", 819_200),
        ("opt-66b", 2_359_296),
        ("deepseek-v3", 70_272),
    ],
)
def test_kv_bytes_per_token_are_the_published_ones(name: str, kv_bytes: int) -> None:
    """REFERENCE 2. SPEC J3."""
    assert find_model(name).kv_bytes_per_token() == kv_bytes


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("llama-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_248_023_552),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)
def test_parameters_are_those_that_the_hub_counts_in_the_weights(name: str, parameters: int) -> None:
    assert find_model(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("opt-13b", 13e9, 13e9),
        ("opt-66b", 66e9, 66e9),
        ("mixtral-8x7b", 46.7e9, 12.9e9),
        ("qwen3-30b-a3b", 30.5e9, 3.3e9),
        ("qwen3-235b-a22b", 235e9, 22e9),
        ("minimax-m2", 230e9, 10e9),
        ("deepseek-v3", 671e9, 37e9),
        ("deepseek-v2-lite", 15.7e9, 2.4e9),
        ("kimi-k2", 1.04e12, 32e9),
    ],
)
def test_total_and_active_parameters_are_those_of_the_model_card(name: str, total: float, active: float) -> None:
    """Cards round, and differ in whether the embedding counts: 2 % of the total, 12 % of the active ones."""
    model = find_model(name)
    assert model.parameters == pytest.approx(total, rel=0.02)
    assert model.parameters_active == pytest.approx(active, rel=0.12)


@pytest.mark.parametrize(
    ("name", "total", "active"), [("gpt-oss-120b", 116.83e9, 5.13e9), ("gpt-oss-20b", 20.91e9, 3.61e9)]
)
def test_gpt_oss_counts_as_its_card_which_leaves_the_embedding_out(name: str, total: float, active: float) -> None:
    model = find_model(name)
    assert model.parameters == pytest.approx(total, rel=0.001)
    assert model.parameters_active - model.head_parameters == pytest.approx(active, rel=0.002)


def test_a_checkpoint_with_experts_in_four_bits_has_the_published_size() -> None:
    """gpt-oss card, table 1: checkpoints of 60.8 GiB and 12.8 GiB, here within 1 %, whatever the rest runs in."""
    assert find_model("gpt-oss-120b").weight_bytes("bfloat16") / 2**30 == pytest.approx(60.8, rel=0.01)
    assert find_model("gpt-oss-20b").weight_bytes("bfloat16") / 2**30 == pytest.approx(12.8, rel=0.01)


def test_quantised_weights_keep_embeddings_wide() -> None:
    model = find_model("llama-3.1-8b")
    wide = 2 * (2 * model.head_parameters + model.small_parameters)
    assert model.weight_bytes("fp8") == model.linear_parameters + wide
    assert model.weight_bytes("bfloat16") == 2 * model.parameters


def test_kv_heads_are_split_over_ranks_until_each_has_one() -> None:
    model = find_model("llama-3.1-70b")
    assert [model.kv_bytes_per_token_of_rank(tp) for tp in (1, 2, 8, 16)] == [327_680, 163_840, 40_960, 40_960]


def test_a_latent_cache_is_copied_to_every_rank() -> None:
    model = find_model("deepseek-v3")
    assert model.kv_bytes_per_token_of_rank(8) == model.kv_bytes_per_token() == 70_272


def test_every_model_names_its_source_and_date() -> None:
    assert [model.name for model in MODELS.values() if "/" not in model.source or len(model.date) != 7] == []


def test_a_model_is_found_by_its_hub_id_too() -> None:
    assert find_model("meta-llama/Llama-3.1-8B-Instruct") is MODELS["llama-3.1-8b"]
