"""Which machine sees which event: FrontNode and ControlNode; no load condition stands here (`worker_nodes.py`)."""

from collections.abc import Sequence

import msgspec

from headway.core.decisions import Explanation
from headway.core.effects import Effect, Record, Send
from headway.core.events import (
    ClientGone,
    Event,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerStarting,
    RequestArrived,
    StreamClosed,
    TextStopped,
    TimerFired,
)
from headway.core.ids import ModelId, NodeId, RequestId
from headway.core.ledger import Ledger
from headway.core.messages import (
    Accepted,
    Artifacts,
    Begun,
    Finished,
    Holding,
    Probed,
    Progress,
    Refused,
    Report,
    Reserved,
    TakeOver,
    Tokens,
    WhatDoYouHold,
)
from headway.core.reports import PoolFigures, PrefixFigures, ReplicaFigures
from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.admission.purse import Purse
from headway.sched.admission.queue import GlobalQueue
from headway.sched.admission.quota import Allowance, Quotas
from headway.sched.book import Book
from headway.sched.book import Limits as FrontLimits
from headway.sched.config import FrontConfig as FrontConfig
from headway.sched.config import Membership as Membership
from headway.sched.config import WorkerConfig as WorkerConfig
from headway.sched.config import wholes as wholes
from headway.sched.control_node import ControlNode as ControlNode
from headway.sched.dispatch import Dispatcher
from headway.sched.figures import figures_of
from headway.sched.fleet.guard import Guard
from headway.sched.fleet.hedge import Hedging
from headway.sched.fleet.retry import RetryBudget
from headway.sched.foresight import Foresight
from headway.sched.front import Front
from headway.sched.gate import Admissions, Ways
from headway.sched.policies import admission_policy, routing_policy
from headway.sched.router.machine import Choices, Router
from headway.sched.router.prefix_index import PrefixIndex
from headway.sched.scaling import SCALE_TIMER, ScalingWatch
from headway.sched.share_desk import ShareDesk
from headway.sched.watch import Watch
from headway.sched.worker_nodes import DiffusionNode as DiffusionNode
from headway.sched.worker_nodes import WorkerNode as WorkerNode


