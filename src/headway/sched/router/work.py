"""The work of diffusion replicas as a front knows it: what was reported, what ran off since, and its own dispatches.

Durations are known on arrival (SPEC F2), so this is in seconds of the replica, comparable with an LLM's queue.
"""

import msgspec

from headway.core.decisions import Candidate
from headway.core.ids import RequestId
from headway.core.reports import DenoiseCoefficients, ReplicaReport
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, s_from_ns
from headway.cost.diffusion import left_ns
from headway.sched.router.protocol import ReplicaView, Scored


class _Sent(msgspec.Struct, gc=False):
    number: int
    work_ns: Ns


class PendingWork:
    """Of one replica. `cost`: what it believes of its work; None until it has said so."""

    def __init__(self) -> None:
        self.cost: DenoiseCoefficients | None = None
        self._told_ns: Ns = 0
        self._told_at_ns: Ns = 0
        self._unseen: dict[RequestId, _Sent] = {}  # dispatches that its report has not counted

    def hear(self, report: ReplicaReport, at_ns: Ns) -> None:
        """Fold in a report."""
        self.cost, self._told_ns, self._told_at_ns = report.denoise_cost, report.queued_work_ns, at_ns
        for request in [r for r, sent in self._unseen.items() if sent.number <= report.submits_seen]:
            del self._unseen[request]

    def sent(self, request: Request, number: int) -> None:
        """A dispatch of this front."""
        if isinstance(request, DiffusionRequest) and self.cost is not None:
            self._unseen[request.id] = _Sent(number, left_ns(self.cost, request))

    def own_ns(self, request: Request) -> Ns:
        """What a request takes there alone; 0 for text and while nothing was told."""
        if self.cost is None or not isinstance(request, DiffusionRequest):
            return 0
        return left_ns(self.cost, request)

    def ended(self, request: RequestId) -> None:
        """A dispatch is over. What the report had counted of it is in the next one no more."""
        self._unseen.pop(request, None)

    @property
    def told_ns(self) -> Ns:
        """The work that was there when it last reported, and what was dispatched since: it runs off by itself."""
        return self._told_ns + sum(sent.work_ns for sent in self._unseen.values())

    def ahead_ns(self, at_ns: Ns) -> Ns:
        """Time until all of it is done; reported work runs off by itself."""
        left = max(0, self._told_ns - (at_ns - self._told_at_ns))
        return left + sum(sent.work_ns for sent in self._unseen.values())


def takes(report: ReplicaReport, request: Request) -> bool:
    """True when the request is of the sizes that the replica's pool is for (SPEC F5)."""
    if not isinstance(request, DiffusionRequest):
        return True
    least, most = report.pixels
    return least <= request.shape.pixels and (most is None or request.shape.pixels <= most)


def denoise_candidate(replica: ReplicaView, item: Scored) -> Candidate:
    """Forecast the end of the ranked request there: it has no first token, its first output is its last.

    All that is there is taken to run before it, which is so in the order of arrival and too long for a short one where
    shorter work goes first.
    """
    if replica.denoise_cost is None:
        return Candidate(item.replica, 0.0, 0.0, reason=item.reason or "it tells no work", score=item.score)
    seconds = s_from_ns(replica.work_ns + replica.own_work_ns)
    return Candidate(item.replica, seconds, 1.0, reason=item.reason, score=item.score)
