"""Faults of a scenario: each does what its name says, and no request is lost to any of them."""

import msgspec
import pytest
from tests.sim.systems import EXACT, SMALL, Kept, linear, ran, scenario

from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S
from headway.sim.faults import FailSteps, Fault, Kill, SlowLinks, Stale, Straggle
from headway.sim.system import System
from headway.workload.arrivals import Poisson

LONG = msgspec.structs.replace(SMALL, count=120, arrivals=Poisson(rate_per_s=20.0))


def _with(*faults: Fault, replicas: int = 2) -> tuple[System, Kept]:
    return ran(scenario(linear(replicas=replicas, truth=EXACT), workload=(LONG,), faults=faults))


def _e2e_s(kept: Kept, replica: str, from_s: float, until_s: float) -> float:
    """Mean end-to-end time of what a replica answered of what came in a span."""
    times = [
        record.e2e_ms / 1000
        for _, stream, record in kept.ended
        if record.replica == replica and from_s <= stream.sent_ns / NS_PER_S < until_s
    ]
    return sum(times) / len(times)


def test_a_killed_replica_costs_no_request_and_serves_again() -> None:  # SPEC J4, A11
    system, kept = _with(Kill(replica="rep-pool-0", at_s=2.0, back_s=1.0))
    assert len(kept.ended) == LONG.count
    assert all(record.outcome == "ok" for _, _, record in kept.ended)
    assert all(len(stream.tokens) == offered.output_tokens for offered, stream, _ in kept.ended)
    assert system.sim.lives[system.replicas[0]].incarnation == 2
    late = [record for _, stream, record in kept.ended if stream.sent_ns > 3.5 * NS_PER_S]
    assert any(record.replica == "rep-pool-0" for record in late)


def test_a_replica_that_stays_away_leaves_the_work_to_the_other() -> None:  # SPEC J4
    _, kept = _with(Kill(replica="rep-pool-0", at_s=1.0))
    assert len(kept.ended) == LONG.count
    late = [record for _, stream, record in kept.ended if stream.sent_ns > 1.1 * NS_PER_S]
    assert {record.replica for record in late} == {"rep-pool-1"}


def test_nobody_is_refused_while_the_only_replica_starts_again() -> None:  # SPEC A11
    # It comes back long after `front.patience.replica_wait_s`.
    _, kept = _with(Kill(replica="rep-pool-0", at_s=2.0, back_s=100.0), replicas=1)
    assert len(kept.ended) == LONG.count
    assert {record.outcome for _, _, record in kept.ended} == {"ok"}


def test_a_straggler_is_slow_while_it_lasts_and_gets_less_work() -> None:  # SPEC J4
    fault = Straggle(replica="rep-pool-0", from_s=1.0, until_s=4.0, factor=4.0)
    _, kept = _with(fault)
    slow, quick = (_e2e_s(kept, replica, 1.5, 3.5) for replica in ("rep-pool-0", "rep-pool-1"))
    assert slow > 2 * quick
    assert _e2e_s(kept, "rep-pool-0", 5.0, 99.0) < 0.6 * slow
    shares = [
        sum(1 for _, s, record in kept.ended if record.replica == name and 2 * NS_PER_S < s.sent_ns < 4 * NS_PER_S)
        for name in ("rep-pool-0", "rep-pool-1")
    ]
    assert shares[0] < shares[1]


def test_without_reports_the_router_goes_by_what_it_knew() -> None:  # SPEC J4, A5
    # dynamo#9410: a planner that models static traffic only sees no staleness.
    busy = msgspec.structs.replace(LONG, arrivals=Poisson(rate_per_s=200.0))
    clear, blind = (
        ran(scenario(linear(replicas=2, truth=EXACT), workload=(busy,), faults=faults))
        for faults in ((), (Stale(replica="rep-pool-0", from_s=0.1),))
    )
    assert len(blind[1].ended) == LONG.count  # tokens and ends still arrive
    routes = [[d.chosen for d in kept.decisions if d.kind == "route"] for _, kept in (clear, blind)]
    assert routes[0] != routes[1]


def test_a_slow_link_makes_the_hand_off_later() -> None:  # SPEC J4, C3
    def second_token_s(*faults: Fault) -> float:
        pools = (linear(name="p", role="prefill"), linear(name="d", role="decode"))
        calm = msgspec.structs.replace(SMALL, arrivals=Poisson(rate_per_s=5.0))
        _, kept = ran(scenario(*pools, workload=(calm,), faults=faults))
        gaps = [s.times_ns[1] - s.times_ns[0] for _, s, _ in kept.ended if len(s.times_ns) > 1]
        return sum(gaps) / len(gaps) / NS_PER_S

    assert second_token_s(SlowLinks(from_s=0.0, share=0.001)) > second_token_s() + 0.005
    assert second_token_s(SlowLinks(from_s=0.0, extra_ms=20.0)) > second_token_s() + 0.02


def test_a_failing_device_costs_no_request() -> None:  # SPEC J4, A11
    _, kept = _with(FailSteps(replica="rep-pool-0", at_s=1.0, steps=2))
    assert len(kept.ended) == LONG.count
    assert all(record.outcome == "ok" for _, _, record in kept.ended)


def test_faults_name_what_is_there_and_end_after_they_begin() -> None:
    with pytest.raises(ConfigError, match=r"faults\[0\]: there is no replica 'rep-pool-7'; known are rep-pool-0"):
        _with(Kill(replica="rep-pool-7", at_s=1.0))
    with pytest.raises(ConfigError, match=r"faults\[0\]: until_s = 1.0 is not after from_s = 2.0"):
        _with(Straggle(replica="rep-pool-0", from_s=2.0, until_s=1.0))