class FrontNode:
    """One per gateway process: admission, router, global queue, owners and token cursors."""

    def __init__(self, node: NodeId, config: FrontConfig, control: NodeId | None = None, fronts: int = 1) -> None:
        """`control` lends to `fronts` of them what they may use; None: this one has everything."""
        self._id = node
        self._out: list[Effect] = []
        purse = None if control is None else Purse(wholes(config, fronts))
        quotas: Allowance = purse or Quotas(config.quotas, config.quota_default)
        limits = FrontLimits(config.in_flight_max, config.stream_bytes_max, config.stream_bytes_per_token)
        self.book = Book(node, limits, quotas, Foresight(config.output_length))
        own = {ModelId(m): routing_policy(route.router) for m, route in config.routes.items() if route.router}
        choices = Choices(routing_policy(config.router), own)
        self.guard = Guard(config.health, config.breaker, self._out)
        self.router = Router(choices, config.pools, config.room, PrefixIndex(config.prefix_index), self.guard)
        guards = {ModelId(m): admission_policy(r.admission) for m, r in config.routes.items() if r.admission}
        admissions = Admissions(admission_policy(config.admission), guards, _ways(config))
        hedging = None if config.hedge is None else Hedging(config.hedge)
        queue, patience = GlobalQueue(config.queue), config.patience
        self.watch = Watch(self.guard, RetryBudget(config.retry), hedging, patience.silence, self._out)
        self.dispatch = Dispatcher(self.router, admissions, queue, self.watch, patience, self._out)
        self.front = Front(self.book, self.dispatch, patience, self._out)
        self._scaling = None
        if config.scaling is not None:
            self._scaling = ScalingWatch(config.scaling, self.book, self.router, queue, config.pools, self._out)
        self.desk = None
        if purse is not None and control is not None:
            self.desk = ShareDesk(purse, control, self._arrived, self._out)
        self._questions = 0

    @property
    def id(self) -> NodeId:
        """Its node id."""
        return self._id

    @property
    def ledger(self) -> Ledger:
        """Its accounts."""
        return self.book.ledger

    def prefix_figures(self) -> Sequence[PrefixFigures]:
        """Predicted against reported cached tokens, per model."""
        return self.router.tally.figures()

    def pool_figures(self) -> Sequence[PoolFigures]:
        """What every pool should have, as of the last look."""
        return () if self._scaling is None else self._scaling.figures

    def replica_figures(self, at_ns: Ns) -> Sequence[ReplicaFigures]:
        """The replicas that are there, as this front sees them."""
        return [figures_of(replica, self.guard, at_ns) for replica in self.router.replicas.values()]

    def explain(self, request: Request, at_ns: Ns) -> Explanation:
        """Where a request would go now, and whether it would be let in. A query."""
        foresight = self.book.foresight
        explained = self.dispatch.gate.explain(foresight.foreseen(request), at_ns)
        return msgspec.structs.replace(explained, output_tokens_likely=foresight.likely(request))

    def recovery_figures(self) -> Sequence[tuple[str, int]]:
        """What failed and how that was met, counted since the start."""
        counts = self.front.recovery.counts
        return [*counts.items(), ("breaker_opened", self.guard.openings), ("health_down", self.guard.downs)]

    def handle(self, event: Event) -> list[Effect]:
        """Fold in one event and return what must be done."""
        if self.desk is None or not self.desk.took(event):
            self._fold(event)
        if self.desk is not None:
            self.desk.after(event.at_ns)
        effects = list(self._out)
        self._out.clear()
        return effects

    def _fold(self, event: Event) -> None:
        front, at_ns = self.front, event.at_ns
        if type(event) is MessageArrived:  # most events are
            self._message(event)
            return
        match event:
            case RequestArrived():
                self._arrived(event)
            case TimerFired(timer=timer) if timer == SCALE_TIMER and self._scaling is not None:
                self._scaling.look(at_ns)
            case ClientGone():
                front.client_gone(event)
            case TextStopped():
                front.text_stopped(event)
            case StreamClosed():
                front.stream_closed(event)
            case TimerFired():
                front.timer(event.timer, at_ns)
            case PeerJoined():
                self._joined(event)
            case PeerStarting():
                self.front.stranded.starting(event)
            case PeerLost():
                self.front.stranded.over(event.node, event.incarnation)
                if self.router.lose(event.node, event.incarnation, at_ns):
                    self._lost(event.node, at_ns)
            case _:
                pass  # events of other roles

    # Beats that are told late (`sched/beats.py`)

    def beats_due(self, replica: NodeId) -> int | None:
        """How many beats of a replica from now something here depends on the time; None: not on those of its rows."""
        return self.book.chorus.beats_due(replica)

    @property
    def wants_reports(self) -> bool:
        """A report may let something happen here, or each of them teaches something."""
        return bool(len(self.dispatch.queue)) or self.dispatch.gate.looks_ahead

    def reads(self, event: Event) -> Sequence[NodeId] | None:
        """Replicas whose beats must be counted up to now before this event is handled; None: all."""
        match event:
            case MessageArrived(src=src, message=Tokens() | Finished() | Refused()):
                return (src,)
            case RequestArrived():
                return None if self.dispatch.gate.looks_ahead else ()
            case StreamClosed() | PeerStarting() | MessageArrived(message=Report() | Accepted()):
                return ()
            case ClientGone() | TextStopped():
                return self._owner(event.request)
            case TimerFired(timer=timer) if timer.startswith(("ttft:", "deadline:", "close:", "full:", "replica:")):
                return self._owner(RequestId(timer.partition(":")[2]))
            case _:
                return None

    def _owner(self, request: RequestId) -> Sequence[NodeId]:
        tracked = self.book.requests.get(request)
        return () if tracked is None or tracked.owner is None else (tracked.owner,)

    def _arrived(self, event: RequestArrived) -> None:
        self.front.arrived(event)
        if self._scaling is not None:
            self._scaling.arrived(event.request, event.at_ns)

    def _message(self, event: MessageArrived) -> None:
        front, src, message, at_ns = self.front, event.src, event.message, event.at_ns
        heard = self.watch.heard
        if at_ns > heard.get(src, 0):  # beats are told late
            heard[src] = at_ns
        if type(message) is Tokens:
            front.streaming.tokens(src, message, at_ns)
            return  # the steady state: nothing else can change
        match message:
            case Progress() | Artifacts():
                front.pictures.heard(src, message, at_ns)
                return
            case Begun():
                front.streaming.begun(src, message, at_ns)
            case Finished():
                front.finished(src, message, at_ns)
            case Report():
                self.router.hear(message.report, at_ns, message.earlier)
                if self.dispatch.gate.looks_ahead:
                    self.dispatch.gate.flights.heard(message.report, at_ns)
                self._out.extend(Record(decision) for decision in message.decisions)
                front.moving.heard(src, message.report, at_ns)
            case Refused():
                front.refused(src, message, at_ns)
            case Reserved():
                front.reserved(src, message, at_ns)
            case TakeOver():
                front.ownership.asked(src, message, at_ns)
            case Holding():
                front.holding(src, message)
            case Probed():
                self.guard.probed(src, message.ok, message.reason, at_ns)
            case _:
                return  # Accepted: nothing depends on it
        self.dispatch.pump_all(at_ns)

    def _joined(self, event: PeerJoined) -> None:
        known = self.router.replicas.get(event.node)
        if known is not None and known.incarnation < event.incarnation:  # its loss was never told
            self.router.lose(event.node, known.incarnation, event.at_ns)
            self._lost(event.node, event.at_ns)
        self.front.stranded.over(event.node, event.incarnation)
        if self.router.join(event.node, event.incarnation, event.at_ns):
            self.guard.joined(event.node)
            self._questions += 1
            self._out.append(Send(event.node, WhatDoYouHold(self._questions)))

    def _lost(self, node: NodeId, at_ns: Ns) -> None:
        self.guard.left(node)
        self.dispatch.gate.flights.left(node)
        self.watch.heard.pop(node, None)
        self.front.lost(node, at_ns)
        self.dispatch.pump_all(at_ns)

    def check_invariants(self) -> None:
        """Raise InvariantError unless accounts, owners and the queue agree."""
        self.book.check()
        self.router.check()
        self.dispatch.check()


def _ways(config: FrontConfig) -> dict[ModelId, Ways]:
    """Where admission may send what it refuses, by model."""
    return {
        ModelId(model): Ways(tuple(map(ModelId, route.transfers_to)), tuple(map(ModelId, route.fallbacks)))
        for model, route in config.routes.items()
        if route.transfers_to or route.fallbacks
    }
