import pytest

from headway.core.errors import ConfigError
from headway.cost.deployment import Deployment, Layout, check, kv_tokens_fit, weight_bytes_of_device
from headway.cost.devices import find_device
from headway.cost.models_catalogue import find_model

ONE = Layout()


def deployment(model: str, device: str, layout: Layout = ONE, dtype: str = "bfloat16") -> Deployment:
    return Deployment(model=find_model(model), device=find_device(device), layout=layout, dtype=dtype)


@pytest.mark.parametrize(("tp", "tokens"), [(1, 66_144), (2, 163_008)])
def test_kv_that_fits_is_what_distserve_measured(tp: int, tokens: int) -> None:
    """OPT-13B on A100-80G, DistServe's profile (field/papers 1.2), within 1 %. Its engine filled 93 % of the device
    after its peak; that share is read off the first row, the second follows. SPEC J3."""
    fit = kv_tokens_fit(deployment("opt-13b", "A100-80G", Layout(tp=tp), "float16"), 0.93, runtime_bytes=0.0)
    assert fit == pytest.approx(tokens, rel=0.01)


def test_kv_that_fits_is_what_llumnix_had() -> None:
    """LLaMA-7B on A10 with vLLM's default share of 0.9: 12,800 to 13,600 tokens (field/papers 5), within 5 %."""
    assert kv_tokens_fit(deployment("llama-7b", "A10", dtype="float16"), 0.9) == pytest.approx(13_200, rel=0.05)


def test_a_model_that_fills_the_device_leaves_no_kv() -> None:
    # aiconfigurator#1396: a memory share of 1.0 admitted a batch that the engine could not hold
    assert kv_tokens_fit(deployment("llama-3.1-70b", "H100-SXM"), 1.0) == 0
    assert kv_tokens_fit(deployment("llama-3.1-70b", "H200"), 0.9) == 0
    assert kv_tokens_fit(deployment("llama-3.1-70b", "H200", dtype="fp8"), 0.9) > 100_000


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory_share = 1.1 is not in \(0, 1\]"):
        kv_tokens_fit(deployment("llama-7b", "A10"), 1.1)


def test_pipeline_stages_hold_their_layers_only() -> None:
    whole = weight_bytes_of_device(deployment("llama-3.1-70b", "H100-SXM", Layout(tp=4)))
    staged = weight_bytes_of_device(deployment("llama-3.1-70b", "H100-SXM", Layout(tp=4, pp=2)))
    assert staged == pytest.approx(whole / 2, rel=0.02)


def test_wide_tp_does_not_multiply_a_latent_cache_but_attention_data_parallelism_does() -> None:
    """REFERENCE 2: MLA is replicated under TP, so use DP attention. DeepSeek-V3 on 16 H200."""
    tp = kv_tokens_fit(deployment("deepseek-v3", "H200", Layout(tp=16, ep=16), "fp8"))
    dp = kv_tokens_fit(deployment("deepseek-v3", "H200", Layout(dp=16, ep=16), "fp8"))
    assert dp > 10 * tp > 0


def test_context_parallel_ranks_share_the_cache() -> None:
    one = kv_tokens_fit(deployment("llama-3.1-8b", "H100-SXM"))
    assert kv_tokens_fit(deployment("llama-3.1-8b", "H100-SXM", Layout(cp=4))) == 4 * one


@pytest.mark.parametrize(
    ("model", "layout", "message"),
    [
        ("llama-3.1-8b", Layout(tp=3), "tp = 3 does not divide the 32 heads of llama-3.1-8b"),
        ("llama-3.1-8b", Layout(pp=33), "pp = 33 exceeds the 32 layers"),
        ("llama-3.1-8b", Layout(dp=2), "ep = 1, dp = 2: llama-3.1-8b is dense"),
        ("mixtral-8x7b", Layout(tp=4, ep=3), r"ep = 3 does not divide tp \* dp = 4"),
        ("mixtral-8x7b", Layout(tp=16, ep=16), "ep = 16 exceeds the 8 experts"),
    ],
)
def test_a_layout_that_cannot_work_is_refused_by_its_keys(model: str, layout: Layout, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(deployment(model, "H100-SXM", layout))
