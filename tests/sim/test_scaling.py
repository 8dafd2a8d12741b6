"""Scaling signals of a whole fleet: a burst asks for more, silence for less (SPEC A12, L-3)."""

from tests.sim.draws import Workload, requests

from headway.core.units import NS_PER_S
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.fleet.scaling import ScalingParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig
from headway.sim.fleet import FRONT, Fleet, FleetParams
from headway.sim.truth import LinearTruth
from headway.workload.lengths import Lengths

SCALING = ScalingParams(interval_s=1.0, lead_s=5.0, slo_s=2.0, idle_s=30.0)


def run(rate_per_s: float, count: int, replicas: int) -> list[tuple[float, str, str]]:
    """(seconds, chosen, reason) of every scaling decision."""
    params = FleetParams(
        replicas=replicas,
        engine=SyntheticParams(),
        llm=LlmParams(max_seqs=8),
        front=FrontConfig(scaling=SCALING),
        truth=LinearTruth(base_ns=20_000_000, token_ns=100_000, kv_ns=0.0),
    )
    fleet = Fleet(params)
    fixed = Lengths(kind="fixed", mean=64)
    workload = Workload(rate_per_s=rate_per_s, count=count, prompt=fixed, output=fixed)
    for one in requests(workload, "synthetic", 32000, 16):
        fleet.sim.arrive(FRONT, one, one.arrived_ns)
    fleet.sim.run()
    assert all(stream.end is not None for stream in fleet.sim.clients.streams.values())
    found = [one for one in fleet.sim.clients.decisions if one.kind == "scale"]
    return [(one.at_ns / NS_PER_S, one.chosen, one.reason) for one in found]


# SPEC A12, L-3
def test_an_overloaded_pool_asks_for_more_and_an_idle_one_for_less() -> None:
    overload = run(rate_per_s=30.0, count=240, replicas=2)  # each serves about six per second
    assert {chosen for _, chosen, _ in overload} == {"grow", "shrink"}
    first_s, first, _ = overload[0]
    assert (first, first_s < 8.0) == ("grow", True)
    last_s, last, reason = overload[-1]
    assert last == "shrink"
    assert "0 wait" in reason
    assert last_s > first_s + SCALING.idle_s
    assert len(overload) <= 8, "a signal that changes with every look tells nothing"


# SPEC A12
def test_light_load_never_asks_for_more() -> None:
    assert {chosen for _, chosen, _ in run(rate_per_s=2.0, count=60, replicas=2)} == {"shrink"}
