from pathlib import Path

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.cost.devices import find_device
from headway.cost.efficiency import find_efficiency
from headway.cost.fitted import Coefficients, CostFile, Ranges, Stamp, format_cost_file
from headway.cost.llm import StepCost, StepShape, pairs
from headway.sim.catalogue import Additions, Catalogue
from headway.sim.linear import LinearParams, LinearStep
from headway.sim.pools import EngineSize, Hardware, PoolParams
from headway.sim.replicas import believed, llm_replica

CATALOGUE = Catalogue(Additions())
H100 = find_device("H100-SXM").memory_bytes


def test_the_kv_that_fits_beside_the_weights_is_what_a_replica_holds() -> None:
    limits = llm_replica(PoolParams(), CATALOGUE).limits
    assert limits.kv_bytes_per_block == 16 * 131_072  # REFERENCE 2, Llama-3.1-8B
    held = limits.kv_blocks * limits.kv_bytes_per_block
    assert 0.6 * H100 < held < 0.9 * H100 - 2 * 8.03e9
    assert limits.max_model_len == 131_072


def test_a_model_that_leaves_no_room_is_refused_with_what_would_help() -> None:
    pool = PoolParams(name="big", model="llama-3.1-70b")
    with pytest.raises(ConfigError, match=r"pool big: .* no room for KV on 1 x H100-SXM .*hardware.tp"):
        llm_replica(pool, CATALOGUE)
    assert llm_replica(PoolParams(model="llama-3.1-70b", hardware=Hardware(tp=4)), CATALOGUE).limits.kv_blocks > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [({"model": "lama-3.1-8b"}, "did you mean 'llama-3.1-8b'"), ({"hardware": Hardware(device="H10-SXM")}, "H100-SXM")],
)
def test_the_nearest_name_of_a_catalogue_is_told(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        llm_replica(msgspec.structs.replace(PoolParams(), **change), CATALOGUE)


def test_a_belief_in_a_linear_model_is_that_model() -> None:
    belief = believed(LinearStep(LinearParams(step_us=1000, token_us=10, kv_ns=2)), mode="linear")
    assert (belief.base_ns, belief.row_ns, belief.kv_ns) == pytest.approx((1e6, 1e4, 2))
    assert (belief.token_ns, belief.pair_ns) == pytest.approx((1e4, 0), abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 500, 0), (32, 32 * 2000, 0), (0, 0, 2048), (64, 64_000, 512)])
def test_a_belief_begins_near_the_roofline(shape: tuple[int, int, int]) -> None:  # SPEC J1
    decodes, kv_tokens, prefill = shape
    replica = llm_replica(PoolParams(), CATALOGUE)
    model = replica.step.step_ns(StepShape(decodes, kv_tokens, prefill, pairs(0, prefill), 1, prefill))
    assert StepCost(replica.belief).step_ns(decodes, kv_tokens, prefill, pairs(0, prefill)) == pytest.approx(
        model, rel=0.25
    )


def test_a_measured_pool_is_corrected_by_what_its_engine_was_measured_at() -> None:  # SPEC J3
    pool = PoolParams(model="llama-3.1-70b", dtype="fp8", hardware=Hardware(tp=2), cost="measured")
    plain = llm_replica(msgspec.structs.replace(pool, cost="roofline"), CATALOGUE)
    found, shape = llm_replica(pool, CATALOGUE), StepShape(64, 64 * 1500)
    measured_ms = (found.step.step_ns(shape) + found.step.host_ns(64)) / 1e6
    assert 22 < measured_ms < 29  # 28.8 with prompts between (aiconfigurator-core 0.12.0, 1024 in, 1024 out)
    assert found.step.step_ns(shape) != plain.step.step_ns(shape)
    assert found.limits == plain.limits


