import msgspec

from headway.bench.run_config import changed
from headway.bench.scenarios import read_scenario


def test_only_what_is_not_the_default_is_told_with_the_default() -> None:
    scenario = read_scenario(
        None, {"front.router.type": "round_robin", "pools.replicas": 5, "workload.count": 7, "targets.ttft_ms": 500.0}
    )
    found = changed(msgspec.json.decode(msgspec.json.encode(scenario)))
    assert found["front.router.type"] == ("round_robin", "cost_aware")
    assert found["pools.pool.replicas"] == (5, 1)
    assert found["targets.ttft_ms"] == (500.0, None)
    assert found["workload.0.count"] == (7, "-")
    assert not [
        name for name in found if name.startswith(("network", "gateway", "front.pools", "pools.pool.scheduler"))
    ]


def test_a_tree_of_another_shape_is_told_as_it_is() -> None:
    assert changed({"fleet": {"replicas": 2}, "pools": "none"}) == {"fleet.replicas": (2, "-")}
