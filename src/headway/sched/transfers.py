"""Hand-off and migration at a WorkerNode: gives each message to the side that it concerns."""

from typing import Final

from headway.core.effects import Send
from headway.core.events import CopyArrived, CopyDone
from headway.core.handover import PrefixAsk, PrefixSent
from headway.core.ids import NodeId, TimerId, TransferId
from headway.core.messages import (
    Abort,
    Commit,
    Handover,
    MigrateReserved,
    StageAck,
    StageSent,
    TakeOverAck,
)
from headway.core.ports import ModelLimits
from headway.core.units import Ns
from headway.sched.arrivals import Arrivals
from headway.sched.departures import Departures
from headway.sched.pulls import TIMER as PULL
from headway.sched.pulls import Pulls
from headway.sched.transfer.outgoing import TransferParams
from headway.sched.worker import LlmWorker

GONE: Final = "unknown here"


class Transfers:
    """Every transfer in which this replica takes part."""

    def __init__(self, worker: LlmWorker, limits: ModelLimits, params: TransferParams) -> None:
        self.departures = Departures(worker, limits, params)
        self.arrivals = Arrivals(worker, limits, params)
        self.pulls = Pulls(worker, limits, params)
        self._worker = worker

    def settle(self, at_ns: Ns) -> None:
        """After any event: start and end what can be."""
        if not self.departures.is_idle:
            self.departures.settle(at_ns)
        if self.arrivals.open:
            self.arrivals.settle(at_ns)

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way that steps must wait for, and nothing is held for it."""
        return self.departures.is_idle and not self.arrivals.open

    def pull(self, src: NodeId, message: PrefixAsk | PrefixSent, at_ns: Ns) -> None:
        """One message of a prefix pull."""
        if isinstance(message, PrefixAsk):
            self.pulls.asked(src, message)
        else:
            self.pulls.sent(message, at_ns)

    def copy_done(self, event: CopyDone) -> None:
        """A copy has left this node, or was stopped."""
        self.departures.copy_done(event)
        self.pulls.copy_done(event)

    def copy_arrived(self, event: CopyArrived) -> None:
        """A copy is readable here."""
        self.arrivals.copy_arrived(event)
        self.pulls.copy_arrived(event)

    def aborted(self, src: NodeId, message: Abort, at_ns: Ns) -> None:
        """The other side of any transfer gives up. What is not known here is answered, so that it may forget it too."""
        if not self.pulls.aborted(message, at_ns):
            self._aborted(src, message)

    def peer(self, message: MigrateReserved | StageSent | StageAck | Handover | Commit) -> None:
        """One message of the protocol between source and destination. What is not known here is ignored."""
        match message:
            case MigrateReserved():
                self.departures.reserved(message)
            case StageAck():
                self.departures.acknowledged(message)
            case StageSent():
                self.arrivals.sent(message)
            case Handover() | Commit():
                self.arrivals.handed(message)

    def _aborted(self, src: NodeId, message: Abort) -> None:
        incoming = self.arrivals.open.get(message.transfer)
        if incoming is not None:
            self.arrivals.aborted(incoming)
        elif not self.departures.cancelled_there(message.transfer, message.reason) and message.reason != GONE:
            self._worker.out.append(Send(src, Abort(message.transfer, GONE)))

    def answered(self, message: TakeOverAck, at_ns: Ns) -> None:
        """The front's answer goes to both sides."""
        incoming = self.arrivals.open.get(message.transfer)
        outgoing = self.departures.open.get(message.transfer)
        if incoming is not None:
            self.arrivals.answered(incoming, message.accepted, at_ns)
        elif message.accepted:
            self.departures.taken_over(message.request, message.epoch, message.transfer)
        elif outgoing is not None:
            self.departures.give_up(outgoing, "the front refused")

    def timer(self, timer: TimerId, at_ns: Ns) -> None:
        """A transfer may have stood still too long."""
        side, _, transfer = timer.partition(":")
        if side == "out":
            self.departures.late(TransferId(transfer), at_ns)
        elif side == "in":
            self.arrivals.late(TransferId(transfer), at_ns)
        elif side == PULL:
            self.pulls.late(TransferId(transfer), at_ns)

    def peer_lost(self, node: NodeId, at_ns: Ns) -> None:
        """The other side is gone: what the front has not accepted stays where it was."""
        self.departures.peer_lost(node)
        self.arrivals.peer_lost(node)
        self.pulls.peer_lost(node, at_ns)

    def voided(self) -> None:
        """The engine failed: no KV here can be trusted."""
        self.departures.voided()
        self.arrivals.voided()
        self.pulls.voided()
