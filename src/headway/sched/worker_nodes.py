"""Which machine of a replica sees which event: the LLM and the diffusion WorkerNode."""

from headway.core.effects import Effect, WakeAt
from headway.core.errors import ConfigError
from headway.core.events import (
    CopyArrived,
    CopyDone,
    DenoiseDone,
    Event,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Proposals,
    StepDone,
    StepFailed,
    StepsDone,
    TimerFired,
)
from headway.core.handover import PrefixAsk, PrefixSent
from headway.core.ids import NodeId, TimerId
from headway.core.messages import (
    Abort,
    Cancel,
    Commit,
    Drain,
    Handover,
    Migrate,
    MigrateReserve,
    MigrateReserved,
    Prepare,
    Reserve,
    ResetPrefixCache,
    Reshape,
    StageAck,
    StageSent,
    Submit,
    TakeOverAck,
    Undrain,
    WhatDoYouHold,
)
from headway.core.ports import ModelLimits
from headway.core.units import Ns, ns_from_ms, ns_from_s
from headway.sched.config import Membership, WorkerConfig
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.warming import Stock
from headway.sched.diffusion_worker import DiffusionWorker
from headway.sched.llm_port import LlmScheduler
from headway.sched.lockstep import POLL_TIMER, Lockstep
from headway.sched.policies import pace_policy
from headway.sched.reporter import REPORT_TIMER, Identity, Reporter
from headway.sched.runtime.group import Group, GroupParams
from headway.sched.step_watch import STUCK_TIMER
from headway.sched.transfers import Transfers
from headway.sched.worker import Limits as WorkerLimits
from headway.sched.worker import LlmWorker


class WorkerNode:
    """One LLM replica: its machine, step credits and reports."""

    def __init__(
        self,
        member: Membership,
        machine: LlmScheduler,
        limits: ModelLimits,
        config: WorkerConfig,
        group: GroupParams | None = None,
    ) -> None:
        self._id = member.node
        self._grace_ns = ns_from_s(config.orphan_grace_s)
        identity = Identity(member.node, member.incarnation, "llm", limits.model)
        interval_ns = ns_from_ms(config.report_interval_ms)
        reporter = Reporter(identity, member.listeners, interval_ns, member.report_slack_ns)
        own = WorkerLimits(limits.eos_token_ids, limits.kv_blocks, config.credits, config.failures_max)
        self.worker = LlmWorker(machine, own, pace_policy(config.pace), config.buckets, reporter)
        self.transfers = Transfers(self.worker, limits, config.transfer)
        self.lockstep: Lockstep | None = None
        self._pump = self.worker.pump
        if group is not None:
            if config.buckets.rows:
                raise ConfigError(
                    f"buckets.rows and group {group.group} exclude each other: ranks agree on the padding"
                )
            self.lockstep = Lockstep(self.worker, Group(group, member.node, member.incarnation))
            self._pump = self.lockstep.pump
        self._control = member.control
        self._peers: dict[NodeId, int] = {}  # incarnations
        self._lost: dict[NodeId, None] = {}

    @property
    def id(self) -> NodeId:
        """Its node id: the replica's."""
        return self._id

    def handle(self, event: Event) -> list[Effect]:
        """Fold in one event and return what must be done."""
        worker, at_ns = self.worker, event.at_ns
        if type(event) is StepDone:  # most events are
            plan = worker.step_done(event)
            if plan is not None:
                self.transfers.departures.folded(plan)
        elif type(event) is StepsDone:  # nothing is planned, and a timer asks for the report
            worker.step_done(event)
            effects, worker.out = worker.out, []
            return effects
        else:
            self._fold(event)
        self.transfers.settle(at_ns)
        self._pump(at_ns)
        worker.collect_decisions()
        worker.report(at_ns)
        effects, worker.out = worker.out, []
        return effects

    @property
    def is_plain(self) -> bool:
        """Open are as many steps as may be, and until something comes in nothing but decode steps will be planned, nor
        a report be due but by its timer."""
        worker = self.worker
        return (
            worker.machine.is_steady
            and worker.reporter.is_timer_set
            and worker.pace.is_prompt
            and not worker.has_credit
            and self.transfers.is_idle
            and self.lockstep is None
        )

    def _fold(self, event: Event) -> None:
        worker = self.worker
        match event:
            case MessageArrived():
                self._message(event)
            case CopyDone():
                self.transfers.copy_done(event)
            case CopyArrived():
                self.transfers.copy_arrived(event)
            case StepFailed():
                is_open = event.step in worker.open
                proposed = self.lockstep.take_back() if is_open and self.lockstep is not None else None
                if worker.step_failed(event, proposed):
                    self.transfers.voided()
            case TimerFired():
                self._timer(event, event.timer, event.at_ns)
            case PeerJoined():
                self._joined(event)
            case PeerLost():
                self._peer_lost(event)
            case Proposals() if self.lockstep is not None:
                self.lockstep.heard(event)
            case _:
                pass  # events of other roles

    def _message(self, event: MessageArrived) -> None:
        worker, transfers = self.worker, self.transfers
        src, message, at_ns = event.src, event.message, event.at_ns
        match message:
            case Submit():
                before = worker.by_request.get(message.request.id)
                worker.submit(src, message, at_ns)
                transfers.departures.submitted(message)
                is_taken = worker.by_request.get(message.request.id) is not before
                if message.pull is not None and is_taken and message.pull.source not in self._lost:
                    transfers.pulls.submitted(message, at_ns)
            case Cancel():
                if not worker.cancel(message, at_ns):
                    transfers.arrivals.cancelled(message)
            case Reserve():
                transfers.arrivals.reserve(src, message, at_ns)
            case Migrate():
                transfers.departures.migrate(src, message)
            case MigrateReserve():
                transfers.arrivals.migrate_reserve(src, message, at_ns)
            case MigrateReserved() | StageSent() | StageAck() | Handover() | Commit():
                transfers.peer(message)
            case PrefixAsk() | PrefixSent():
                transfers.pull(src, message, at_ns)
            case Abort():
                transfers.aborted(src, message, at_ns)
            case TakeOverAck():
                transfers.answered(message, at_ns)
            case WhatDoYouHold():
                worker.holding(src, message, everything=src == self._control)
            case ResetPrefixCache():
                worker.machine.reset_prefix_cache()
                transfers.pulls.voided()
                worker.reporter.changed()
            case Drain() | Undrain():
                worker.is_draining = isinstance(message, Drain)
                worker.reporter.changed()
            case _:
                pass

    def _joined(self, event: PeerJoined) -> None:
        known = self._peers.get(event.node)
        if known is not None and known < event.incarnation and event.node not in self._lost:  # its loss was never told
            self._peer_lost(PeerLost(event.at_ns, event.cause, event.node, known))
        self._peers[event.node] = max(event.incarnation, known or 0)
        self._lost.pop(event.node, None)
        self.worker.reporter.greet()
        if self.lockstep is not None:
            self.lockstep.joined(event)

    def _peer_lost(self, event: PeerLost) -> None:
        if event.incarnation < self._peers.get(event.node, 0):
            return  # an older life of a peer that is back
        self._lost[event.node] = None
        self.transfers.peer_lost(event.node, event.at_ns)
        if self.lockstep is not None and self.lockstep.lost(event):
            self.transfers.voided()
        self.worker.out.append(WakeAt(event.at_ns + self._grace_ns, TimerId(f"orphans:{event.node}")))

    def _timer(self, event: TimerFired, timer: TimerId, at_ns: Ns) -> None:
        if timer == REPORT_TIMER:
            self.worker.reporter.woke(event.earlier)
        elif timer == POLL_TIMER:
            if self.lockstep is not None:
                self.lockstep.woke()
        elif timer.startswith("orphans:"):
            front = NodeId(timer.partition(":")[2])
            if front in self._lost:
                self.worker.orphaned(front, at_ns)
        else:
            self.transfers.timer(timer, at_ns)

    def check_invariants(self) -> None:
        """Raise InvariantError unless stays and machine agree."""
        self.worker.check()
        self.worker.machine.check_invariants()


