"""A replica fetches the beginning of a prompt from a peer before it prefills; real content moves, nothing leaks."""

from collections.abc import Callable, Sequence

import pytest
from tests.sim.workloads import fleet, request, run, wrong

from headway.core.draw import draw_below
from headway.core.events import MessageArrived
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Cancel, ResetPrefixCache, WhatDoYouHold
from headway.core.request import Request
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.sched.nodes import FrontConfig, WorkerConfig
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Choices
from headway.sched.router.policies._terms import holder_of_most
from headway.sched.router.protocol import Learned, ReplicaView, Scored
from headway.sched.transfer.outgoing import TransferParams
from headway.sim.driver import SimParams
from headway.sim.fleet import CONTROL, FRONT, Fleet
from headway.sim.network import NetworkParams

A, B = NodeId("rep-0"), NodeId("rep-1")
A, B = NodeId("rep-0"), NodeId("rep-1")
PULLING = FrontConfig(router=PolicyChoice("mooncake", {"pull_tokens_per_s": 1e6, "threshold": 1.0}))
BLOCK = 128  # bytes in the synthetic engine
AT: Ns = NS_PER_S
TURNS = [request("req-1", 96, 4, NS_PER_MS), request("req-2", 120, 6, AT)]


class Scripted:
    """Routes the first request to A, every other one to B, which is to begin with what A holds."""

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """One candidate."""
        if request.id == "req-1" or len(replicas) == 1:
            return [Scored(replicas[0].id, 0.0)]
        source, tokens = holder_of_most(replicas)
        return [Scored(B, 0.0, "", source if tokens else None, tokens)]

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""


def pulling(bytes_per_s: float = 1e6, timeout_s: float = 2.0) -> Fleet:
    """Two replicas; what goes to the second is pulled from the first, over a link of that speed."""
    sim = SimParams(check=True, log=True, network=NetworkParams(copy_bytes_per_s=bytes_per_s))
    ran = fleet(sim=sim, worker=WorkerConfig(transfer=TransferParams(timeout_s=timeout_s)))
    ran.front.dispatch.router.choices = Choices(Scripted())
    return ran


def evidence(ran: Fleet, name: str = "req-2") -> EvidenceRecord:
    found = ran.sim.clients.streams[RequestId(name)].evidence
    assert found is not None
    return found


def pulls(record: EvidenceRecord) -> list[tuple[str, str]]:
    return [(decision.chosen, decision.reason) for decision in record.decisions if decision.kind == "pull"]


def is_clean(ran: Fleet) -> bool:
    """No pull is open, and no block is held, at any replica that lives."""
    places = [place for place, node in enumerate(ran.replicas) if ran.sim.lives[node].is_alive]
    workers = [ran.worker(place) for place in places]
    held = [view.used + view.reserved for node in workers for view in node.worker.machine.accounts() if not view.cache]
    return not any(held) and not any(node.transfers.pulls.fetches or node.transfers.pulls.loans for node in workers)


def test_a_prefix_is_fetched_instead_of_computed_and_changes_no_token() -> None:  # SPEC A4, B7
    ran = run(pulling(), TURNS)
    assert wrong(ran, TURNS) == []
    record = evidence(ran)
    assert (record.replica, record.cached_tokens, record.transfer_bytes) == (B, 96, 6 * BLOCK)
    ((chosen, reason),) = pulls(record)
    assert (chosen, reason.startswith(f"6 blocks of {A} in ")) == ("pull", True)
    assert ran.sim.copies.bytes_moved == 6 * BLOCK
    assert is_clean(ran)


