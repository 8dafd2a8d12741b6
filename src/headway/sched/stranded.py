"""Requests whose model no replica serves: those wait longer while one of its replicas starts (SPEC A11)."""

from typing import Final

import msgspec

from headway.core.effects import Effect, ErrorOut, WakeAt
from headway.core.events import PeerStarting
from headway.core.ids import ModelId, NodeId, TimerId
from headway.core.lifecycle import Change
from headway.core.request import FinishReason
from headway.core.units import NS_PER_S, Ns, ns_from_s
from headway.sched.dispatch import Dispatcher
from headway.sched.endings import Endings
from headway.sched.tracked import Tracked

RETRY_MS: Final = 1000
LOOK_NS: Final = NS_PER_S  # between two looks at a start, at the least


class _Start(msgspec.Struct, frozen=True):
    incarnation: int
    model: ModelId
    doing: str


class Stranded:
    """Appends what must be done to `out`."""

    def __init__(self, dispatch: Dispatcher, endings: Endings, out: list[Effect]) -> None:
        patience = dispatch.patience
        self._dispatch, self._endings, self._out = dispatch, endings, out
        self._look_ns = max(LOOK_NS, ns_from_s(patience.replica_wait_s))
        self._start_wait_ns = ns_from_s(patience.start_wait_s)
        self._starts: dict[NodeId, _Start] = {}

    def starting(self, event: PeerStarting) -> None:
        """A replica comes; older news than what is known changes nothing."""
        there, known = self._dispatch.router.replicas.get(event.node), self._starts.get(event.node)
        newest = max(0 if there is None else there.incarnation + 1, 0 if known is None else known.incarnation)
        if event.incarnation >= newest:
            self._starts[event.node] = _Start(event.incarnation, event.model, event.cause)

    def over(self, node: NodeId, incarnation: int) -> None:
        """It is there, or lost."""
        known = self._starts.get(node)
        if known is not None and known.incarnation <= incarnation:
            del self._starts[node]

    def look(self, tracked: Tracked | None, at_ns: Ns) -> None:
        """It has waited for a replica: end it, unless one came or is about to."""
        if tracked is None:
            return
        since_ns, tracked.bare_ns = tracked.bare_ns, None
        if not self._dispatch.is_stranded(tracked, at_ns):
            return
        request, doing = tracked.request, self._doing(tracked.request.model)
        due_ns = (at_ns if since_ns is None else since_ns) + self._start_wait_ns
        if doing is not None and at_ns < due_ns:
            tracked.bare_ns = since_ns
            self._out.append(WakeAt(min(due_ns, at_ns + self._look_ns), TimerId(f"replica:{request.id}")))
            return
        message = f"request {request.id}: no replica serves {request.model}"
        if doing is not None:
            message += f" yet: {doing}"
        no_replica = ErrorOut(503, "no_replica", message, RETRY_MS)
        error = ErrorOut(502, "engine_lost", message) if tracked.emitted else no_replica
        self._endings.stop(tracked, FinishReason.LOST, Change.FAIL, at_ns)
        self._endings.end(tracked, FinishReason.LOST, error, len(tracked.emitted))

    def _doing(self, model: ModelId) -> str | None:
        """What the first of its replicas that starts does; None: none does."""
        for node, start in self._starts.items():
            if start.model == model:
                return f"{node} is starting ({start.doing})"
        return None