class DiffusionNode:
    """One diffusion replica: its machine, progress and reports."""

    def __init__(
        self,
        member: Membership,
        machine: DiffusionMachine,
        model: str,
        config: WorkerConfig,
        stock: Stock | None = None,
    ) -> None:
        """`stock`: the shapes of its model, those of other pools included."""
        self._id, stock = member.node, stock or Stock()
        identity = Identity(member.node, member.incarnation, "diffusion", model, stock.abilities)
        reporter = Reporter(identity, member.listeners, ns_from_ms(config.report_interval_ms))
        self.worker = DiffusionWorker(machine, reporter, stock)

    @property
    def id(self) -> NodeId:
        """Its node id: the replica's."""
        return self._id

    def handle(self, event: Event) -> list[Effect]:
        """Fold in one event and return what must be done."""
        worker, at_ns = self.worker, event.at_ns
        match event:
            case DenoiseDone():
                worker.step_done(event)
            case StepFailed():
                worker.step_failed(event)
            case MessageArrived(src=src, message=message):
                match message:
                    case Submit():
                        worker.submit(src, message, at_ns)
                    case Cancel():
                        worker.cancel(message, at_ns)
                    case WhatDoYouHold():
                        worker.holding(src, message)
                    case Drain() | Undrain():
                        worker.is_draining = isinstance(message, Drain)
                    case Prepare():
                        worker.reshaping.prepare(message.shapes, message.batches)
                    case Reshape():
                        worker.reshaping.ask(src, message)
                    case _:
                        pass
            case TimerFired(timer=timer) if timer == REPORT_TIMER:
                worker.reporter.woke()
            case TimerFired(timer=timer) if timer == STUCK_TIMER:
                worker.look(at_ns)
            case PeerJoined():
                worker.reporter.greet()
            case PeerLost():
                worker.orphaned(event.node)
            case _:
                pass
        worker.pump(at_ns)
        worker.collect_decisions()
        worker.report(at_ns)
        effects = list(worker.out)
        worker.out.clear()
        return effects

    def check_invariants(self) -> None:
        """Raise InvariantError when the machine is wrong about itself."""
        self.worker.machine.check_invariants()
