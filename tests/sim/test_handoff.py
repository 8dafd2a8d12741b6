"""P/D hand-off and live migration in simulation: real (fake) KV moves, tokens do not change, nothing leaks."""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from tests.sim.workloads import fleet, levels, mix, request, run, wrong

from headway.core.draw import draw_below
from headway.core.events import MessageArrived
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.messages import Commit, Drain, Migrate, MigrationEnded, StageAck, TakeOver
from headway.core.units import NS_PER_MS, Ns
from headway.sched.fleet.migration import MigrationParams
from headway.sched.nodes import FrontConfig, WorkerConfig
from headway.sched.router.machine import PdPools
from headway.sched.transfer.outgoing import TransferParams
from headway.sim.driver import SimParams
from headway.sim.fleet import CONTROL, FRONT, Fleet
from headway.sim.network import NetworkParams

A, B = NodeId("rep-0"), NodeId("rep-1")
SPLIT = FrontConfig(pools=PdPools(prefill=(A,), decode=(B,), prompt_tokens_min=8))


def migrate(ran: Fleet, at_ns: Ns, name: str, source: NodeId = A, destination: NodeId = B) -> None:
    message = Migrate(RequestId(name), destination, TransferId(f"test-{name}-{at_ns}"))
    ran.sim.at(at_ns, lambda now: ran.sim.feed(source, MessageArrived(now, "test", CONTROL, message)))


def outcomes(ran: Fleet) -> list[tuple[bool, str]]:
    """How migrations ended, as the control node heard it."""
    heard = [turn.event.message for turn in ran.sim.log.of(CONTROL) if isinstance(turn.event, MessageArrived)]
    return [(message.moved, message.reason) for message in heard if isinstance(message, MigrationEnded)]


def is_clean(ran: Fleet) -> bool:
    transfers = [ran.worker(place).transfers for place in range(len(ran.replicas))]
    return set(levels(ran).values()) == {0} and not any(t.departures.open or t.arrivals.open for t in transfers)


