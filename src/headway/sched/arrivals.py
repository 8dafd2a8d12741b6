"""The destination side of hand-off and migration at a WorkerNode: which requests are on their way to this replica."""

from headway.core.decisions import Decision
from headway.core.effects import Send
from headway.core.errors import CapacityError
from headway.core.events import CopyArrived
from headway.core.ids import NodeId, TransferId
from headway.core.messages import (
    Cancel,
    Commit,
    Handover,
    MigrateReserve,
    MigrateReserved,
    Refused,
    Reserve,
    Reserved,
    StageSent,
)
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest
from headway.core.units import Ns, ns_from_s
from headway.sched.stays import Stay
from headway.sched.transfer.incoming import Incoming, Origin, Patience, Stage
from headway.sched.transfer.outgoing import TransferParams
from headway.sched.worker import LlmWorker


class Arrivals:
    """Transfers of which this replica is the destination."""

    def __init__(self, worker: LlmWorker, limits: ModelLimits, params: TransferParams) -> None:
        self.open: dict[TransferId, Incoming] = {}
        self._worker, self._limits = worker, limits
        self._patience = Patience(ns_from_s(params.hold_s), ns_from_s(params.timeout_s))

    def settle(self, at_ns: Ns) -> None:
        """After any event: ask the front for what is complete."""
        for incoming in self.open.values():
            incoming.ask(at_ns, self._worker.out)

    def reserve(self, front: NodeId, message: Reserve, at_ns: Ns) -> None:
        """P/D: hold room for the whole prompt."""
        request = message.request
        blocks = None
        if not self._worker.is_draining and isinstance(request, LlmRequest):
            blocks = self._worker.machine.reserve_blocks(-(-len(request.prompt) // self._limits.block_size))
        if blocks is None or not isinstance(request, LlmRequest):
            code = "draining" if self._worker.is_draining else "full"
            self._worker.out.append(Send(front, Refused(request.id, message.epoch, code, f"no room for {request.id}")))
            return
        incoming = self._receive(Origin(message.transfer, request, message.epoch, message.prefill, front), at_ns)
        incoming.blocks.extend(blocks)
        self._worker.out.append(Send(message.prefill, MigrateReserved(message.transfer, blocks)))
        self._worker.out.append(Send(front, Reserved(request.id, message.epoch, message.transfer, blocks)))

    def migrate_reserve(self, source: NodeId, message: MigrateReserve, at_ns: Ns) -> None:
        """Migration: hold room for one more stage; an empty answer ends the migration."""
        request, incoming = message.request, self.open.get(message.transfer)
        blocks = None
        if not self._worker.is_draining and isinstance(request, LlmRequest):
            blocks = self._worker.machine.reserve_blocks(message.blocks)
            if blocks is not None and incoming is None:
                origin = Origin(message.transfer, request, message.epoch, source, message.front)
                incoming = self._receive(origin, at_ns)
        if blocks is not None and incoming is not None:
            incoming.blocks.extend(blocks)
        self._worker.out.append(Send(source, MigrateReserved(message.transfer, blocks or ())))

    def _receive(self, origin: Origin, at_ns: Ns) -> Incoming:
        incoming = self.open[origin.transfer] = Incoming(origin, self._patience)
        incoming.begin(at_ns, self._worker.out)
        return incoming

    def _drop(self, incoming: Incoming) -> None:
        """No byte can arrive any more."""
        del self.open[incoming.origin.transfer]
        self._worker.machine.free_blocks(incoming.blocks)

    def _adopt(self, incoming: Incoming, at_ns: Ns) -> None:
        worker, origin, state = self._worker, incoming.origin, incoming.state
        assert state is not None  # it asked with it
        del self.open[origin.transfer]
        computed = len(state.prompt) + len(state.outputs) - 1
        chosen, reason = "adopt", "the KV is here"
        seq = None
        if incoming.is_void:
            chosen, reason = "recompute", "the engine failed before the front answered"
        else:
            try:
                seq = worker.machine.adopt(origin.request, state.outputs, incoming.blocks, computed, at_ns)
            except CapacityError as error:
                chosen, reason = "recompute", str(error)
        if seq is None:
            worker.machine.free_blocks(incoming.blocks)
            seq = worker.machine.add(origin.request, state.outputs, at_ns)
        stay = Stay(origin.request, origin.epoch + 1, origin.front, seq, at_ns)
        stay.outputs.extend(state.outputs)
        if incoming.marks is not None:
            stay.inherit(incoming.marks)
            stay.handoff_ns = max(0, at_ns - (incoming.marks.last_token_ns or at_ns))
        stay.decide(Decision("pd", at_ns, "handoff", chosen, reason, request=origin.request.id))
        worker.keep(stay)

    def cancelled(self, message: Cancel) -> None:
        """The front gives up room that it had reserved; the source was not told to fill it."""
        for incoming in list(self.open.values()):
            origin = incoming.origin
            is_meant = origin.request.id == message.request and origin.epoch == message.epoch
            if is_meant and incoming.stage is Stage.FILLING and not incoming.computed:
                incoming.leave("cancelled", self._worker.out)

    def answered(self, incoming: Incoming, accepted: bool, at_ns: Ns) -> None:
        """The front accepted or refused: the only moment at which the owner changes."""
        if accepted:
            self._adopt(incoming, at_ns)
        else:
            self._drop(incoming)

    def handed(self, message: Handover | Commit) -> None:
        """The state of the sequence."""
        incoming = self.open.get(message.transfer)
        if incoming is not None:
            incoming.handed(message.state, message.marks)

    def sent(self, message: StageSent) -> None:
        """The source has sent a stage."""
        incoming = self.open.get(message.transfer)
        if incoming is not None:
            incoming.sent(message.stage, message.tokens, self._worker.out)

    def copy_arrived(self, event: CopyArrived) -> None:
        """A stage is readable."""
        incoming = self.open.get(event.transfer)
        if incoming is not None:
            incoming.arrived(event.stage, self._worker.out)

    def aborted(self, incoming: Incoming) -> None:
        """The source says that no byte can arrive any more. Once the front was asked, only its answer counts."""
        if incoming.stage is not Stage.ASKED:
            self._drop(incoming)

    def late(self, transfer: TransferId, at_ns: Ns) -> None:
        """Nothing came for long."""
        if transfer in self.open:
            self.open[transfer].woke(at_ns, self._worker.out)

    def peer_lost(self, node: NodeId) -> None:
        """A source that is gone sends nothing more; without its front nobody can accept."""
        for incoming in list(self.open.values()):
            is_asking = incoming.stage is Stage.ASKED
            if incoming.origin.front == node or (incoming.origin.source == node and not is_asking):
                self._drop(incoming)

    def voided(self) -> None:
        """An engine failure: no KV here can be trusted, the tokens can."""
        for incoming in self.open.values():
            if incoming.stage is Stage.FILLING:
                incoming.leave("the engine failed", self._worker.out)
            else:
                incoming.is_void = True
