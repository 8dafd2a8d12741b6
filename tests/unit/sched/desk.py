"""A FrontNode alone: events in by hand, effects out."""

from typing import TypeVar

from tests.unit.sched.router.views import llm, report

from headway.core.effects import Deliver, Effect, End, Send, WakeAt
from headway.core.events import (
    Event,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerStarting,
    RequestArrived,
    StreamClosed,
    TimerFired,
)
from headway.core.evidence import WorkerMarks
from headway.core.ids import ModelId, NodeId, RequestId, TimerId
from headway.core.messages import Finished, Message, Report, Submit, Tokens
from headway.core.request import DiffusionRequest, FinishReason, LlmRequest
from headway.core.units import Ns
from headway.sched.nodes import FrontConfig, FrontNode

M = TypeVar("M")


class Desk:
    """Drives the node, checks its invariants after every event, and keeps all effects."""

    def __init__(self, config: FrontConfig | None = None, replicas: tuple[str, ...] = ("rep-a", "rep-b")) -> None:
        self.node = FrontNode(NodeId("front-0"), config or FrontConfig())
        self.now_ns: Ns = 0
        self.all: list[Effect] = []
        self.last: list[Effect] = []
        self.numbers = dict.fromkeys(replicas, 0)
        for replica in replicas:
            self.join(replica)

    def event(self, event: Event) -> list[Effect]:
        self.last = self.node.handle(event)
        self.node.check_invariants()
        self.all += self.last
        return self.last

    def join(self, replica: str, incarnation: int = 1) -> None:
        self.event(PeerJoined(self.now_ns, "t", NodeId(replica), incarnation))
        self.numbers[replica] = 0
        self.report(replica, incarnation=incarnation)

    def starting(self, replica: str, incarnation: int = 2, doing: str = "warm-up", model: str = "synthetic") -> None:
        self.event(PeerStarting(self.now_ns, doing, NodeId(replica), incarnation, ModelId(model)))

    def report(self, replica: str, **change: object) -> None:
        self.numbers[replica] += 1
        self.message(replica, Report(report(replica, self.numbers[replica], **change)))

    def lose(self, replica: str, incarnation: int = 1) -> None:
        self.event(PeerLost(self.now_ns, "t", NodeId(replica), incarnation))

    def message(self, src: str, message: Message) -> list[Effect]:
        return self.event(MessageArrived(self.now_ns, "t", NodeId(src), message))

    def arrive(self, request: LlmRequest | DiffusionRequest | str) -> list[Effect]:
        request = llm(request) if isinstance(request, str) else request
        return self.event(RequestArrived(self.now_ns, "t", request, self.now_ns, self.now_ns))

    def tokens(self, src: str, request: str, epoch: int, index: int, token: int) -> list[Effect]:
        cached = ((0, 3),) if index == 0 else ()
        return self.message(src, Tokens((RequestId(request),), (epoch,), (index,), (token,), step=1, cached=cached))

    def finish(
        self, src: str, request: str, epoch: int, count: int, reason: FinishReason = FinishReason.LENGTH
    ) -> None:
        marks = WorkerMarks(NodeId(src), 0, device_ns=5_000)
        self.message(src, Finished(RequestId(request), epoch, reason, count, marks))

    def close(self, request: str) -> list[Effect]:
        return self.event(StreamClosed(self.now_ns, "t", RequestId(request), None, 0))

    def fire(self, timer: str) -> list[Effect]:
        return self.event(TimerFired(self.now_ns, "t", TimerId(timer)))

    def sent(self, kind: type[M], effects: list[Effect] | None = None) -> list[tuple[str, M]]:
        chosen = self.last if effects is None else effects
        return [(e.dst, e.message) for e in chosen if isinstance(e, Send) and isinstance(e.message, kind)]

    def submits(self) -> list[tuple[str, Submit]]:
        return self.sent(Submit)

    def ends(self) -> list[End]:
        return [e for e in self.last if isinstance(e, End)]

    def delivered(self) -> list[int]:
        return [token for e in self.all if isinstance(e, Deliver) for token in e.tokens]

    def timers(self) -> list[str]:
        return [e.timer for e in self.last if isinstance(e, WakeAt)]

    def levels(self) -> dict[str, int]:
        return {a.name: a.reserved + a.used for a in self.node.ledger.views() if a.kind == "level"}
