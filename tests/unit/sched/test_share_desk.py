"""A request of one of several fronts waits until the lender has answered, and is in nobody's account meanwhile."""

from headway.core.effects import Effect, End, Send, WakeAt
from headway.core.events import ClientGone, Event, MessageArrived, RequestArrived, StreamClosed, TimerFired
from headway.core.ids import ModelId, NodeId, RequestId, TenantId, TimerId
from headway.core.messages import Message, Share, Stated
from headway.core.request import FinishReason, TextRequest
from headway.core.units import NS_PER_MS, Ns
from headway.sched.admission.quota import Quota
from headway.sched.config import FrontConfig, wholes
from headway.sched.nodes import ControlNode, FrontNode
from headway.sched.share_desk import PATIENCE_NS, STATE_NS, STATE_TIMER

FRONT, CONTROL = NodeId("node-front-1"), NodeId("node-control")
CONFIG = FrontConfig(in_flight_max=100, quotas={"t": Quota(concurrent=1)})
MS: Ns = NS_PER_MS


class Pair:
    """One front and the lender, with the messages between them carried by hand."""

    def __init__(self) -> None:
        self.front = FrontNode(FRONT, CONFIG, CONTROL, 2)
        self.control = ControlNode(CONTROL, None, wholes(CONFIG, 2))

    def arrive(self, name: str, at_ns: Ns = 0) -> list[Effect]:
        request = TextRequest(RequestId(name), TenantId("t"), ModelId("m"), 10, 10, at_ns)
        return self.front.handle(RequestArrived(at_ns, "edge", request, at_ns, at_ns))

    def lend(self, effects: list[Effect], at_ns: Ns) -> Share:
        (share,) = messages(self.control.handle(message(at_ns, FRONT, stated(effects))))
        assert isinstance(share, Share)
        return share

    def hear(self, share: Share, at_ns: Ns) -> list[Effect]:
        return self.front.handle(message(at_ns, CONTROL, share))


def message(at_ns: Ns, src: NodeId, what: Message) -> Event:
    return MessageArrived(at_ns, str(src), src, what)


def messages(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def stated(effects: list[Effect]) -> Stated:
    (found,) = [one for one in messages(effects) if isinstance(one, Stated)]
    return found


def ends(effects: list[Effect]) -> list[tuple[FinishReason, str | None]]:
    found = [effect for effect in effects if isinstance(effect, End)]
    return [(end.reason, None if end.error is None else end.error.code) for end in found]


def test_a_request_waits_for_the_lender_and_then_arrives() -> None:
    pair = Pair()
    asked = pair.arrive("req-1")
    assert not pair.front.book.requests
    assert stated(asked).wants == (("concurrent/t", 1),)
    pair.hear(pair.lend(asked, 1 * MS), 2 * MS)
    assert pair.front.book.requests[RequestId("req-1")].arrival.at_ns == 2 * MS


def test_a_second_one_over_the_limit_is_refused_by_what_the_lender_says() -> None:
    pair = Pair()
    pair.hear(pair.lend(pair.arrive("req-1"), 1 * MS), 2 * MS)
    refused = pair.hear(pair.lend(pair.arrive("req-2", 3 * MS), 4 * MS), 5 * MS)
    assert ends(refused) == [(FinishReason.REJECTED, "rate_limited")]
    # The next one of a flood is refused without asking again.
    assert ends(pair.arrive("req-3", 6 * MS)) == [(FinishReason.REJECTED, "rate_limited")]


def test_a_client_that_leaves_while_its_request_waits_leaves_nothing_behind() -> None:
    pair = Pair()
    share = pair.lend(pair.arrive("req-1"), 1 * MS)
    pair.front.handle(ClientGone(2 * MS, "edge", RequestId("req-1")))
    pair.front.handle(StreamClosed(2 * MS, "edge", RequestId("req-1"), None, 0))
    pair.hear(share, 3 * MS)
    assert not pair.front.book.requests
    assert pair.front.desk is not None
    assert len(pair.front.desk) == 0
    pair.front.check_invariants()
    given_back = pair.front.handle(TimerFired(STATE_NS, STATE_TIMER, STATE_TIMER))
    later = pair.front.handle(TimerFired(2 * STATE_NS, STATE_TIMER, STATE_TIMER))
    for effects in (given_back, later):
        for one in messages(effects):
            pair.control.handle(message(2 * STATE_NS, FRONT, one))
    assert pair.control.shares.lent("concurrent/t", 2 * STATE_NS) == 0


def test_a_silent_lender_costs_a_refusal_and_no_hang() -> None:
    pair = Pair()
    asked = pair.arrive("req-1")
    due = TimerId("share:req-1")
    assert WakeAt(PATIENCE_NS, due) in asked
    refused = pair.front.handle(TimerFired(PATIENCE_NS, due, due))
    assert ends(refused) == [(FinishReason.REJECTED, "rate_limited")]


def test_a_slot_of_a_small_limit_is_given_back_with_the_end_of_the_answer() -> None:
    pair = Pair()
    pair.hear(pair.lend(pair.arrive("req-1"), 1 * MS), 2 * MS)
    pair.front.handle(ClientGone(3 * MS, "edge", RequestId("req-1")))
    closed = pair.front.handle(StreamClosed(4 * MS, "edge", RequestId("req-1"), None, 0))
    assert dict(stated(closed).held)["concurrent/t"] == 0


def test_one_front_alone_asks_nobody() -> None:
    front = FrontNode(FRONT, CONFIG)
    request = TextRequest(RequestId("req-1"), TenantId("t"), ModelId("m"), 10, 10, 0)
    assert not messages(front.handle(RequestArrived(0, "edge", request, 0, 0)))
    assert front.book.quotas.limits(TenantId("t"), 0) is not None