def test_a_cost_file_says_steps_host_and_room(tmp_path: Path) -> None:  # SPEC J3
    file = CostFile(
        stamp=Stamp(engine="vllm", engine_version="0.19", device="H100", model="llama-3.1-8b"),
        source="test",
        date="2026-11-29",
        coefficients=Coefficients(base_ns=5e6, row_ns=1e4, token_ns=4e4, host_base_ns=2e5),
        ranges=Ranges(256, 10**6, 8192, 10**8),
        samples=100,
        held_out={},
        kv_tokens=32_000,
    )
    path = tmp_path / "fit.json"
    path.write_bytes(format_cost_file(file))
    replica = llm_replica(PoolParams(cost=str(path)), CATALOGUE)
    assert replica.limits.kv_blocks == 2000
    assert replica.step.step_ns(StepShape(decodes=10)) == 5e6 + 1e5
    assert replica.step.host_ns(3) == 2e5
    assert replica.belief.base_ns == 5e6
    with pytest.raises(ConfigError, match=r"cost = 'nowhere.json': No such file"):
        llm_replica(PoolParams(cost="nowhere.json"), CATALOGUE)
    with pytest.raises(ConfigError, match=r"was fitted to llama-3.1-8b on H100, one device; .* another hardware.tp: "):
        llm_replica(PoolParams(cost=str(path), hardware=Hardware(tp=2)), CATALOGUE)
    with pytest.raises(ConfigError, match=r"the pool has another model, hardware.device: "):
        llm_replica(PoolParams(cost=str(path), model="qwen3-32b", hardware=Hardware(device="H200")), CATALOGUE)


def test_what_is_given_wins_over_what_would_fit() -> None:
    pool = PoolParams(engine=EngineSize(kv_blocks=77, block_size=32, max_model_len=500))
    limits = llm_replica(pool, CATALOGUE).limits
    assert (limits.kv_blocks, limits.block_size, limits.max_model_len) == (77, 32, 500)


def step_ms(shape: StepShape, model: str = "llama-3.1-70b", dtype: str = "bfloat16", **hardware: object) -> float:
    pool = PoolParams(model=model, dtype=dtype, hardware=msgspec.convert(hardware, Hardware))
    return llm_replica(pool, CATALOGUE).step.step_ns(shape) / 1e6


def test_a_drained_pipeline_pays_its_bubble() -> None:
    """(m + p - 1) stages against m, for four microbatches on four stages; what a step and its rows take is in both."""
    shape, reach = StepShape(256, 256_000), find_efficiency("vllm")
    both = (reach.overhead_ns + 256 * reach.row_ns) / 1e6
    drained, filled = (step_ms(shape, tp=2, pp=4, pipeline=pipeline) for pipeline in ("drained", "filled"))
    assert (drained - both) / (filled - both) == pytest.approx(7 / 4)


def test_two_batch_overlap_pays_with_many_tokens_and_costs_with_few() -> None:
    for batch, faster in ((32, False), (256, True)):
        shape = StepShape(72 * batch, 72 * batch * 2500)
        plain, halves = (
            step_ms(shape, "deepseek-v3", "fp8", dp=72, ep=72, overlap=overlap) for overlap in ("none", "two_batch")
        )
        assert (halves < plain) is faster


def test_a_slower_network_is_felt_between_hosts_only() -> None:
    shape = StepShape(64, 64_000)
    assert step_ms(shape, tp=16, network="eth-25") > 2 * step_ms(shape, tp=16)
    assert step_ms(shape, tp=8, network="eth-25") == step_ms(shape, tp=8)


def test_the_layout_and_the_type_of_the_cache_reach_the_model() -> None:
    whole = llm_replica(PoolParams(), CATALOGUE)
    narrow = llm_replica(PoolParams(kv_dtype="fp8"), CATALOGUE)
    assert narrow.limits.kv_bytes_per_block * 2 == whole.limits.kv_bytes_per_block
    assert narrow.limits.kv_blocks == pytest.approx(2 * whole.limits.kv_blocks, rel=0.01)
    two = llm_replica(PoolParams(hardware=Hardware(tp=2)), CATALOGUE)
    assert two.step.step_ns(StepShape(1, 500)) < 0.8 * whole.step.step_ns(StepShape(1, 500))
    assert two.price_per_hour == 2 * whole.price_per_hour