def test_only_what_is_missing_is_fetched() -> None:
    turns = [request("req-1", 250, 4, NS_PER_MS), request("req-2", 70, 6, AT), request("req-3", 250, 6, 2 * AT)]
    ran = run(pulling(), [*turns, request("req-4", 250, 6, 3 * AT)])
    assert wrong(ran, turns) == []
    assert evidence(ran, "req-3").transfer_bytes == (250 // 16 - 70 // 16) * BLOCK
    assert pulls(evidence(ran, "req-4")) == []  # B holds it all by now


def message(ran: Fleet, node: NodeId, what: object, at_ns: Ns, src: NodeId = CONTROL) -> None:
    ran.sim.at(at_ns, lambda now: ran.sim.feed(node, MessageArrived(now, "test", src, what)))  # type: ignore[arg-type]  # messages


SLOW = 10e3  # bytes per second: the six blocks take 77 ms
MIDDLE: Ns = AT + 40 * NS_PER_MS


def the_source_forgets(ran: Fleet) -> None:
    message(ran, A, ResetPrefixCache(1), AT)


def the_source_forgets_meanwhile(ran: Fleet) -> None:
    message(ran, A, ResetPrefixCache(1), MIDDLE)


def the_puller_forgets_meanwhile(ran: Fleet) -> None:
    message(ran, B, ResetPrefixCache(1), MIDDLE)


def the_source_dies(ran: Fleet) -> None:
    ran.sim.at(MIDDLE, lambda now: ran.sim.kill(A))


def the_puller_has_no_room(ran: Fleet) -> None:
    def fill(now: Ns) -> None:
        machine = ran.worker(1).worker.machine
        taken = machine.reserve_blocks(machine.kv_blocks_free - 3)
        assert taken is not None
        ran.sim.at(MIDDLE, lambda later: machine.free_blocks(taken))

    ran.sim.at(AT, fill)
    message(ran, B, WhatDoYouHold(1), MIDDLE + NS_PER_MS)  # it looks again


def the_engine_of_the_puller_fails(ran: Fleet) -> None:
    def fail(now: Ns) -> None:
        executor = ran.sim.lives[B].executor
        assert executor is not None
        executor.fail_next()

    ran.sim.at(MIDDLE, fail)


TROUBLES = [
    (the_source_forgets, "could not send it"),
    (the_source_forgets_meanwhile, "could not send it"),
    (the_puller_forgets_meanwhile, "the cache was lost meanwhile"),
    (the_source_dies, "rep-0 was lost"),
    (the_puller_has_no_room, "no room for 7 blocks of rep-0"),
    (the_engine_of_the_puller_fails, "the cache was lost meanwhile"),
]


@pytest.mark.parametrize(("trouble", "why"), TROUBLES, ids=[trouble.__name__ for trouble, _ in TROUBLES])
def test_whatever_goes_wrong_the_prompt_is_computed(trouble: Callable[[Fleet], None], why: str) -> None:  # SPEC A4, B7
    turns = [*TURNS, request("other", 40, 30, AT + 2 * NS_PER_MS, family=3)]  # a step of it fails with the engine
    ran = pulling(SLOW)
    trouble(ran)
    run(ran, turns)
    assert wrong(ran, turns) == []
    ((chosen, reason),) = pulls(evidence(ran))
    assert (chosen, why in reason) == ("recompute", True), reason
    assert evidence(ran).cached_tokens == 0
    assert is_clean(ran)


def test_a_pull_that_takes_too_long_is_not_waited_for_and_gives_its_blocks_back() -> None:
    ran = run(pulling(SLOW, timeout_s=0.02), TURNS)
    assert wrong(ran, TURNS) == []
    assert pulls(evidence(ran)) == [("recompute", "nothing came from rep-0 in time")]
    ttft = evidence(ran).ttft_ms
    assert ttft is not None
    assert ttft < 60  # the copy alone takes 77 ms
    assert is_clean(ran)


def test_a_request_that_is_cancelled_while_it_waits_leaves_the_prefix_to_others() -> None:  # SPEC B5
    turns = [*TURNS, request("req-3", 120, 6, 2 * AT)]
    ran = pulling(SLOW)
    message(ran, B, Cancel(RequestId("req-2"), 1), MIDDLE, FRONT)
    run(ran, turns)
    assert ran.sim.clients.streams[RequestId("req-2")].tokens == []
    assert (evidence(ran, "req-3").replica, evidence(ran, "req-3").cached_tokens) == (B, 96)
    assert pulls(evidence(ran, "req-3")) == []
    assert is_clean(ran)


class Scattered(Scripted):
    """Any replica, which is to begin with what the one that holds most has."""

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """One candidate."""
        source, tokens = holder_of_most(replicas)
        chosen = replicas[draw_below(1, request.id, request.attempts, 0, len(replicas))].id
        is_pull = tokens > 0 and source != chosen
        return [Scored(chosen, 0.0, "", source if is_pull else None, tokens if is_pull else 0)]


@pytest.mark.parametrize("seed", range(4))
def test_no_token_changes_where_many_pull_and_a_replica_dies(seed: int) -> None:  # SPEC B7, L-2
    ran = pulling(SLOW * 10)
    ran.front.dispatch.router.choices = Choices(Scattered())

    def below(what: str, place: int, bound: int) -> int:
        return draw_below(seed, what, 0, place, bound)

    requests = [
        request(f"req-{i}", 64 + below("p", i, 140), 1 + below("o", i, 40), (1 + 8 * i) * NS_PER_MS, i % 20)
        for i in range(60)
    ]
    ran.sim.at(400 * NS_PER_MS, lambda now: ran.sim.kill(A if seed % 2 else B))
    run(ran, requests)
    assert wrong(ran, requests) == []
    assert is_clean(ran)
    records = [stream.evidence for stream in ran.sim.clients.streams.values() if stream.evidence is not None]
    assert sum(chosen == "pull" for record in records for chosen, _ in pulls(record)) >= 3
