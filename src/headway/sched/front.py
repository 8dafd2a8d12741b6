"""What a front does with clients, timers and the answers of replicas; every way a request can end."""

from typing import Final

from headway.core.effects import Effect, ErrorOut, Send, WakeAt
from headway.core.events import ClientGone, RequestArrived, StreamClosed, TextStopped
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.lifecycle import Change, RequestState
from headway.core.messages import Cancel, Finished, Holding, Refused, Reserved
from headway.core.request import DiffusionRequest, FinishReason, LlmRequest, TextRequest
from headway.core.units import Ns, ns_from_s
from headway.sched.admission.queue import line_of
from headway.sched.book import OPEN_STATES, Book, Tracked
from headway.sched.dispatch import Dispatcher, Patience
from headway.sched.fleet.breaker import Outcome
from headway.sched.moving import Moving
from headway.sched.pictures import Pictures
from headway.sched.recovery import Recovery
from headway.sched.stranded import Stranded
from headway.sched.streaming import Streaming

CLOSE_GRACE_NS: Final = 1_000_000_000  # a gone client's edge may never say StreamClosed
RETRIED: Final = frozenset({"full", "draining"})  # a refusal that another replica, or time, can cure


class Front:
    """Appends what must be done to `out`, which the node hands to its driver."""

    def __init__(self, book: Book, dispatch: Dispatcher, patience: Patience, out: list[Effect]) -> None:
        self.book, self.dispatch = book, dispatch
        self.recovery = Recovery(book, dispatch, patience, out)
        self.endings = self.recovery.endings
        self.ownership = self.endings.ownership
        self.stranded = Stranded(dispatch, self.endings, out)
        self.streaming = Streaming(book, dispatch, self.recovery, out)
        self.pictures = Pictures(book, dispatch.watch.guard, out)
        self.moving = Moving(book, dispatch, ns_from_s(patience.move_min_s), out)
        self._out = out
        dispatch.on_late = self._late

    # From the edge

    def arrived(self, event: RequestArrived) -> None:
        """Refuse, or queue and dispatch as far as there is room."""
        at_ns, request = event.at_ns, event.request
        tracked, no_room = self.book.open(event, self.dispatch.gate.device_us(request))
        judged = self.dispatch.consider(tracked, no_room, at_ns)
        error, tracked.transfer_to = judged.verdict.error, judged.verdict.to
        if error is not None:
            tracked.change(Change.REFUSE, at_ns, error.code or "refused")
            self.endings.end(tracked, FinishReason.REJECTED, error, 0)
            return
        tracked.change(Change.ADMIT, at_ns, judged.verdict.reason)
        if judged.verdict.left:
            self._out.append(tracked.degrade(judged.verdict.left))
        for kind, due_ns in (("deadline", request.slo.e2e_deadline_ns), ("ttft", request.slo.ttft_deadline_ns)):
            if due_ns is not None:
                self._out.append(WakeAt(due_ns, TimerId(f"{kind}:{request.id}")))
        self.dispatch.admit(tracked, judged.candidates, at_ns)
        self.recovery.wait_while_full(tracked, at_ns, judged.candidates)

    def client_gone(self, event: ClientGone) -> None:
        """Stop the request; its stream counts as closed soon after."""
        tracked = self.book.requests.get(event.request)
        if tracked is None:
            return
        if event.saves and self.endings.leave(tracked, event.at_ns):
            return
        self._out.append(WakeAt(event.at_ns + CLOSE_GRACE_NS, TimerId(f"close:{event.request}")))
        if not tracked.is_over:
            self.endings.stop(tracked, FinishReason.CANCELLED, Change.CANCEL, event.at_ns)
            self.endings.end(tracked, FinishReason.CANCELLED, None, len(tracked.emitted))

    def text_stopped(self, event: TextStopped) -> None:
        """The text is complete inside token `index`: end as STOP and free the replica."""
        tracked = self.book.requests.get(event.request)
        if tracked is None or tracked.is_over:
            return
        change = Change.FINISH if tracked.state in OPEN_STATES else Change.CANCEL
        self.endings.stop(tracked, FinishReason.STOP, change, event.at_ns)
        self.endings.end(tracked, FinishReason.STOP, None, event.index + 1)

    def stream_closed(self, event: StreamClosed) -> None:
        """The answer has left; the evidence may now be complete."""
        tracked = self.book.requests.get(event.request)
        if tracked is not None and tracked.closed is None:
            tracked.closed = event
            self.endings.close(tracked)

    # From timers

    def timer(self, timer: TimerId, at_ns: Ns) -> None:
        """A wait came to its end. Timers of requests that moved on are ignored."""
        kind, _, rest = timer.partition(":")
        if kind == "close":
            self.stream_closed(StreamClosed(at_ns, timer, RequestId(rest), None, 0))
        elif kind == "deadline":
            self._deadline(RequestId(rest), at_ns)
        elif kind == "ttft":
            self._first_token_is_late(RequestId(rest), at_ns)
        elif kind == "replica":
            self.stranded.look(self.book.requests.get(RequestId(rest)), at_ns)
        elif kind == "full":
            self.recovery.still_full(self.book.requests.get(RequestId(rest)), at_ns)
        elif kind == "guard":
            self.dispatch.pump_all(at_ns)
        elif kind == "watch":
            self.recovery.look(at_ns)
            self.dispatch.pump_all(at_ns)
        elif kind in ("reserve", "retry", "hedge"):
            number, _, request = rest.partition(":")
            self._dispatch_timer(kind, int(number), self.book.requests.get(RequestId(request)), at_ns)

    def _dispatch_timer(self, kind: str, number: int, tracked: Tracked | None, at_ns: Ns) -> None:
        if tracked is None or tracked.is_over:
            return
        if kind == "retry":
            self.recovery.retry_due(tracked, number, at_ns)
        elif kind == "hedge":
            self.recovery.hedge_due(tracked, number, at_ns)
        elif tracked.state is RequestState.RESERVING and tracked.epoch == number:
            self.dispatch.stay(tracked, at_ns)

    def _first_token_is_late(self, request: RequestId, at_ns: Ns) -> None:
        """What waits past its TTFT deadline, here or at a replica, is answered, not run; what is running goes on."""
        tracked = self.book.requests.get(request)
        if tracked is None or tracked.is_over or not self.dispatch.patience.dooms(tracked, at_ns):
            return
        if request in self.dispatch.queue or tracked.state is RequestState.RESERVING:
            self._late(tracked, at_ns)
        elif tracked.owner is not None and isinstance(tracked.request, LlmRequest):
            drop = Cancel(request, tracked.epoch, FinishReason.DEADLINE, if_waiting=True)
            self._out.append(Send(tracked.owner, drop))

    def _late(self, tracked: Tracked, at_ns: Ns) -> None:
        request, e2e_ns = tracked.request, tracked.request.slo.e2e_deadline_ns
        what = "end-to-end" if e2e_ns is not None and at_ns >= e2e_ns else "time-to-first-token"
        self.endings.stop(tracked, FinishReason.DEADLINE, Change.FAIL, at_ns)
        error = ErrorOut(408, "deadline_passed", f"request {request.id}: its {what} deadline passed in the queue")
        self.endings.end(tracked, FinishReason.DEADLINE, error, len(tracked.emitted))

    def _deadline(self, request: RequestId, at_ns: Ns) -> None:
        tracked = self.book.requests.get(request)
        if tracked is None or tracked.is_over:
            return
        place = "in the queue" if request in self.dispatch.queue else _reached(tracked)
        self.endings.stop(tracked, FinishReason.DEADLINE, Change.FAIL, at_ns)
        error = ErrorOut(408, "deadline_passed", f"request {request}: its end-to-end deadline passed {place}")
        self.endings.end(tracked, FinishReason.DEADLINE, error, len(tracked.emitted))

    # From replicas

    def reserved(self, src: NodeId, message: Reserved, at_ns: Ns) -> None:
        """P/D: room is held; the prefill replica may begin."""
        tracked = self.book.requests.get(message.request)
        if tracked is None or tracked.transfer != message.transfer or tracked.state is not RequestState.RESERVING:
            self._out.append(Send(src, Cancel(message.request, message.epoch)))
            return
        assert tracked.prefill is not None
        self.dispatch.submit(tracked, tracked.prefill, at_ns)

    def refused(self, src: NodeId, message: Refused, at_ns: Ns) -> None:
        """Unservable ends the request; anything else sends it to the queue again."""
        tracked = self.book.requests.get(message.request)
        if tracked is None:
            return
        is_full = message.code in RETRIED
        if is_full:
            self.recovery.mark_full(src, message, at_ns)
        if self._is_hedge(tracked, src, message.epoch):
            self.endings.drop_hedge(tracked, "neutral", message.message, at_ns, is_told=False)
            return
        if message.epoch != tracked.epoch:
            return
        if tracked.state is RequestState.RESERVING and src == tracked.decode:
            self.dispatch.stay(tracked, at_ns)
            return
        if src != tracked.owner:
            return
        self.endings.disown(tracked, "neutral", message.message, at_ns)
        if tracked.is_over:
            self.endings.close(tracked)
        elif tracked.is_leaving:
            self.endings.left(tracked, message.message, at_ns)
        elif tracked.hedge is not None:
            self.endings.promote_hedge(tracked, at_ns)
        elif is_full:
            self.dispatch.unreserve(tracked)
            tracked.change(Change.REQUEUE, at_ns, f"{src} is {message.code}")
            self.dispatch.enqueue(tracked, at_ns)
            self.dispatch.pump(line_of(tracked.request), at_ns)
            self.recovery.wait_while_full(tracked, at_ns)
        else:
            tracked.change(Change.FAIL, at_ns, message.message)
            error = ErrorOut(400, message.code, message.message)
            self.endings.end(tracked, FinishReason.REJECTED, error, len(tracked.emitted))

    @staticmethod
    def _is_hedge(tracked: Tracked, src: NodeId, epoch: int) -> bool:
        return tracked.hedge is not None and (tracked.hedge.node, tracked.hedge.epoch) == (src, epoch)

    def finished(self, src: NodeId, message: Finished, at_ns: Ns) -> None:
        """The replica is done with the request: end it, or try elsewhere when the replica gave up."""
        tracked = self.book.requests.get(message.request)
        if tracked is None:
            return
        why, is_lost = message.error or f"{src} gave up", message.reason is FinishReason.LOST
        if is_lost and self._is_hedge(tracked, src, message.epoch):
            self.recovery.hedge_failed(tracked, why, at_ns)
            return
        if not is_lost:
            self.recovery.settle_hedge(tracked, src, message.epoch, at_ns)
        if tracked.owner != src or message.epoch != tracked.epoch:
            return
        if isinstance(tracked.request, TextRequest) and message.output_tokens:
            tracked.output_tokens, tracked.prompt_told = message.output_tokens, message.prompt_tokens
            tracked.told_ns = at_ns
            self.dispatch.router.told_cached(tracked.request, src, message.cached_tokens)
        self.endings.disown(tracked, outcome_of(message), why if is_lost else str(message.reason), at_ns)
        tracked.marks = tracked.with_moves(message.marks)
        if tracked.is_over:
            self.endings.close(tracked)
        elif is_lost:
            self.recovery.failed(tracked, src, why, at_ns, is_charged=True)
        elif message.reason is FinishReason.DEADLINE:
            self._late(tracked, at_ns)
        elif tracked.is_leaving and message.reason is FinishReason.CANCELLED:
            self.endings.left(tracked, f"{src}: it is saved", at_ns)
        elif tracked.is_moving and message.reason is FinishReason.CANCELLED:
            self.recovery.moved(tracked, src, at_ns)
        elif message.code is not None:
            tracked.change(Change.FAIL, at_ns, f"{src}: {why}")
            self.endings.end(tracked, message.reason, error_of(message), message.output_tokens)
        else:
            self.book.require_complete(tracked, message)
            tracked.change(Change.FINISH, at_ns, f"{src}: {message.reason}")
            self.endings.end(tracked, message.reason, None, message.output_tokens)

    def holding(self, src: NodeId, message: Holding) -> None:
        """Tell a replica to drop what this front does not own there (it restarted, or the link was gone)."""
        for held in message.held:
            tracked = self.book.requests.get(held.request)
            if tracked is not None and self._is_hedge(tracked, src, held.epoch):
                continue
            if tracked is None or tracked.owner != src or tracked.epoch > held.epoch:
                self._out.append(Send(src, Cancel(held.request, held.epoch)))

    # Loss

    def lost(self, node: NodeId, at_ns: Ns) -> None:
        """The replica is gone: what it owned goes on elsewhere from the last token that was streamed."""
        for tracked in list(self.book.requests.values()):
            self.ownership.forget(tracked, node)
            if tracked.hedge is not None and tracked.hedge.node == node:
                self.endings.drop_hedge(tracked, "neutral", f"{node} was lost", at_ns, is_told=False)
            if tracked.state is RequestState.RESERVING and node in (tracked.prefill, tracked.decode):
                self.dispatch.unreserve(tracked)
                tracked.change(Change.REQUEUE, at_ns, f"{node} was lost")
                self.dispatch.enqueue(tracked, at_ns)
            elif tracked.owner == node:
                self.endings.disown(tracked, "neutral", f"{node} was lost", at_ns)
                if tracked.is_over:
                    self.endings.close(tracked)
                else:
                    self.recovery.failed(tracked, node, f"{node} was lost", at_ns, is_charged=False)


def outcome_of(message: Finished) -> Outcome:
    """What a breaker learns from the end of a request there. One that was stopped says nothing about the replica."""
    if message.reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.REJECTED):
        return "neutral"
    if message.reason is FinishReason.LOST:
        return "neutral" if message.health == "neutral" else "fault"
    return message.health


def error_of(message: Finished) -> ErrorOut:
    """What a client is told of an error that is its request's own: the same again would end the same."""
    why = f"request {message.request}: {message.error or message.code}"
    return ErrorOut(500 if message.code == "out_of_memory" else 400, message.code, why, waiting_helps=False)


def _reached(tracked: Tracked) -> str:
    request, count = tracked.request, len(tracked.emitted)
    if not isinstance(request, DiffusionRequest):
        return f"after {count} token{'s' * (count > 1)}" if count else "before its first token"
    if request.frames > 1:
        return "before its video was done"
    return "before its pictures were done" if request.n > 1 else "before its picture was done"
