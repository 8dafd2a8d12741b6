"""The source side of hand-off and migration at a WorkerNode: which stays are on their way to another replica."""

import msgspec

from headway.core.effects import Send
from headway.core.events import CopyDone
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.messages import (
    Commit,
    Handover,
    Migrate,
    MigrateReserved,
    MigrationEnded,
    SequenceState,
    StageAck,
    Submit,
)
from headway.core.plans import StepPlan
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest
from headway.core.units import Ns
from headway.sched.stays import Stay
from headway.sched.transfer.outgoing import Outgoing, Phase, Progress, Route, TransferParams
from headway.sched.worker import LlmWorker


class Departures:
    """Transfers of which this replica is the source."""

    def __init__(self, worker: LlmWorker, limits: ModelLimits, params: TransferParams) -> None:
        self.open: dict[TransferId, Outgoing] = {}
        self._worker, self._limits, self._params = worker, limits, params
        self._granted: dict[TransferId, tuple[int, ...]] = {}  # room that came before its Submit
        self._prefilled: dict[int, int] = {}  # seq -> prompt tokens whose KV is written, while it is handed off
        self._held: dict[int, None] = {}  # out of the batch although nobody takes them over: to be set going again

    def submitted(self, message: Submit) -> None:
        """P/D: prefill here, then hand over to `target`."""
        stay = self._worker.by_request.get(message.request.id)
        if message.target is None or message.transfer is None or stay is None or stay.epoch != message.epoch:
            return
        assert isinstance(stay.request, LlmRequest)  # nothing else was accepted
        self._worker.machine.hold_after_prefill(stay.seq)
        self._prefilled[stay.seq] = 0
        route = Route(message.transfer, stay.request, stay.epoch, stay.seq, message.target, stay.front, "handoff")
        self._start(route).granted(self._granted.pop(message.transfer, ()))

    def migrate(self, control: NodeId, message: Migrate) -> None:
        """Move a decoding request to `destination`."""
        stay = self._worker.by_request.get(message.request)
        busy = stay is not None and any(out.route.seq == stay.seq for out in self.open.values())
        if stay is None or not isinstance(stay.request, LlmRequest) or not stay.is_resident or busy:
            why = "moves already" if busy else "not decoding here"
            self._worker.out.append(Send(control, MigrationEnded(message.request, message.transfer, False, why)))
            return
        route = Route(
            message.transfer, stay.request, stay.epoch, stay.seq, message.destination, stay.front, "migration", control
        )
        self._start(route)

    def _start(self, route: Route) -> Outgoing:
        limits = self._limits
        outgoing = Outgoing(route, self._params, limits.block_size, limits.kv_bytes_per_block, self._worker.machine)
        self.open[route.transfer] = outgoing
        return outgoing

    def folded(self, plan: StepPlan) -> None:
        """A step was folded in: remember how far prefills are that will be handed off."""
        if self._prefilled:
            for chunk in plan.chunks:
                if chunk.seq in self._prefilled:
                    self._prefilled[chunk.seq] = chunk.start + chunk.count

    @property
    def is_idle(self) -> bool:
        """True when nothing is on its way."""
        return not self.open and not self._held

    def settle(self, at_ns: Ns) -> None:
        """After any event: start what may start, and end what lost its reason."""
        for outgoing in list(self.open.values()):
            stay = self._worker.stays.get(outgoing.route.seq)
            if stay is None:
                self.give_up(outgoing, "the request ended")
            elif outgoing.phase is not Phase.COMMITTED:
                self._push(outgoing, stay, at_ns)
            self._forget_if_over(outgoing)
        for seq in list(self._held):
            self._free(seq)

    def _push(self, outgoing: Outgoing, stay: Stay, at_ns: Ns) -> None:
        progress = self._progress(outgoing, stay)
        if outgoing.phase is Phase.FREEZING and progress.is_final:
            outgoing.stood_still()
        if (stay.outputs and not stay.is_resident) or self._has_lost_blocks(stay.seq, progress.written):
            self.give_up(outgoing, "preempted")
            return
        if outgoing.route.kind == "handoff" and progress.is_final and not outgoing.is_state_sent:
            self._hand_over(outgoing, stay, at_ns)
        following = outgoing.advance(progress, at_ns, self._worker.out)
        if following == "freeze":
            last = self._worker.machine.freeze(stay.seq)
            if last is None:
                self.give_up(outgoing, "not decoding")
            else:
                outgoing.freezing(last, at_ns)
                self._push(outgoing, stay, at_ns)
        elif following == "commit":
            if outgoing.route.kind == "migration":
                state, marks = self._state(stay), stay.marks(self._worker.replica, self._worker.sums, at_ns)
                marks = msgspec.structs.replace(marks, transfer_bytes=marks.transfer_bytes + outgoing.bytes)
                message = Commit(outgoing.route.transfer, state, len(stay.outputs), marks)
                self._worker.out.append(Send(outgoing.route.peer, message))
            outgoing.committed(at_ns, self._worker.out)

    def _has_lost_blocks(self, seq: int, written: int) -> bool:
        return len(self._worker.machine.table(seq)) * self._limits.block_size < written

    def _progress(self, outgoing: Outgoing, stay: Stay) -> Progress:
        assert isinstance(stay.request, LlmRequest)
        prompt = len(stay.request.prompt)
        if outgoing.route.kind == "handoff":
            is_final = len(stay.outputs) > 0
            return Progress(prompt if is_final else self._prefilled.get(stay.seq, 0), is_final)
        frozen = outgoing.frozen_after
        is_final = frozen is not None and self._worker.last_done >= frozen
        return Progress(prompt + len(stay.outputs) - 1, is_final)

    def _hand_over(self, outgoing: Outgoing, stay: Stay, at_ns: Ns) -> None:
        outgoing.is_state_sent = True
        route, limits = outgoing.route, self._limits
        marks = stay.marks(self._worker.replica, self._worker.sums, at_ns)
        size = -(-len(route.request.prompt) // limits.block_size) * limits.kv_bytes_per_block
        marks = msgspec.structs.replace(marks, transfer_bytes=marks.transfer_bytes + size)
        message = Handover(route.request.id, route.epoch, route.transfer, self._state(stay), marks)
        self._worker.out.append(Send(route.peer, message))

    @staticmethod
    def _state(stay: Stay) -> SequenceState:
        request = stay.request
        assert isinstance(request, LlmRequest)
        return SequenceState(
            request.id,
            request.prompt,
            tuple(stay.outputs),
            request.sampling,
            request.slo,
            request.urgency,
            request.arrived_ns,
        )

    def give_up(self, outgoing: Outgoing, reason: str) -> None:
        """The request stays here, if it still lives."""
        if outgoing.phase not in (Phase.ABORTING, Phase.OVER):
            self._stays_here(outgoing, reason)
            outgoing.abort(reason, self._worker.out)

    def _stays_here(self, outgoing: Outgoing, reason: str) -> None:
        route = outgoing.route
        if route.kind == "handoff" or outgoing.frozen_after is not None:
            self._held[route.seq] = None
        self._tell_control(route, False, reason)

    def _tell_control(self, route: Route, moved: bool, reason: str) -> None:
        if route.control is not None:
            ended = MigrationEnded(route.request.id, route.transfer, moved, reason)
            self._worker.out.append(Send(route.control, ended))

    def _free(self, seq: int) -> None:
        """Let a held or frozen sequence decode on, as soon as it stands still."""
        stay = self._worker.stays.get(seq)
        if stay is None:
            del self._held[seq]
        elif stay.outputs and self._worker.machine.freeze(seq) is not None:
            self._worker.machine.thaw(seq)
            del self._held[seq]

    def _forget_if_over(self, outgoing: Outgoing) -> None:
        if outgoing.phase is Phase.OVER:
            self.open.pop(outgoing.route.transfer, None)
            self._prefilled.pop(outgoing.route.seq, None)

    # Answers

    def reserved(self, message: MigrateReserved) -> None:
        """Room at the destination; it may come before the Submit that needs it."""
        outgoing = self.open.get(message.transfer)
        if outgoing is None:
            self._granted[message.transfer] = message.blocks
        elif not outgoing.granted(message.blocks):
            self.give_up(outgoing, "no room at the destination")

    def acknowledged(self, message: StageAck) -> None:
        """The destination can read a stage."""
        outgoing = self.open.get(message.transfer)
        if outgoing is not None:
            outgoing.acknowledged(message.stage)

    def copy_done(self, event: CopyDone) -> None:
        """A stage has left this node, or was stopped."""
        outgoing = self.open.get(event.transfer)
        if outgoing is not None:
            outgoing.copied(event.stage, event.ok, self._worker.out)
            if not event.ok:
                self.give_up(outgoing, "the copy failed")

    def taken_over(self, request: RequestId, epoch: int, transfer: TransferId) -> None:
        """The front accepted: from here the request is not ours, whatever the transfer believes."""
        stay = self._worker.by_request.get(request)
        if stay is not None and stay.epoch < epoch:
            self._worker.machine.release(stay.seq)
            self._worker.drop(stay)
            self._held.pop(stay.seq, None)
        outgoing = self.open.get(transfer)
        if outgoing is not None:
            self._tell_control(outgoing.route, True, "the front accepted")
            outgoing.phase = Phase.OVER
            self._forget_if_over(outgoing)

    def cancelled_there(self, transfer: TransferId, reason: str) -> bool:
        """The destination gives up; False when nothing is known of the transfer."""
        outgoing = self.open.get(transfer)
        if outgoing is None:
            self._granted.pop(transfer, None)
            return False
        self.give_up(outgoing, reason)
        return True

    def late(self, transfer: TransferId, at_ns: Ns) -> None:
        """The transfer may have stood still too long."""
        outgoing = self.open.get(transfer)
        if outgoing is not None and outgoing.is_late(at_ns, self._worker.out):
            self.give_up(outgoing, "no progress in time")

    def peer_lost(self, node: NodeId) -> None:
        """The destination is gone: the request stays, unless the front says otherwise."""
        for outgoing in list(self.open.values()):
            if outgoing.route.peer == node:
                self._stays_here(outgoing, f"{node} was lost")
                outgoing.peer_lost(self._worker.out)
                self._forget_if_over(outgoing)

    def voided(self) -> None:
        """An engine failure: what was not handed over completely cannot be."""
        for outgoing in list(self.open.values()):
            if outgoing.phase is not Phase.COMMITTED:
                self.give_up(outgoing, "the engine failed")
                self._forget_if_over(outgoing)
