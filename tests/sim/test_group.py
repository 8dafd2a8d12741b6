"""Two replicas in lockstep: the same number of steps at both, dummies for the idle one, and no half-run group."""

from tests.sim.workloads import fleet, levels, mix, request, wrong

from headway.core.effects import Effect, Propose, RunStep
from headway.core.ids import GroupId, NodeId
from headway.core.units import NS_PER_MS
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import WorkerConfig
from headway.sched.runtime.group import GroupParams
from headway.sim.driver import SimParams
from headway.sim.fleet import Fleet
from headway.sim.network import NetworkParams

A, B = NodeId("rep-0"), NodeId("rep-1")
GROUP = GroupParams(GroupId("group-0"), (A, B), deadline_ms=50.0)


def effects(ran: Fleet, node: NodeId) -> list[Effect]:
    return [effect for turn in ran.sim.log.of(node) for effect in turn.effects]


def steps(ran: Fleet, node: NodeId) -> list[tuple[str, int]]:
    return [(effect.plan.kind, effect.plan.bucket) for effect in effects(ran, node) if isinstance(effect, RunStep)]


def served(ran: Fleet) -> None:
    ran.sim.run(is_done=lambda: bool(ran.sim.clients.streams) and not ran.sim.clients.open)
    ran.sim.run(until_ns=ran.sim.now_ns + 30 * NS_PER_MS)


def test_both_ranks_run_the_same_padded_steps() -> None:  # SPEC D2
    for credits in (1, 2):
        llm = LlmParams(max_seqs=16, step_tokens=512, async_depth=credits)
        ran = fleet(group=GROUP, llm=llm, worker=WorkerConfig(credits=credits))
        requests = mix(30, seed=21)
        ran.offer(requests)
        served(ran)
        assert wrong(ran, requests) == []
        first, second = steps(ran, A), steps(ran, B)
        assert [bucket for _, bucket in first] == [bucket for _, bucket in second]
        assert len(first) > 50


def test_an_idle_rank_joins_with_a_dummy() -> None:  # SPEC D2
    ran = fleet(group=GROUP)
    ran.offer([request("req-1", 20, 30, NS_PER_MS)])
    served(ran)
    kinds = {kind for kind, _ in steps(ran, B)}
    assert kinds == {"dummy"}
    assert len(steps(ran, A)) == len(steps(ran, B)) >= 30


def test_idle_ranks_run_nothing() -> None:
    ran = fleet(group=GROUP)
    ran.sim.run(until_ns=100 * NS_PER_MS)
    assert steps(ran, A) == steps(ran, B) == []


def test_the_proposal_for_the_next_step_is_made_while_one_runs() -> None:  # SPEC D2, B6
    ran = fleet(group=GROUP)
    ran.offer([request("req-1", 20, 30, NS_PER_MS)])
    served(ran)
    order = [type(effect).__name__ for effect in effects(ran, A) if isinstance(effect, Propose | RunStep)]
    busy = order[order.index("RunStep") :]
    assert busy[:4] == ["RunStep", "Propose", "RunStep", "Propose"]


def test_a_lost_rank_stops_the_group_until_it_is_back() -> None:  # SPEC D2, A11
    ran = fleet(group=GROUP, sim=SimParams(check=True, log=True))
    requests = mix(20, seed=22)
    ran.offer(requests)
    ran.sim.at(60 * NS_PER_MS, lambda _: ran.sim.kill(B))
    ran.sim.at(200 * NS_PER_MS, lambda _: ran.sim.restart(B))
    served(ran)
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}
    half_run = [
        turn.event.at_ns
        for turn in ran.sim.log.of(A)
        if any(isinstance(effect, RunStep) for effect in turn.effects)
        and 70 * NS_PER_MS < turn.event.at_ns < 200 * NS_PER_MS
    ]
    assert half_run == []


def test_a_rank_that_stays_silent_is_lost_to_the_others() -> None:  # SPEC D2
    ran = fleet(group=GROUP)
    ran.offer([request("req-1", 20, 200, NS_PER_MS)])
    ran.sim.network.params = ran.sim.network.params.__class__(detect_ns=10_000 * NS_PER_MS)
    ran.sim.at(60 * NS_PER_MS, lambda _: ran.sim.kill(B))
    ran.sim.run(until_ns=200 * NS_PER_MS)
    lockstep = ran.worker(0).lockstep
    assert lockstep is not None
    assert not ran.worker(0).worker.open
    assert ran.worker(0).worker.machine.live == 1


def test_a_failed_step_voids_the_proposal_for_the_next_one() -> None:  # SPEC D2, B6
    """At every moment of a step: while the next one is proposed, agreed on, or running."""
    llm = LlmParams(max_seqs=16, step_tokens=512, async_depth=2)
    for place in range(12):
        slow = SimParams(check=True, log=True, network=NetworkParams(gather_ns=8 * NS_PER_MS))
        ran = fleet(group=GROUP, llm=llm, worker=WorkerConfig(credits=2), sim=slow)
        requests = mix(8, seed=place)
        ran.offer(requests)
        executor = ran.sim.lives[A].executor
        assert executor is not None
        ran.sim.at((12 + place) * NS_PER_MS + place * 137_000, lambda _, e=executor: e.fail_next())  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
        served(ran)
        assert wrong(ran, requests) == []
