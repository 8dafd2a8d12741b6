"""Autoscaling in simulation: the front's signals, machines that take their time to start, and what both cost."""

import msgspec
import pytest
from tests.sim.systems import EXACT, Kept, linear, ran, scenario

from headway.bench.simulated import simulate
from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S
from headway.sched.config import FrontConfig
from headway.sched.fleet.scaling import ScalingParams
from headway.sched.registry import PolicyChoice
from headway.sim.orchestrator import OrchestratorParams
from headway.sim.pools import EngineSize
from headway.sim.scenario import Scenario
from headway.workload.arrivals import OnOff, Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Synthetic

# A burst that one replica cannot carry, and in one test hardly anything for long after it.
BURST = Synthetic(
    count=500,
    arrivals=Poisson(rate_per_s=45.0),
    prompt=Lengths(kind="fixed", mean=256.0),
    output=Lengths(kind="fixed", mean=64.0),
)


def _scenario(start_s: float, lead_s: float = 10.0, places: int = 6) -> Scenario:
    pool = linear(replicas=1, replicas_max=places, start_s=start_s, truth=EXACT, engine=EngineSize(kv_blocks=400))
    front = FrontConfig(
        admission=PolicyChoice("open"),
        scaling=ScalingParams(interval_s=1.0, lead_s=lead_s, slo_s=2.0, idle_s=20.0),
    )
    return scenario(pool, workload=(BURST,), front=front, orchestrator=OrchestratorParams(poll_s=1.0))


def _replicas(kept: Kept) -> set[str]:
    return {f"{record.replica}" for _, _, record in kept.ended}


def _late(kept: Kept) -> int:
    """Requests without a first token within two seconds."""
    waits = [stream.ttft_ns for _, stream, _ in kept.ended]
    return sum(wait is None or wait > 2 * NS_PER_S for wait in waits)


def test_a_pool_grows_after_its_cold_start_and_never_before() -> None:  # SPEC A12, A13, J4
    lasting = msgspec.structs.replace(BURST, count=1200)
    _, kept = ran(msgspec.structs.replace(_scenario(start_s=15.0), workload=(lasting,)))
    assert len(kept.ended) == lasting.count
    assert len(_replicas(kept)) > 1
    grown_ns = min(decision.at_ns for decision in kept.decisions if decision.kind == "scale")
    others = [d.at_ns for d in kept.decisions if d.kind == "route" and d.chosen != "rep-pool-0"]
    assert min(others) >= grown_ns + 15 * NS_PER_S


def test_a_slower_start_costs_waiting() -> None:  # SPEC A13
    late = [_late(ran(_scenario(start_s=start_s))[1]) for start_s in (2.0, 30.0)]
    assert late[0] < late[1]


def test_a_pool_never_grows_over_its_limit() -> None:
    _, kept = ran(_scenario(start_s=2.0, places=2))
    assert _replicas(kept) == {"rep-pool-0", "rep-pool-1"}


def test_what_is_held_is_paid_cold_starts_included() -> None:  # SPEC J5
    wanted = _scenario(start_s=15.0)
    result = simulate(wanted)
    use = result.summary.pool_use["pool"]
    hours = result.summary.virtual_s / 3600
    assert hours < use.device_hours < 6 * hours
    (owned,) = result.system.owned
    assert use.device_hours == pytest.approx(owned.held_ns(result.system.sim.now_ns) / NS_PER_S / 3600)


def test_an_idle_pool_shrinks_by_draining_and_loses_nothing() -> None:  # SPEC A12
    quiet = msgspec.structs.replace(
        BURST, name="later", count=12, arrivals=OnOff(rate_per_s=0.02, on_s=5.0, off_s=100.0)
    )
    wanted = _scenario(start_s=2.0)
    system, kept = ran(msgspec.structs.replace(wanted, workload=(BURST, quiet)))
    assert len(kept.ended) == BURST.count + quiet.count
    assert all(record.outcome == "ok" for _, _, record in kept.ended)
    (owned,) = system.owned
    assert owned.spent_ns > 0  # some are gone
    assert len(owned.held) < len(_replicas(kept))


def test_a_scenario_that_could_never_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"replicas_max needs \[orchestrator\]"):
        scenario(linear(replicas_max=3))
    with pytest.raises(ConfigError, match=r"orchestrator needs \[front.scaling\]"):
        scenario(orchestrator=OrchestratorParams())
    with pytest.raises(ConfigError, match="replicas_max = 1 is below replicas = 2"):
        linear(replicas=2, replicas_max=1).__post_init__()


def test_nobody_who_serves_leaves_because_others_start() -> None:
    """The front wants four at a queue, and two again when it is gone: the two that serve, not the two that start."""
    moment = msgspec.structs.replace(BURST, count=240, arrivals=Poisson(rate_per_s=120.0))
    calm = msgspec.structs.replace(BURST, count=40, arrivals=Poisson(rate_per_s=2.0))
    base = _scenario(start_s=30.0)
    pools = (msgspec.structs.replace(base.pools[0], replicas=2),)
    _, kept = ran(msgspec.structs.replace(base, pools=pools, workload=(moment, calm)))
    assert "grow" in {decision.chosen for decision in kept.decisions if decision.kind == "scale"}
    last = [d.chosen for d in kept.decisions if d.kind == "route" and 12 * NS_PER_S < d.at_ns < 25 * NS_PER_S]
    assert set(last) == {"rep-pool-0", "rep-pool-1"}


def test_under_a_lasting_load_nobody_who_serves_is_drained() -> None:  # SPEC A12
    lasting = msgspec.structs.replace(BURST, count=1500)
    _, kept = ran(msgspec.structs.replace(_scenario(start_s=8.0), workload=(lasting,)))
    loaded_ns = lasting.count / lasting.arrivals.rate_per_s * NS_PER_S
    assert [d.chosen for d in kept.decisions if d.kind == "scale" and d.at_ns < loaded_ns]
    assert not [decision for decision in kept.decisions if decision.kind == "drain" and decision.at_ns < loaded_ns]


def test_a_pool_shrinks_under_a_load_that_fewer_carry_and_loses_nothing() -> None:  # SPEC A12
    """A burst grows it; what goes on after it, without a pause, one or two replicas carry."""
    after = msgspec.structs.replace(BURST, name="after", count=500, arrivals=Poisson(rate_per_s=5.0))
    base = _scenario(start_s=2.0, lead_s=3.0)
    assert base.front.scaling is not None
    scaling = msgspec.structs.replace(base.front.scaling, idle_s=900.0, calm_s=15.0)
    front = msgspec.structs.replace(base.front, scaling=scaling)
    system, kept = ran(msgspec.structs.replace(base, workload=(BURST, after), front=front))
    assert all(record.outcome == "ok" for _, _, record in kept.ended)
    assert len(kept.ended) == BURST.count + after.count
    wishes = [(d.at_ns / NS_PER_S, d.chosen) for d in kept.decisions if d.kind == "scale"]
    grown_s = max(at_s for at_s, chosen in wishes if chosen == "grow")
    shrunk = [at_s for at_s, chosen in wishes if chosen == "shrink"]
    assert shrunk
    assert grown_s + scaling.calm_s <= min(shrunk) < 100.0  # under load, and not back and forth
    (owned,) = system.owned
    assert len(owned.held) < len(_replicas(kept))
    late = [stream.ttft_ns for offered, stream, _ in kept.ended if offered.request.id.startswith("req-after")][-200:]
    assert max(wait or 0 for wait in late) < 2 * NS_PER_S