def test_prefill_here_decode_there_changes_no_token() -> None:  # SPEC C2, C3, B7
    requests = mix(60, seed=11)
    ran = run(fleet(front=SPLIT), requests)
    assert wrong(ran, requests) == []
    assert is_clean(ran)
    long = [item for item in requests if len(item.prompt) >= 8 and len(ran.sim.clients.streams[item.id].tokens) > 1]
    for item in long:
        evidence = ran.sim.clients.streams[item.id].evidence
        assert evidence is not None
        assert evidence.replica == B
        assert evidence.transfer_bytes == -(-len(item.prompt) // 16) * 128
        assert [d.chosen for d in evidence.decisions if d.kind == "handoff"] == ["adopt"]
    assert ran.sim.copies.bytes_moved >= sum(-(-len(item.prompt) // 16) * 128 for item in long)


def test_handoff_is_not_charged_to_the_time_per_token() -> None:  # SPEC C3, I2
    slow_link = SimParams(check=True, network=NetworkParams(copy_bytes_per_s=5e3))
    ran = run(fleet(front=SPLIT, sim=slow_link), [request("req-1", 64, 10, NS_PER_MS)])
    evidence = ran.sim.clients.streams[RequestId("req-1")].evidence
    assert evidence is not None
    assert evidence.handoff_ms is not None
    assert evidence.handoff_ms > 95.0
    assert evidence.tpot_ms is not None
    assert evidence.tpot_ms < 8.0
    assert evidence.recompute_ms is None


def test_a_full_decode_replica_leaves_the_request_where_it_was_prefilled() -> None:  # SPEC C3
    ran = fleet(front=SPLIT)
    ran.sim.run(until_ns=NS_PER_MS)
    taken = ran.worker(1).worker.machine.reserve_blocks(ran.worker(1).worker.machine.kv_blocks_free)
    assert taken is not None
    requests = [request("req-1", 40, 12, NS_PER_MS)]
    ran.offer(requests)
    ran.sim.run()
    assert wrong(ran, requests) == []
    evidence = ran.sim.clients.streams[RequestId("req-1")].evidence
    assert evidence is not None
    assert evidence.replica == A
    assert [d.chosen for d in evidence.decisions if d.kind == "handoff"] == ["stay"]


@pytest.mark.parametrize("prompt", [3, 16, 100, 700])
def test_a_running_request_moves_without_gap_or_change(prompt: int) -> None:  # SPEC C4, B7
    ran = fleet(front=FrontConfig())
    requests = [request("req-1", prompt, 150, NS_PER_MS), request("req-2", 20, 150, NS_PER_MS, family=2)]
    ran.offer(requests)
    migrate(ran, 200 * NS_PER_MS, "req-1")
    ran.sim.run()
    assert wrong(ran, requests) == []
    assert outcomes(ran) == [(True, "the front accepted")]
    assert is_clean(ran)
    evidence = ran.sim.clients.streams[RequestId("req-1")].evidence
    assert evidence is not None
    assert (evidence.replica, evidence.recompute_ms) == (B, None)


def test_downtime_does_not_grow_with_the_length() -> None:  # SPEC C4
    def downtime(prompt: int) -> Ns:
        ran = fleet(sim=SimParams(network=NetworkParams(copy_bytes_per_s=2e6)))
        ran.offer([request("req-1", prompt, 200, NS_PER_MS)])
        migrate(ran, 300 * NS_PER_MS, "req-1")
        ran.sim.run()
        times = ran.sim.clients.streams[RequestId("req-1")].times_ns
        assert ran.sim.clients.streams[RequestId("req-1")].evidence.replica == B  # type: ignore[union-attr]  # it closed
        return max(later - earlier for earlier, later in pairwise(times[1:]))

    short, long = downtime(64), downtime(2000)
    assert long < 1.3 * short  # the whole copy takes 16 ms for the long one


@pytest.mark.parametrize("reason", ["unknown", "waiting"])
def test_what_does_not_decode_does_not_move(reason: str) -> None:
    ran = fleet()
    ran.offer([request("req-1", 30, 10, NS_PER_MS)])
    migrate(ran, 2 * NS_PER_MS if reason == "waiting" else 900 * NS_PER_MS, "req-1")
    ran.sim.run()
    assert outcomes(ran) == [(False, "not decoding here")]


def test_a_destination_without_room_leaves_the_request_at_its_source() -> None:  # SPEC C4
    ran = fleet()
    ran.sim.run(until_ns=NS_PER_MS)
    ran.worker(1).worker.machine.reserve_blocks(ran.worker(1).worker.machine.kv_blocks_free)
    requests = [request("req-1", 60, 100, NS_PER_MS)]
    ran.offer(requests)
    migrate(ran, 100 * NS_PER_MS, "req-1")
    ran.sim.run()
    assert wrong(ran, requests) == []
    assert outcomes(ran) == [(False, "no room at the destination")]


def kill_at(node: NodeId, at_ns: Ns) -> Callable[[Fleet], None]:
    def arrange(ran: Fleet) -> None:
        ran.sim.at(at_ns, lambda _: ran.sim.kill(node))
        ran.sim.at(at_ns + 100 * NS_PER_MS, lambda _: ran.sim.restart(node))

    return arrange


SLOW = SimParams(check=True, log=True, network=NetworkParams(copy_bytes_per_s=2e5))


@pytest.mark.parametrize("after_us", [0, 40, 110, 500, 2_000, 5_000, 6_500, 9_000, 12_000, 20_000])
@pytest.mark.parametrize("victim", [A, B])
def test_either_side_may_die_at_any_moment_of_a_migration(victim: NodeId, after_us: int) -> None:  # SPEC C4, A11
    ran = fleet(sim=SLOW)
    requests = [request("req-1", 70, 120, NS_PER_MS), request("req-2", 30, 120, NS_PER_MS, family=2)]
    ran.offer(requests)
    migrate(ran, 100 * NS_PER_MS, "req-1")
    kill_at(victim, 100 * NS_PER_MS + after_us * 1000)(ran)
    ran.sim.run()
    assert wrong(ran, requests) == []
    assert is_clean(ran)


@pytest.mark.parametrize("after_us", [0, 60, 120, 300, 3_000, 7_000, 9_000, 12_000])
@pytest.mark.parametrize("victim", [A, B])
def test_either_side_may_die_at_any_moment_of_a_handoff(victim: NodeId, after_us: int) -> None:  # SPEC C3, A11
    ran = fleet(sim=SLOW, front=SPLIT)
    requests = [request("req-1", 70, 60, 10 * NS_PER_MS), request("req-2", 30, 60, 10 * NS_PER_MS, family=2)]
    ran.offer(requests)
    kill_at(victim, 10 * NS_PER_MS + after_us * 1000)(ran)
    ran.sim.run()
    assert wrong(ran, requests) == []
    assert is_clean(ran)


@pytest.mark.parametrize("seed", range(12))
def test_lost_messages_between_replicas_only_cost_the_move(seed: int) -> None:  # SPEC C4
    ran = fleet(sim=SLOW)
    sent = iter(range(1 << 30))
    ran.sim.network.drop = lambda src, dst, _: {src, dst} == {A, B} and draw_below(seed, "drop", 0, next(sent), 3) == 0
    requests = [request(f"req-{n}", 20 + 20 * n, 100, NS_PER_MS, family=n) for n in range(6)]
    ran.offer(requests)
    for n in range(6):
        migrate(ran, (60 + 30 * n) * NS_PER_MS, f"req-{n}")
        migrate(ran, (60 + 30 * n) * NS_PER_MS, f"req-{n}", B, A)
    ran.sim.run()
    assert wrong(ran, requests) == []
    assert set(levels(ran).values()) == {0}


def test_a_client_that_leaves_during_a_migration_frees_both_sides() -> None:  # SPEC B5, C4
    for after_us in (0, 200, 3_000, 7_000, 9_000, 15_000):
        ran = fleet(sim=SLOW)
        ran.offer([request("req-1", 70, 300, NS_PER_MS)])
        migrate(ran, 100 * NS_PER_MS, "req-1")
        ran.sim.at(100 * NS_PER_MS + after_us * 1000, lambda _, r=ran: r.sim.leave(FRONT, RequestId("req-1")))  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
        ran.sim.run()
        assert is_clean(ran)


def test_control_moves_requests_from_the_crowded_to_the_empty_replica() -> None:  # SPEC C4, L-3
    ran = fleet(migration=MigrationParams(gain_tokens_min=100, cooldown_s=0.01))
    requests = [request(f"req-{n}", 60, 200, NS_PER_MS, family=n) for n in range(6)]
    ran.sim.run(until_ns=NS_PER_MS // 2)
    ran.sim.kill(B)
    ran.offer(requests)
    ran.sim.at(200 * NS_PER_MS, lambda _: ran.sim.restart(B))
    ran.sim.run()
    assert wrong(ran, requests) == []
    moved = [moved for moved, _ in outcomes(ran)]
    assert moved.count(True) >= 2
    kinds = {decision.kind for decision in ran.sim.clients.decisions}
    assert "migrate" in kinds


def test_a_drained_replica_ends_empty_while_its_requests_go_on() -> None:  # SPEC A11, C4
    ran = fleet(migration=MigrationParams(cooldown_s=0.001))
    requests = [request(f"req-{n}", 40, 300, NS_PER_MS, family=n) for n in range(4)]
    ran.offer(requests)
    ran.sim.at(100 * NS_PER_MS, lambda now: ran.sim.feed(A, MessageArrived(now, "test", CONTROL, Drain("maintenance"))))
    ran.sim.run(until_ns=600 * NS_PER_MS)
    assert ran.worker(0).worker.machine.live == 0
    assert ran.sim.clients.open == 4
    ran.sim.run()
    assert wrong(ran, requests) == []


def test_an_engine_failure_during_migration_changes_no_token() -> None:  # SPEC C4, A11
    for after_ms in range(0, 30, 3):
        for victim in (A, B):
            ran = fleet(sim=SLOW)
            requests = [request("req-1", 70, 100, NS_PER_MS), request("req-2", 30, 100, NS_PER_MS, family=2)]
            ran.offer(requests)
            migrate(ran, 100 * NS_PER_MS, "req-1")
            executor = ran.sim.lives[victim].executor
            assert executor is not None
            ran.sim.at((100 + after_ms) * NS_PER_MS, lambda _, e=executor: e.fail_next())  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
            ran.sim.run()
            assert wrong(ran, requests) == []
            assert is_clean(ran)


def test_a_migration_that_stands_still_is_given_up() -> None:  # SPEC C4
    worker = WorkerConfig(transfer=TransferParams(timeout_s=0.05))
    ran = fleet(worker=worker)
    ran.sim.network.drop = lambda src, dst, message: isinstance(message, StageAck)
    requests = [request("req-1", 70, 100, NS_PER_MS)]
    ran.offer(requests)
    migrate(ran, 100 * NS_PER_MS, "req-1")
    ran.sim.run()
    assert wrong(ran, requests) == []
    assert outcomes(ran) == [(False, "no progress in time")]
    assert is_clean(ran)


def test_the_front_has_the_last_word_however_late() -> None:  # SPEC C4
    """Source and destination have both given up waiting when the front accepts: the destination must still run it."""
    ran = fleet()
    committed: list[Ns] = []

    def watch(src: NodeId, dst: NodeId, message: object) -> bool:
        if isinstance(message, Commit):
            committed.append(ran.sim.now_ns)
        return False

    late = {(A, FRONT): 6_000 * NS_PER_MS, (B, FRONT): 3_000 * NS_PER_MS}
    ran.sim.network.drop = watch
    ran.sim.network.delay = lambda src, dst, _: late.get((src, dst), 0) if committed else 0
    requests = [request("req-1", 70, 120, NS_PER_MS)]
    ran.offer(requests)
    migrate(ran, 100 * NS_PER_MS, "req-1")
    ran.sim.run()
    assert outcomes(ran) == [(False, "no progress in time")]
    assert wrong(ran, requests) == []
    assert is_clean(ran)
    evidence = ran.sim.clients.streams[RequestId("req-1")].evidence
    assert evidence is not None
    assert evidence.replica == B


def test_kv_that_a_failure_took_is_computed_again_by_the_new_owner() -> None:  # SPEC C4, A11
    """The destination's engine fails between its question and the front's answer: only the tokens are left."""
    ran = fleet()
    asked: list[Ns] = []

    def watch(src: NodeId, dst: NodeId, message: object) -> bool:
        if isinstance(message, TakeOver):
            asked.append(ran.sim.now_ns)
            executor = ran.sim.lives[B].executor
            assert executor is not None
            executor.fail_next()
        return False

    ran.sim.network.drop = watch
    ran.sim.network.delay = lambda src, dst, _: 50 * NS_PER_MS if asked and (src, dst) == (B, FRONT) else 0
    requests = [request("req-1", 70, 120, NS_PER_MS), request("req-2", 30, 120, NS_PER_MS, family=2)]
    forced = msgspec.structs.replace(requests[1].sampling, ignore_eos=True)  # the destination must be busy all the time
    ran.offer([requests[0], msgspec.structs.replace(requests[1], sampling=forced)])
    migrate(ran, 100 * NS_PER_MS, "req-1")
    ran.sim.run()
    assert len(asked) == 1
    assert wrong(ran, requests[:1]) == []
    assert is_clean(ran)
    evidence = ran.sim.clients.streams[RequestId("req-1")].evidence
    assert evidence is not None
    assert evidence.replica == B
    assert [d.chosen for d in evidence.decisions if d.kind == "handoff"] == ["recompute"]
