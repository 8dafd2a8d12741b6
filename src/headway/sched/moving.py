"""A picture or video that has long to go leaves a replica that drains, and goes on elsewhere from there (SPEC F6).

What is soon over ends where it is: a move costs a step boundary, a checkpoint on the wire and a place in another queue.
"""

from headway.core.effects import Effect, Send
from headway.core.ids import NodeId
from headway.core.messages import Cancel
from headway.core.reports import ReplicaReport
from headway.core.request import DiffusionRequest
from headway.core.units import Ns
from headway.cost.diffusion import left_ns
from headway.sched.book import Book, Tracked
from headway.sched.dispatch import Dispatcher


class Moving:
    """Appends what must be done to `out`; `Front.finished` sends on what was let go."""

    def __init__(self, book: Book, dispatch: Dispatcher, left_min_ns: Ns, out: list[Effect]) -> None:
        self._book, self._dispatch, self._left_min_ns, self._out = book, dispatch, left_min_ns, out

    def heard(self, node: NodeId, report: ReplicaReport, at_ns: Ns) -> None:
        """A replica has told how it is; once it drains, what it should not keep is asked back."""
        if not report.draining or report.denoise_cost is None:
            return
        for tracked in list(self._book.requests.values()):
            if tracked.owner != node or tracked.is_over or tracked.is_leaving or tracked.is_moving:
                continue
            if tracked.hedge is None and self._is_long(tracked, report) and self._dispatch.second(tracked, at_ns):
                tracked.is_moving = True
                self._out.append(Send(node, Cancel(tracked.request.id, tracked.epoch, saves=True)))

    def _is_long(self, tracked: Tracked, report: ReplicaReport) -> bool:
        request, shown, cost = tracked.request, tracked.shown, report.denoise_cost
        if not isinstance(request, DiffusionRequest) or shown is None or cost is None:
            return False
        return left_ns(cost, request, shown.done) >= self._left_min_ns
