import pytest

from headway.core.errors import ConfigError
from headway.cost.deployment import Deployment
from headway.cost.devices import find_device
from headway.cost.links import find_link
from headway.cost.llm import StepShape, pairs
from headway.cost.models_catalogue import find_model
from headway.cost.roofline import RooflineModel
from headway.cost.transfer import (
    MigrationParams,
    Path,
    bandwidth_min,
    crossover_tokens,
    embedding_bytes,
    kv_bytes,
    kv_path,
    latent_bytes,
    migration_times,
    path_over,
    transfer_gain_ns,
)

LLAMA = find_model("llama-7b")
A10 = Path(2.6e9, 15e6)  # what Llumnix's blocking copies imply: 2.6 GB/s, and 15 ms before the first byte


def prefill_ms(model: str, device: str, tokens: int, dtype: str = "bfloat16") -> float:
    roof = RooflineModel(Deployment(model=find_model(model), device=find_device(device), dtype=dtype))
    return roof.step_ns(StepShape(0, 0, tokens, pairs(0, tokens), 1, tokens)) / 1e6


def test_a_transfer_takes_a_fixed_part_and_its_bytes() -> None:
    assert Path(1e9, 500.0).ns(1e6) == 1_000_500
    assert Path(1e9, 500.0).ns(0) == 0


def test_sizes_are_those_of_the_seed() -> None:
    """Seed 003, section 5: FLUX at 1024^2 has a latent of 0.52 MB and an embedding of 4 MiB (512 tokens of T5)."""
    assert latent_bytes(1024, 1024) == pytest.approx(0.52e6, rel=0.01)
    assert embedding_bytes(512, 4096) == 4 << 20


def test_a_long_prompt_moves_at_the_rate_that_mooncake_measured() -> None:
    """40 GB over 4 x 200 Gb/s: 87 GB/s, and that is the KV of 128k tokens of Llama-3-70B (within 8 %)."""
    llama = find_model("llama-3.1-70b")
    assert kv_bytes(llama, 131_072) == pytest.approx(40e9, rel=0.08)
    assert path_over(find_link("ib-hdr"), 4).ns(40e9) / 1e9 == pytest.approx(40 / 87, rel=0.01)


def test_ranks_send_what_only_they_hold() -> None:
    link = find_link("ib-ndr")
    assert kv_path(find_model("llama-3.1-70b"), link, 16).bytes_per_s == 8 * link.bytes_per_s
    assert kv_path(find_model("deepseek-v3"), link, 16).bytes_per_s == link.bytes_per_s


@pytest.mark.parametrize(("devices", "peak", "gb_per_s"), [(8, 312e12, 6), (8, 989e12, 19)])
def test_mooncakes_inequality_gives_its_bandwidths(devices: int, peak: float, gb_per_s: float) -> None:
    """FAST'25, equation 2 for Llama-3-70B and 8192 tokens: 6 GB/s on 8 A800, 19 on 8 H800, as printed (5 %)."""
    assert bandwidth_min(find_model("llama-3.1-70b"), 8192, devices * peak) == pytest.approx(gb_per_s * 1e9, rel=0.05)


def test_fetching_pays_while_the_way_is_free() -> None:
    path = Path(10e9, 1e6)
    assert transfer_gain_ns(path, 1e9, local_prefill_ns=500e6, best_prefill_ns=100e6) == pytest.approx(299e6)
    assert transfer_gain_ns(path, 1e9, 500e6, 100e6, queue_ns=300e6) < 0


# llm-d P2P, gpt-oss-120b on H200 (REFERENCE 4): tokens, ms to compute again, ms to pull.
LLM_D = [(2048, 78, 35), (8192, 250, 57), (16_384, 510, 86), (32_768, 1173, 165), (49_152, 1988, 235)]
PULL = Path(17.5e9, 26e6)  # their fit: 26 ms + 4.2 us per token of 73,728 bytes


