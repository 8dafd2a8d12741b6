"""Routes messages between the nodes of this process and the replicas behind their sockets, FIFO per pair."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from headway.core.events import Event, MessageArrived, PeerJoined, PeerLost, PeerStarting, Proposal, Proposals
from headway.core.ids import GroupId, ModelId, NodeId
from headway.core.messages import Message
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.gather import Gatherer
from headway.live.wire import Blocks, Envelope, Frame, Gather, Gathered, Joined, Lost, News, WireError
from headway.sched.runtime.group import GENERATION_BITS

log = logging.getLogger(__name__)


class Peer(Protocol):
    """The sending side of a connection (`wire.Link`)."""

    def send(self, frame: Frame) -> None: ...


class _Remote(msgspec.Struct):
    peer: Peer
    incarnation: int


Feed = Callable[[Callable[[Ns], Event]], None]


class Hub:
    """Knows where every node is. A message to a node that is gone is dropped: its loss was reported."""

    def __init__(
        self,
        clock: Clock,
        groups: Mapping[GroupId, Sequence[NodeId]],
        silent: Callable[[NodeId, str], None],
        heard: Callable[[NodeId, Message], None],
    ) -> None:
        """`silent` is told of a member that let its group wait past the deadline; `heard` sees what replicas send to
        the nodes of this process."""
        loop = asyncio.get_running_loop()
        self._local: dict[NodeId, Feed] = {}
        self._remote: dict[NodeId, _Remote] = {}
        self.models: Mapping[NodeId, ModelId] = {}  # of the replicas
        self._starting: dict[NodeId, int] = {}  # and as which incarnation
        self._groups = {group: tuple(members) for group, members in groups.items()}
        self._silent, self.on_heard = silent, heard
        self._gatherer = Gatherer(self._groups, clock, loop.call_later, self._gathered, self._missing)

    def add_local(self, node: NodeId, feed: Feed) -> None:
        """A node of this process."""
        self._local[node] = feed

    def starting(self, node: NodeId, incarnation: int, doing: str) -> None:
        """A replica is not ready yet; the nodes of this process know that it comes, and what it does (`doing`)."""
        there = self._remote.get(node)
        if there is not None and there.incarnation >= incarnation:
            return
        self._starting[node] = incarnation
        model = self.models[node]
        for feed in self._local.values():
            feed(lambda at_ns: PeerStarting(at_ns, doing, node, incarnation, model))

    def join(self, node: NodeId, incarnation: int, peer: Peer) -> None:
        """A replica is ready: tell everybody, and tell it who else is there."""
        for other, known in self._remote.items():
            known.peer.send(Joined(node, incarnation))
            peer.send(Joined(other, known.incarnation))
        self._remote[node] = _Remote(peer, incarnation)
        self._starting.pop(node, None)
        for feed in self._local.values():
            feed(lambda at_ns: PeerJoined(at_ns, "ready", node, incarnation))

    def leave(self, node: NodeId, incarnation: int, reason: str) -> None:
        """A replica is gone: tell everybody who knew of it. Repeated or older news changes nothing."""
        known = self._remote.get(node)
        was_there = known is not None and known.incarnation == incarnation
        if not was_there and self._starting.get(node) != incarnation:
            return
        self._starting.pop(node, None)
        for feed in self._local.values():
            feed(lambda at_ns: PeerLost(at_ns, reason, node, incarnation))
        if not was_there:
            return
        del self._remote[node]
        self._gatherer.forget(node)
        for other in self._remote.values():
            other.peer.send(Lost(node, incarnation))

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Deliver one message."""
        if (feed := self._local.get(dst)) is not None:
            feed(lambda at_ns: MessageArrived(at_ns, str(src), src, message))
        elif (remote := self._remote.get(dst)) is not None:
            remote.peer.send(Envelope(src, dst, message))
        else:
            log.debug("%s to %s dropped: it is not there", type(message).__name__, dst)

    def receive(self, node: NodeId, frame: Envelope | Blocks | Gather | News) -> None:
        """A frame that a replica sent to others."""
        match frame:
            case Envelope():
                self.on_heard(node, frame.message)
                self.send(node, frame.dst, frame.message)
            case Blocks():
                if (remote := self._remote.get(frame.dst)) is not None:
                    remote.peer.send(frame)
            case Gather():
                if self._is_current(frame):
                    self._gatherer.propose(node, frame.group, frame.step, frame.proposal, frame.deadline_ns)
            case News():
                raise WireError(f"{node} sent a News, which only a gateway process sends")

    @property
    def open_gathers(self) -> int:
        """Group steps that wait for a member."""
        return self._gatherer.open

    def _is_current(self, frame: Gather) -> bool:
        """False for a proposal that was sent before its sender heard of a loss or a return: nobody will answer it."""
        members = [self._remote.get(member) for member in self._groups.get(frame.group, ())]
        generation = sum(0 if member is None else member.incarnation for member in members)
        return None not in members and frame.step >> GENERATION_BITS == generation

    def _gathered(self, group: GroupId, step: int, proposals: dict[NodeId, Proposal]) -> None:
        for member in self._groups[group]:
            if (remote := self._remote.get(member)) is not None:
                remote.peer.send(Gathered(group, step, proposals))

    def _missing(self, group: GroupId, step: int, members: list[NodeId]) -> None:
        for member in members:
            self._silent(member, f"{member} made no proposal for step {step} of group {group} in time")


def proposals_event(frame: Gathered) -> Callable[[Ns], Event]:
    """The event that a Gathered frame is for the node."""
    return lambda at_ns: Proposals(at_ns, f"{frame.group}/{frame.step}", frame.group, frame.step, frame.proposals)
