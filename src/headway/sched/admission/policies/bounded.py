"""Bound the global queue, and refuse what the forecast says cannot meet its deadline."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.decisions import Candidate
from headway.core.effects import ErrorOut
from headway.core.reports import AdmissionFigures
from headway.core.request import Request
from headway.core.units import Ns, ms_from_ns, ns_from_s
from headway.sched.admission.protocol import Heard, Load, Verdict


class Bounded:
    """Guards the queue and the deadlines."""

    needs: ClassVar[frozenset[str]] = frozenset({"queued", "has_room"})
    sees: ClassVar[str] = "queue length, room and forecast of the best replica, deadlines"
    good_at: ClassVar[str] = "keeping waits short and refusing early"
    blind_spot: ClassVar[str] = "decode interference that starts after the forecast"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`queue_max`: requests that may wait. `confidence_min`: a forecast below it never refuses.

        `retry_after_ms`: told when no forecast is known.
        """

        queue_max: Annotated[int, msgspec.Meta(ge=0)] = 1024
        confidence_min: Annotated[float, msgspec.Meta(ge=0)] = 0.5
        retry_after_ms: Annotated[int, msgspec.Meta(ge=1)] = 1000

    def __init__(self, params: Params) -> None:
        self._params = params

    def decide(self, request: Request, candidates: Sequence[Candidate], load: Load, at_ns: Ns) -> Verdict:
        """Reject a full queue or a hopeless deadline, queue without room, else admit."""
        if load.queued >= self._params.queue_max:
            return self._full(request, candidates, load)
        if candidates and candidates[0].confidence >= self._params.confidence_min:
            late = self._late(request, candidates[0], load, at_ns)
            if late is not None:
                return late
        if load.queued or not load.has_room:
            return Verdict("queue", f"{load.queued} wait before it" if load.queued else "no replica has room")
        return Verdict("admit", "a replica has room")

    def observe(self, event: Heard) -> None:
        """It learns nothing."""

    def figures(self) -> Sequence[AdmissionFigures]:
        """It does not judge itself."""
        return ()

    def _full(self, request: Request, candidates: Sequence[Candidate], load: Load) -> Verdict:
        wait_s = load.queue_seconds + (candidates[0].seconds if candidates else 0.0)
        retry_ms = max(self._params.retry_after_ms, round(wait_s * 1e3))
        message = (
            f"request {request.id}: {load.queued} requests wait, the limit is {self._params.queue_max}; "
            f"retry after {retry_ms} ms"
        )
        return Verdict("reject", "queue full", ErrorOut(429, "queue_full", message, retry_ms))

    def _late(self, request: Request, best: Candidate, load: Load, at_ns: Ns) -> Verdict | None:
        first_ns = at_ns + ns_from_s(load.queue_seconds + best.seconds)
        last_ns = first_ns + ns_from_s(load.decode_seconds)
        slo = request.slo
        for name, due_ns, done_ns in (
            ("ttft", slo.ttft_deadline_ns, first_ns),
            ("e2e", slo.e2e_deadline_ns, last_ns),
        ):
            if due_ns is not None and done_ns > due_ns:
                message = (
                    f"request {request.id}: {name} is forecast {ms_from_ns(done_ns - request.arrived_ns):.0f} ms after "
                    f"arrival, the deadline is {ms_from_ns(max(0, due_ns - request.arrived_ns)):.0f} ms"
                )
                can_wait = load.queue_seconds > 0 or load.queued > 0
                retry_ms = max(1, round(load.queue_seconds * 1e3)) if can_wait else self._params.retry_after_ms
                error = ErrorOut(429, "slo_unattainable", message, retry_ms, waiting_helps=can_wait)
                return Verdict("reject", f"{name} deadline", error)
        return None
