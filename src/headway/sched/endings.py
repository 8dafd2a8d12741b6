"""How a request leaves a replica, and how it ends: the client's End once, the evidence once nobody owes a word."""

from headway.core.effects import Effect, ErrorOut, Record, Send
from headway.core.ids import NodeId, RequestId
from headway.core.lifecycle import Change, RequestState
from headway.core.messages import Cancel
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import Ns
from headway.sched.book import Book, Tracked
from headway.sched.chorus import part
from headway.sched.dispatch import Dispatcher
from headway.sched.fleet.breaker import Outcome
from headway.sched.ownership import Ownership


class Endings:
    """Appends what must be done to `out`."""

    def __init__(self, book: Book, dispatch: Dispatcher, out: list[Effect]) -> None:
        self.ownership = Ownership(book, dispatch.router, out)
        self.hedged: dict[RequestId, Tracked] = {}  # that have two legs
        self._book, self._dispatch, self._out = book, dispatch, out

    def disown(self, tracked: Tracked, outcome: Outcome, why: str, at_ns: Ns) -> None:
        """Its owner will say nothing more about it that counts."""
        node = tracked.owner
        assert node is not None
        part(tracked, self._out)
        done = len(tracked.emitted) or tracked.output_tokens
        self._leave(tracked, node, outcome, why, done, at_ns)
        tracked.owner, tracked.is_worker_done = None, True

    def drop_hedge(self, tracked: Tracked, outcome: Outcome, why: str, at_ns: Ns, *, is_told: bool = True) -> None:
        """The second leg of a hedged request is not needed, or gone; `is_told`: it still runs and must stop."""
        leg = tracked.hedge
        if leg is None:
            return
        tracked.hedge = None
        del self.hedged[tracked.request.id]
        if is_told:
            self._out.append(Send(leg.node, Cancel(tracked.request.id, leg.epoch)))
        self._leave(tracked, leg.node, outcome, why, 0, at_ns)
        tracked.tell(at_ns, f"hedge at {leg.node} is over ({why})")

    def promote_hedge(self, tracked: Tracked, at_ns: Ns) -> None:
        """The second leg goes on alone, as the owner."""
        leg = tracked.hedge
        assert leg is not None
        tracked.hedge = None
        del self.hedged[tracked.request.id]
        tracked.owner, tracked.epoch, tracked.sent_ns = leg.node, leg.epoch, leg.sent_ns
        tracked.taken, tracked.is_worker_done = None, False
        tracked.tell(at_ns, f"hedge at {leg.node} owns it as epoch {leg.epoch}")

    def _leave(self, tracked: Tracked, node: NodeId, outcome: Outcome, why: str, done: int, at_ns: Ns) -> None:
        self._dispatch.router.end(tracked.request, node, done, at_ns)
        self._dispatch.watch.guard.ended(node, tracked.request.id, outcome, why, at_ns)

    def stop(self, tracked: Tracked, reason: FinishReason, change: Change, at_ns: Ns) -> None:
        """Leave the queue, or tell whoever holds the request to drop it."""
        request = tracked.request.id
        self._dispatch.leave(request)
        self.drop_hedge(tracked, "neutral", str(reason), at_ns)
        if tracked.state is RequestState.RESERVING:
            self._dispatch.unreserve(tracked)
        if tracked.owner is not None:
            self._out.append(Send(tracked.owner, Cancel(request, tracked.epoch, reason)))
            tracked.stopped_ns = at_ns
        tracked.change(change, at_ns, str(reason))

    def leave(self, tracked: Tracked, at_ns: Ns) -> bool:
        """Have its replica save it and let it go: its Finished ends it. False: no replica runs it, nothing is lost."""
        request = tracked.request
        if tracked.owner is None or tracked.is_over or not isinstance(request, DiffusionRequest):
            return False
        if not tracked.is_leaving:
            tracked.is_leaving = True
            self.drop_hedge(tracked, "neutral", "it leaves", at_ns)
            self._out.append(Send(tracked.owner, Cancel(request.id, tracked.epoch, saves=True)))
        return True

    def left(self, tracked: Tracked, why: str, at_ns: Ns) -> None:
        """It was to leave, and no replica has it any more."""
        tracked.change(Change.CANCEL, at_ns, why)
        self.end(tracked, FinishReason.CANCELLED, None, len(tracked.emitted))

    def end(self, tracked: Tracked, reason: FinishReason, error: ErrorOut | None, output_tokens: int) -> None:
        """Say End; the caller has moved the life cycle."""
        self.ownership.refuse(tracked)
        self._dispatch.over(tracked, reason, output_tokens)
        self._out.append(self._book.end(tracked, reason, error, output_tokens))
        self.close(tracked)

    def close(self, tracked: Tracked) -> None:
        """Record its evidence when nobody owes a word any more."""
        record = self._book.close(tracked)
        if record is not None:
            self._out.append(Record(record))
