"""Session affinity of `cost_aware` in simulated fleets (SPEC A4)."""

from itertools import pairwise

import msgspec
from tests.sim.workloads import VOCAB, fleet, levels, request, run, wrong

from headway.core.draw import draw_below
from headway.core.ids import NodeId, RequestId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS, Ns
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.config import FrontConfig
from headway.sched.registry import PolicyChoice
from headway.sim.fleet import Fleet

GAP_NS: Ns = 400 * NS_PER_MS
TURNS, SESSIONS = 8, 6


def turn(session: int, number: int, at_ns: Ns, *, words: int = 20) -> LlmRequest:
    """A turn carries everything said before it."""
    made = request(f"req-s{session}-{number}", words * (number + 1), 6, at_ns, family=session)
    return msgspec.structs.replace(made, session=f"s{session}", block_tokens=16)


def conversations() -> list[LlmRequest]:
    """Sessions whose turns come at a constant pace, each at its own moment of it."""
    found = []
    for session in range(SESSIONS):
        offset = draw_below(7, f"s{session}", 0, 0, GAP_NS)
        found += [turn(session, number, NS_PER_MS + offset + number * GAP_NS) for number in range(TURNS)]
    return sorted(found, key=lambda item: item.arrived_ns)


def sticky(**params: object) -> Fleet:
    chosen = PolicyChoice("cost_aware", {"explore": 0.0, **params})
    engine = SyntheticParams(kv_blocks=2000, vocab_size=VOCAB, check=True)
    return fleet(replicas=3, engine=engine, front=FrontConfig(router=chosen))


def places(ran: Fleet, session: int) -> list[NodeId]:
    """Where each of its turns went, in order."""
    went = [
        (decision.at_ns, NodeId(decision.chosen))
        for decision in ran.sim.clients.decisions
        if decision.kind == "route" and str(decision.request).startswith(f"req-s{session}-")
    ]
    return [node for _at_ns, node in sorted(went)]


def moves(went: list[NodeId]) -> int:
    return sum(before != after for before, after in pairwise(went))


def test_sessions_do_not_ping_pong_under_constant_load() -> None:  # SPEC A4
    requests = conversations()
    ran = run(sticky(), requests)
    assert wrong(ran, requests) == []
    assert sum(levels(ran).values()) == 0
    went = [places(ran, session) for session in range(SESSIONS)]
    assert all(len(each) == TURNS for each in went)
    assert sum(moves(each) for each in went) == 0
    assert len({each[0] for each in went}) > 1  # and yet they are not all in one place


def flood(begin_ns: Ns) -> list[LlmRequest]:
    """Another session, bound by a prefix to where session 0 is; then long prompts without pause."""
    first = msgspec.structs.replace(turn(0, 3, begin_ns), id=RequestId("req-f0"), session="flood")
    rest = [
        msgspec.structs.replace(
            request(f"req-f{place}", 2000, 2, begin_ns + place * 50 * NS_PER_MS, family=100 + place), session="flood"
        )
        for place in range(1, 20)
    ]
    return [first, *rest]


def test_a_real_gain_moves_a_session_once() -> None:  # SPEC A4
    turns = [turn(0, number, NS_PER_MS + number * GAP_NS) for number in range(TURNS)]
    assert moves(places(run(sticky(), turns), 0)) == 0
    # Session 0 has been where it is for longer than the dwell; the flood has just come and must stay.
    crowd = flood(4 * GAP_NS)
    ran = run(sticky(margin_s=0.02, dwell_s=1.2), sorted([*turns, *crowd], key=lambda item: item.arrived_ns))
    went = places(ran, 0)
    assert moves(went) == 1
    assert moves(went[:4]) == 0