@pytest.mark.parametrize(("tokens", "recompute_ms", "pull_ms"), LLM_D)
def test_pull_and_recompute_take_what_llm_d_measured(tokens: int, recompute_ms: float, pull_ms: float) -> None:
    """Pulls within 13 %. Recompute within 25 %, with 40 ms in front of the engine: as much as TTFT exceeds prefill in
    the silicon sample at low load."""
    model = find_model("gpt-oss-120b")
    assert PULL.ns(kv_bytes(model, tokens)) / 1e6 == pytest.approx(pull_ms, rel=0.13)
    assert prefill_ms("gpt-oss-120b", "H200", tokens) + 40 == pytest.approx(recompute_ms, rel=0.25)


def test_the_crossover_lies_below_the_shortest_length_that_llm_d_shows() -> None:
    model = find_model("gpt-oss-120b")
    cross = crossover_tokens(PULL, model.kv_bytes_per_token(), lambda n: prefill_ms("gpt-oss-120b", "H200", n) * 1e6)
    assert cross is not None
    assert 256 < cross < 2048
    before, after = (
        (prefill_ms("gpt-oss-120b", "H200", n), PULL.ns(kv_bytes(model, n)) / 1e6) for n in (cross - 1, cross)
    )
    assert before[0] <= before[1]
    assert after[0] > after[1]


def test_a_path_that_is_too_slow_has_no_crossover() -> None:
    slow = Path(1e6)
    assert crossover_tokens(slow, 131_072, lambda n: n * 1e5, most=4096) is None


# Llumnix fig. 10, LLaMA-7B on A10 (REFERENCE 4): tokens, ms of downtime, of a blocking copy, of computing again.
LLUMNIX = [
    (256, 11, 67, 57),
    (512, 11, 128, 109),
    (1024, 13, 226, 219),
    (2048, 15, 451, 434),
    (4096, 21, 909, 938),
    (8192, 26, 1682, 1994),
]


@pytest.mark.parametrize(("tokens", "downtime_ms", "copy_ms", "recompute_ms"), LLUMNIX)
def test_migration_takes_what_llumnix_measured(
    tokens: int, downtime_ms: float, copy_ms: float, recompute_ms: float
) -> None:
    """Blocking copy within 10 % (one rate and one fixed part for six lengths), recompute within 25 %."""
    assert A10.ns(kv_bytes(LLAMA, tokens)) / 1e6 == pytest.approx(copy_ms, rel=0.1)
    assert prefill_ms("llama-7b", "A10", tokens, "float16") == pytest.approx(recompute_ms, rel=0.25)
    # The staged copy streams: its connection is open, so no fixed part is paid per stage. One sequence decodes a
    # token every 45 ms. Downtime within 35 %: theirs grows with length a little, ours only by whole blocks.
    times = migration_times(LLAMA.kv_bytes_per_token(), tokens, 1 / 0.045, Path(2.6e9), MigrationParams())
    assert times.downtime_ns / 1e6 == pytest.approx(downtime_ms, rel=0.35)


def test_downtime_is_flat_in_length() -> None:
    """Llumnix: 32 times the context, 2.4 times the downtime; a blocking copy grows 25 times."""
    short, long = (
        migration_times(LLAMA.kv_bytes_per_token(), tokens, 1 / 0.045, Path(2.6e9), MigrationParams()).downtime_ns
        for tokens in (256, 8192)
    )
    assert short <= long < 2.4 * short


def test_stages_shrink_by_the_ratio_of_growth_to_rate() -> None:
    """V_k+1 = V_k kappa r / B until 16 blocks or fewer are left, total V_0 / (B (1 - rho)) when the rest is tiny."""
    params = MigrationParams(stages_max=10, last_blocks=1, block_tokens=1, control_ns=0.0)
    kappa, rate, n = 1e6, 500.0, 100_000
    times = migration_times(kappa, n, rate, Path(1e9), params)
    assert times.stages == 10
    assert times.total_ns == pytest.approx(n * kappa / (1e9 * (1 - 0.5)) * 1e9, rel=0.002)
    assert migration_times(kappa, n, rate, Path(1e9), MigrationParams()).stages == 3


def test_a_sequence_that_grows_faster_than_it_is_copied_is_not_migrated() -> None:
    with pytest.raises(ConfigError, match=r"a sequence grows 2\.00 times as fast as its path of 1e\+09 B/s"):
        migration_times(1e6, 1000, 2000.0, Path(1e9), MigrationParams())
