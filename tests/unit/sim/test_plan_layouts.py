import msgspec
from tests.unit.bench.plans import catalogued, load

from headway.sim.plan_layouts import Space
from headway.sim.plan_load import load_of
from headway.sim.plan_params import LayoutCost, PlanParams
from headway.sim.pools import EngineSize
from headway.sim.scenario import Scenario


def space(scenario: Scenario) -> Space:
    assert scenario.plan is not None
    return Space(scenario, scenario.plan, load_of(scenario), scenario.pools)


def reasons(scenario: Scenario) -> dict[str, str]:
    found = space(scenario)
    found.layouts()
    return {one.name: one.reason for one in found.refused}


def test_weights_that_do_not_fit_are_refused_by_name() -> None:
    found = reasons(catalogued(PlanParams(tp=(1, 2, 4)), model="llama-3.1-70b", rate=1.0))
    assert "weights do not fit: 131.4 GiB on a device" in found["A100-80G TP1"]
    assert "A100-80G TP4" not in found


def test_a_request_that_fits_nowhere_is_refused() -> None:
    """1 in 10 requests is longer than all the KV there is."""
    # aiconfigurator#1396: memory that cannot hold the batch must not be planned with
    base = catalogued(PlanParams(tp=(1,)))
    pool = msgspec.structs.replace(base.pools[0], engine=EngineSize(kv_blocks=20))
    found = reasons(msgspec.structs.replace(base, pools=(pool,), workload=(load(prompt=2000.0),)))
    assert "not one request's KV fits: room for 320 tokens" in found["A100-80G TP1"]


def test_a_memory_share_of_one_still_leaves_room_for_activations() -> None:
    # aiconfigurator#1396: memory fraction 1.0 admitted a batch that the engine cannot hold
    base = catalogued(PlanParams(tp=(1,)), model="qwen3-32b", rate=1.0)
    pool = msgspec.structs.replace(
        base.pools[0], hardware=msgspec.structs.replace(base.pools[0].hardware, device="A100-40G")
    )
    full = msgspec.structs.replace(pool, engine=EngineSize(memory_share=1.0))
    assert "do not fit" in reasons(msgspec.structs.replace(base, pools=(full,)))["A100-40G TP1"]


def test_a_layout_that_no_model_can_have_is_refused_with_the_reason() -> None:
    found = reasons(catalogued(PlanParams(tp=(1, 3))))
    assert "does not divide the 32 heads" in found["A100-80G TP3"]
    found = reasons(catalogued(PlanParams(tp=(1,), ep=(1, 2))))
    assert "dense" in found["A100-80G TP1 EP2"]


def test_one_replica_larger_than_the_budget_is_refused() -> None:
    assert "devices_max = 4" in reasons(catalogued(PlanParams(tp=(8,), devices_max=4)))["A100-80G TP8"]


def test_prefill_and_decode_are_searched_apart() -> None:
    """Seed 000 3.6: no common TP forced."""
    found = space(catalogued(PlanParams(tp=(1, 2), chunk=(256, 512), modes=("pd",)))).layouts()
    assert len(found) == 2 * 2 * 2  # TP of P, chunk of P, TP of D
    assert {(one.parts[0].pool.hardware.tp, one.parts[1].pool.hardware.tp) for one in found} == {
        (1, 1), (1, 2), (2, 1), (2, 2),
    }  # fmt: skip
    assert {one.parts[0].pool.role for one in found} == {"prefill"}


def test_a_fit_of_one_layout_is_not_used_for_another() -> None:
    base = catalogued(PlanParams(tp=(1, 2)), model="opt-13b")
    pool = msgspec.structs.replace(base.pools[0], dtype="float16", cost="published:distserve-opt-13b-a100-tp1")
    one = msgspec.structs.replace(base, pools=(pool,))
    assert "measured on another layout" in reasons(one)["A100-80G TP2"]
    costs = (LayoutCost(tp=2, cost="published:distserve-opt-13b-a100-tp2"),)
    two = msgspec.structs.replace(one, plan=PlanParams(tp=(1, 2), modes=("pd",), costs=costs))
    names = {layout.name for layout in space(two).layouts()}
    assert "A100-80G P TP2 + D TP1" in names


def test_the_price_of_the_file_wins() -> None:
    plan = PlanParams(tp=(2,), prices={"A100-80G": 3.0})
    (layout,) = space(catalogued(plan)).layouts()
    assert layout.usd_per_h((2,)) == 2 * 2 * 3.0


def least_devices(scenario: Scenario) -> dict[str, int]:
    return {layout.name.split(" ", 1)[1]: layout.devices(layout.least) for layout in space(scenario).layouts()}


def test_wide_tensor_parallelism_needs_more_devices_at_a_small_decode_batch() -> None:
    """Every layer pays the fixed time of its collectives, however little there is to reduce."""  # SPEC D5
    found = least_devices(catalogued(PlanParams(tp=(1, 2, 4, 8), devices_max=512), rate=200.0, count=200))
    assert found["TP1"] < found["TP2"] < found["TP4"] < found["TP8"]


def test_tensor_parallelism_across_hosts_loses_to_stages_between_them() -> None:
    """405 billion parameters on 16 devices: one group over two hosts against two stages of one host each. SPEC D5"""
    plan = PlanParams(tp=(8, 16), pp=(1, 2), devices_max=512)
    base = catalogued(plan, model="llama-3.1-405b", rate=5.0, count=200)
    targets = msgspec.structs.replace(base.targets, ttft_ms=2000.0, tpot_ms=80.0)
    found = least_devices(msgspec.structs.replace(base, targets=targets))
    assert found["TP8 PP2"] * 2 < found["TP16"]
