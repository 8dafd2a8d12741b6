import msgspec
import pytest

from headway.cost.coldstart import ColdStartParams, cold_start
from headway.cost.models_catalogue import find_model


def seconds(ns: int) -> float:
    return ns / 1e9


@pytest.mark.parametrize(("weights", "pull_s", "load_s"), [(30e9, 30, 10), (50e9, 50, 16.7)])
def test_phases_are_those_of_the_seed(weights: float, pull_s: float, load_s: float) -> None:
    """Seed 003, section 9: 30 to 50 GB, 1 GB/s from the object store, 3 GB/s from NVMe, compile 1 to 3 minutes."""
    # SPEC A13
    start = cold_start(weights, ColdStartParams())
    assert seconds(start.pull_ns) == pytest.approx(pull_s)
    assert seconds(start.load_ns) == pytest.approx(load_s, rel=0.01)
    assert 60 <= seconds(start.compile_ns) <= 180


def test_caches_shorten_their_phases_only() -> None:
    # SPEC A13
    params = ColdStartParams()
    cold = cold_start(40e9, params)
    warm = cold_start(40e9, msgspec.structs.replace(params, has_weights=True, has_compiled=True))
    assert warm.pull_ns == 0
    assert seconds(warm.compile_ns) == params.compile_cached_s
    assert (warm.start_ns, warm.load_ns, warm.capture_ns) == (cold.start_ns, cold.load_ns, cold.capture_ns)


def test_a_compile_cache_costs_an_eager_engine_nothing() -> None:
    assert cold_start(1e9, ColdStartParams(compile_s=0.0, has_compiled=True)).compile_ns == 0


def test_many_devices_load_no_faster_than_their_disk() -> None:
    params = ColdStartParams()
    assert cold_start(140e9, params, devices=8).load_ns == cold_start(140e9, params, devices=64).load_ns
    assert cold_start(140e9, params, devices=8, hosts=2).load_ns == pytest.approx(
        cold_start(140e9, params, devices=8).load_ns / 2
    )
    slow = msgspec.structs.replace(params, device_bytes_per_s=0.2e9)
    assert seconds(cold_start(140e9, slow, devices=8).load_ns) == pytest.approx(140 / 8 / 0.2)


def test_the_default_model_serves_within_a_minute() -> None:
    # SPEC A13
    eager = ColdStartParams(compile_s=0.0, captures=0)
    weights = find_model("smollm2-135m").weight_bytes("bfloat16")
    assert seconds(cold_start(weights, eager).total_ns) < 60


def test_the_total_is_the_sum_of_the_phases() -> None:
    start = cold_start(40e9, ColdStartParams())
    assert start.total_ns == start.start_ns + start.pull_ns + start.load_ns + start.compile_ns + start.capture_ns
