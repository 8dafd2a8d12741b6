"""The further gateway processes as the main one sees them: links to their nodes, and what they tell.

Their decisions and evidence are taken in as if they had been made here, so that what operators read covers every
process. Each of them watches the upstreams itself: a scrape more per process and interval, and no front depends on
what another one saw.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headway.adapters.gateway.caller import Remembered
from headway.core.decisions import Decision
from headway.core.events import Event, PeerJoined, PeerLost
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId
from headway.core.ledger import AccountView
from headway.core.messages import Drain, Message, Undrain
from headway.core.reports import GarbageFigures
from headway.core.request import TextRequest
from headway.core.units import Ns
from headway.live.wire import Blocks, Envelope, Frame, Gather, News, Phase, Ready, StepSpan, WireError

Tell = Callable[[NodeId, str], None]


class Peer(Protocol):
    """The sending side of a link."""

    def send(self, frame: Frame) -> None: ...


class MainHub(Protocol):
    """How this process's own nodes are reached (`hub.Hub`)."""

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None: ...


class Reader(Protocol):
    """Who keeps what happened, for operators (`records.Records`)."""

    def decided(self, origin: str, decision: Decision) -> None: ...

    def ended(self, record: EvidenceRecord, request: TextRequest | None) -> None: ...

    def forget(self, request: RequestId) -> None: ...


class Edge(Protocol):
    """Who counts what passes by the application (`gateway.app.Gateway`)."""

    def remember(self, public_id: str, entry: Remembered) -> None: ...

    def refused(self) -> None: ...

    def count(self, model: str, prompt: int, output: int) -> None: ...


class FrontsView(msgspec.Struct, frozen=True):
    """All further processes together."""

    waiting: int = 0
    in_flight: int = 0
    accounts: tuple[tuple[AccountView, Ns], ...] = ()  # and when they were so
    recoveries: tuple[tuple[str, int], ...] = ()


class Fronts:
    """Told by their supervisor (`FleetWatcher`, `Switch`); carries the control node's messages (`driver.Outlet`)."""

    def __init__(self, hub: MainHub, control: Callable[[Callable[[Ns], Event]], None], reader: Reader) -> None:
        """`control` feeds the control node."""
        self._hub, self._control, self._reader = hub, control, reader
        self.edge: Edge | None = None  # once HTTP is up
        self._peers: dict[NodeId, Peer] = {}
        self._news: dict[NodeId, News] = {}  # the last of each
        self._open: dict[NodeId, dict[RequestId, None]] = {}  # whose evidence is still to come
        self._recovered: dict[str, int] = {}  # by those that are lost
        self._spent: dict[tuple[str, str], tuple[AccountView, Ns]] = {}  # meters of those that are lost never fall
        self._drained: dict[NodeId, Message] = {}
        self.tell: Tell = _unheard

    # Outlet of the control node

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Deliver one message; an upstream has a node in every process."""
        if (peer := self._peers.get(dst)) is not None:
            peer.send(Envelope(src, dst, message))
            return
        self._hub.send(src, dst, message)
        if isinstance(message, Drain):
            self._drained[dst] = message
        elif isinstance(message, Undrain):
            self._drained.pop(dst, None)
        else:
            return
        for peer in self._peers.values():
            peer.send(Envelope(src, dst, message))

    # Switch

    def starting(self, node: NodeId, incarnation: int, doing: str) -> None:
        """Nobody waits for one: the others answer meanwhile."""

    def join(self, node: NodeId, incarnation: int, peer: Peer) -> None:
        """A process serves."""
        self._peers[node] = peer
        for replica, message in self._drained.items():
            peer.send(Envelope(node, replica, message))
        self._control(lambda at_ns: PeerJoined(at_ns, "ready", node, incarnation))

    def leave(self, node: NodeId, incarnation: int, reason: str) -> None:
        """A process is gone, with the evidence of what was open there."""
        self._peers.pop(node, None)
        for request in self._open.pop(node, {}):
            self._reader.forget(request)
        news = self._news.pop(node, None)
        for what, count in () if news is None else news.recoveries:
            self._recovered[what] = self._recovered.get(what, 0) + count
        if news is not None:
            self._keep(news)
        self._control(lambda at_ns: PeerLost(at_ns, reason, node, incarnation))

    def _keep(self, last: News) -> None:
        for view in last.accounts:
            if view.kind == "meter":
                key = (f"{view.owner} (lost)", view.name)
                before = self._spent[key][0].used if key in self._spent else 0
                kept = msgspec.structs.replace(view, owner=key[0], reserved=0, used=before + view.used)
                self._spent[key] = (kept, last.at_ns)

    def receive(self, node: NodeId, frame: Envelope | Blocks | Gather | News) -> None:
        """What a process sent."""
        match frame:
            case Envelope():
                self._hub.send(node, frame.dst, frame.message)
            case News():
                self._heard(node, frame)
            case _:
                raise WireError(f"{node} sent a {type(frame).__name__}, which only a replica sends")

    def _heard(self, node: NodeId, news: News) -> None:
        self._news[node] = news
        still_open = self._open.setdefault(node, {})
        still_open.update(dict.fromkeys(one.request for one in news.named))
        if self.edge is not None:
            for one in news.named:
                self.edge.remember(one.public_id, Remembered(one.tenant, (one.request,), one.trace_id))
            for model, prompt, output in news.tokens:
                self.edge.count(model, prompt, output)
            for _ in range(news.refused):
                self.edge.refused()
        for decision in news.decisions:
            self._reader.decided(str(node), decision)
        for record, request in news.ended:
            still_open.pop(record.request, None)
            self._reader.ended(record, request)

    # FleetWatcher

    def phase(self, node: NodeId, phase: Phase) -> None:
        """They load nothing."""
        raise WireError(f"{node} sent a phase of loading ({phase.name}), which only a replica sends")

    def joined(self, node: NodeId, incarnation: int, _: Ready) -> None:
        """It serves."""
        self.tell(node, "serves" if incarnation == 1 else f"serves again (incarnation {incarnation})")

    def lost(self, node: NodeId, incarnation: int, reason: str) -> None:
        """It is gone."""
        self.tell(node, f"lost (incarnation {incarnation}): {reason}")

    def spans(self, node: NodeId, steps: Sequence[StepSpan]) -> None:
        """They have no engine."""
        raise WireError(f"{node} sent {len(steps)} steps, which only a replica sends")

    def garbage(self, node: NodeId, _: GarbageFigures) -> None:
        """They do not tell."""
        raise WireError(f"{node} told of its garbage collector, which only a replica does")

    # For operators

    def view(self) -> FrontsView:
        """How they stand."""
        counts = dict(self._recovered)
        for news in self._news.values():
            for what, count in news.recoveries:
                counts[what] = counts.get(what, 0) + count
        return FrontsView(
            sum(news.waiting for news in self._news.values()),
            sum(news.in_flight for news in self._news.values()),
            (*((view, news.at_ns) for news in self._news.values() for view in news.accounts), *self._spent.values()),
            tuple(counts.items()),
        )


def _unheard(_node: NodeId, _what: str) -> None:
    """Nobody asked to be told."""
