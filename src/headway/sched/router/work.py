"""The work of diffusion replicas as a front knows it: what was reported, what ran off since, and its own dispatches.

Durations are known on arrival (SPEC F2), so this is in seconds of the replica, comparable with an LLM's queue.
"""

from typing import Final

import msgspec

from headway.core.decisions import Candidate
from headway.core.ids import RequestId
from headway.core.reports import DenoiseCoefficients, DenoiseMemory, ReplicaReport, WarmShape
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, s_from_ns
from headway.cost.diffusion import left_ns
from headway.cost.diffusion_memory import fits, shortage
from headway.cost.first_runs import cold_ns, cold_refusal, is_cold
from headway.sched.router.abilities import unable
from headway.sched.router.protocol import ReplicaView, Scored

KINDS_MAX: Final = 256  # of work, whose time is remembered per replica


def kind_of(request: Request) -> str:
    """All that decides how long a request takes on given devices and what it holds there, in words: a text keeps its
    hash."""
    if not isinstance(request, DiffusionRequest):
        return ""
    done = max(request.begun, request.skipped_steps)
    is_begun = request.begun > 0  # else its prompt is encoded
    said = request.content
    is_edit, is_masked = bool(said.pictures), said.mask is not None  # a picture is encoded too, a mask kept
    steps = f"{request.steps} steps, {done} done, {is_begun}"
    return f"{request.shape}, {steps}, {is_edit}, {is_masked}, {request.n} pictures"


Sides = tuple[int, int, int]  # height, width, frames


class _Sent(msgspec.Struct, gc=False):
    number: int
    work_ns: Ns
    sides: Sides | None  # of a shape whose preparation is in `work_ns`


class _Own(msgspec.Struct, gc=False):
    """Of one request: its work, and the preparation of its shape where that has not run."""

    work_ns: Ns
    cold_ns: Ns


class PendingWork:
    """Of one replica. `cost`: what it believes of its work; None until it has said so."""

    def __init__(self) -> None:
        self.cost: DenoiseCoefficients | None = None
        self._warm: tuple[WarmShape, ...] | None = None
        self._told_ns: Ns = 0
        self._told_at_ns: Ns = 0
        self._unseen: dict[RequestId, _Sent] = {}  # dispatches that its report has not counted
        self._unseen_ns: Ns = 0  # of all of them
        self._taken: dict[str, _Own] = {}  # what work of a kind takes there, as of `cost`
        self._prepares: tuple[Sides, ...] = ()  # shapes that some wait for there: preparing them is in what it told
        self._memory: DenoiseMemory | None = None
        self._fits: dict[str, bool] = {}  # whether work of a kind fits there, as of `_memory` and the sizes in `cost`

    def hear(self, report: ReplicaReport, at_ns: Ns) -> None:
        """Fold in a report."""
        if report.denoise_memory != self._memory or _sizes(report.denoise_cost) != _sizes(self.cost):
            self._memory = report.denoise_memory
            self._fits.clear()
        if (report.denoise_cost, report.warm) != (self.cost, self._warm):
            self.cost, self._warm = report.denoise_cost, report.warm
            self._taken.clear()
        self._prepares = tuple((one.height, one.width, one.frames) for one in report.preparing if one.waiting)
        self._told_ns, self._told_at_ns = report.queued_work_ns, at_ns
        for request in [r for r, sent in self._unseen.items() if sent.number <= report.submits_seen]:
            self.ended(request)

    def sent(self, request: Request, number: int) -> None:
        """A dispatch of this front."""
        if isinstance(request, DiffusionRequest) and self.cost is not None:
            self.ended(request.id)
            work_ns, more_ns = left_ns(self.cost, request), self._more_ns(request)
            self._unseen[request.id] = _Sent(number, work_ns + more_ns, _sides(request) if more_ns else None)
            self._unseen_ns += work_ns + more_ns

    def own_ns(self, request: Request, kind: str) -> Ns:
        """What a request of this kind takes there alone; 0 for text and while nothing was told.

        A forecast asks every replica of the fleet, and most requests are of few kinds.
        """
        own = self._taken.get(kind)
        if self.cost is None or not isinstance(request, DiffusionRequest):
            return 0
        if own is None:
            if len(self._taken) >= KINDS_MAX:
                self._taken.clear()
            cold = cold_ns(self.cost, self._warm, request)
            self._taken[kind] = own = _Own(left_ns(self.cost, request), cold)
        return own.work_ns + (own.cold_ns if own.cold_ns and not self._is_prepared_for(request) else 0)

    def _more_ns(self, request: DiffusionRequest) -> Ns:
        """Until its shape has run, once for all that wait for it."""
        cold = 0 if self.cost is None else cold_ns(self.cost, self._warm, request)
        return cold if cold and not self._is_prepared_for(request) else 0

    def _is_prepared_for(self, request: DiffusionRequest) -> bool:
        sides = _sides(request)
        return sides in self._prepares or any(sent.sides == sides for sent in self._unseen.values())

    def fits(self, request: DiffusionRequest, kind: str) -> bool:
        """True unless a request of this kind needs more memory than is there. A forecast asks every replica."""
        known = self._fits.get(kind)
        if known is None:
            if len(self._fits) >= KINDS_MAX:
                self._fits.clear()
            self._fits[kind] = known = fits(self._memory, self.cost, request)
        return known

    def ended(self, request: RequestId) -> None:
        """A dispatch is over. What the report had counted of it is in the next one no more."""
        sent = self._unseen.pop(request, None)
        if sent is not None:
            self._unseen_ns -= sent.work_ns

    @property
    def told_ns(self) -> Ns:
        """The work that was there when it last reported, and what was dispatched since: it runs off by itself."""
        return self._told_ns + self._unseen_ns

    def ahead_ns(self, at_ns: Ns) -> Ns:
        """Time until all of it is done; reported work runs off by itself."""
        left = self._told_ns - (at_ns - self._told_at_ns)
        return left + self._unseen_ns if left > 0 else self._unseen_ns

    def check(self) -> bool:
        """True when the sum matches its parts."""
        return self._unseen_ns == sum(sent.work_ns for sent in self._unseen.values())


