"""What a front does with the progress of pictures and videos and with what is made of them: pass it on, once."""

from headway.core.effects import Effect, Show
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Artifacts, Progress
from headway.core.units import Ns
from headway.sched.book import Book, Tracked
from headway.sched.fleet.guard import Guard
from headway.sched.shown import Shown


class Pictures:
    """Appends what must be done to `out`."""

    def __init__(self, book: Book, guard: Guard, out: list[Effect]) -> None:
        self._book, self._guard, self._out = book, guard, out

    def heard(self, src: NodeId, message: Progress | Artifacts, at_ns: Ns) -> None:
        """Denoise steps are done, or previews, checkpoints, pictures, a video. A breaker's trial has its answer."""
        found = self._of(src, message.request, message.epoch)
        if found is None:
            return
        self._guard.answered(src, message.request, at_ns)
        tracked, shown = found
        if isinstance(message, Progress):
            if shown.advance(message.done):
                self._out.append(Show(message.request, shown.done, shown.total))
            return
        tracked.told_ns = at_ns
        fresh = shown.take(message.made)
        if fresh:
            self._book.holds_checkpoint(tracked)
            self._out.append(Show(message.request, shown.done, shown.total, fresh))

    def _of(self, src: NodeId, request: RequestId, epoch: int) -> tuple[Tracked, Shown] | None:
        """The request as it is owned now; what an older owner says is counted and dropped."""
        tracked = self._book.requests.get(request)
        if tracked is None or tracked.shown is None or tracked.is_over:
            self._book.stale_dropped += 1
            return None
        if tracked.owner != src or epoch != tracked.epoch:
            self._book.stale_dropped += 1
            return None
        return tracked, tracked.shown