def _sides(request: DiffusionRequest) -> Sides:
    return request.height, request.width, request.frames


def _sizes(cost: DenoiseCoefficients | None) -> tuple[int, int, int, int] | None:
    """Of all that a replica believes and goes on learning, what memory depends on."""
    return None if cost is None else (cost.patch, cost.frame_stride, cost.text_tokens, cost.passes)


def takes(report: ReplicaReport, request: Request, *, has_room: bool) -> bool:
    """True when a picture is of the sizes that the replica's pool is for (SPEC F5), fits in its memory (`has_room`) and
    asks for nothing that its model cannot do (SPEC F1)."""
    if not isinstance(request, DiffusionRequest):
        return True
    least, most = report.pixels
    pixels = request.height * request.width * request.frames
    is_of_pool = least <= pixels and (most is None or pixels <= most)
    is_refused = report.refuses_new and not request.begun and is_cold(report.warm, request.shape)
    return has_room and is_of_pool and not is_refused and unable(report.abilities, request) is None


def lacking(report: ReplicaReport, request: DiffusionRequest) -> str | None:
    """Why the request does not fit in the replica's memory, or is nothing that it takes; None: it fits and is, or
    nobody can tell."""
    if (why := unable(report.abilities, request)) is not None:
        return f"request {request.id} cannot run on {report.replica}: {report.model} {why}"
    if report.refuses_new and not request.begun and (why := cold_refusal(report.warm, request)) is not None:
        return why
    memory, cost = report.denoise_memory, report.denoise_cost
    if memory is None or cost is None or fits(memory, cost, request):
        return None
    return shortage(memory, cost, request, report.replica)


def denoise_candidate(replica: ReplicaView, item: Scored) -> Candidate:
    """Forecast the end of the ranked request there: it has no first token, its first output is its last.

    All that is there is taken to run before it, which is so in the order of arrival and too long for a short one where
    shorter work goes first.
    """
    if replica.denoise_cost is None:
        return Candidate(item.replica, 0.0, 0.0, reason=item.reason or "it tells no work", score=item.score)
    seconds = s_from_ns(replica.work_ns + replica.own_work_ns)
    return Candidate(item.replica, seconds, 1.0, reason=item.reason, score=item.score)
