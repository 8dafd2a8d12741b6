"""What a front asks before it lets a request in: the router's forecast, what runs then (flights), and the policy."""

from collections.abc import Mapping, Sequence

import msgspec

from headway.core.decisions import Candidate
from headway.core.ids import ModelId, NodeId
from headway.core.reports import AdmissionFigures
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, ns_from_s
from headway.sched.admission.protocol import AdmissionPolicy, Heard, Load, Outlook, Verdict
from headway.sched.admission.queue import GlobalQueue, line_of
from headway.sched.flights import Flights, Moment
from headway.sched.router.fleet_view import expected_output
from headway.sched.router.machine import Router


class Admissions(msgspec.Struct, frozen=True):
    """The admission policy, and those of single models that have their own."""

    policy: AdmissionPolicy
    by_model: Mapping[ModelId, AdmissionPolicy] = {}  # msgspec copies the default

    def of(self, model: ModelId) -> AdmissionPolicy:
        """Return the policy that guards a model."""
        return self.by_model.get(model, self.policy)


class Judged(msgspec.Struct, frozen=True):
    """A verdict and what it was given on."""

    verdict: Verdict
    candidates: Sequence[Candidate]


class Gate:
    """Asks admission; it moves no request."""

    def __init__(self, router: Router, queue: GlobalQueue, admissions: Admissions) -> None:
        self.flights = Flights()
        self._router, self._queue, self._admissions = router, queue, admissions

    def judge(self, request: Request, at_ns: Ns) -> Judged:
        """Forecast, and let the policy decide on the forecast. Changes nothing."""
        candidates = self._router.forecast(request, at_ns)
        load = self._load(request, candidates, at_ns)
        return Judged(self._admissions.of(request.model).decide(request, candidates, load, at_ns), candidates)

    def hear(self, event: Heard, model: ModelId) -> None:
        """Let the model's policy learn."""
        self._admissions.of(model).observe(event)

    def figures(self) -> list[AdmissionFigures]:
        """What the policies say of their predictions."""
        policies = [self._admissions.policy, *self._admissions.by_model.values()]
        return [figures for policy in policies for figures in policy.figures()]

    def _load(self, request: Request, candidates: Sequence[Candidate], at_ns: Ns) -> Load:
        line, router = line_of(request), self._router
        queued = self._queue.length(line)
        if not candidates:
            return Load(queued, False, 0.0, 0.0)
        best = candidates[0]
        queue_s = router.queue_seconds(candidates, self._queue.tokens(line))
        return Load(
            queued,
            router.has_room(best),
            router.decode_seconds(best, request),
            queue_s,
            self._prefill_seconds(best, request),
            max(1, expected_output(request)),
            self._outlook(request, candidates, queue_s, at_ns),
        )

    def _prefill_seconds(self, best: Candidate, request: Request) -> float:
        replica = self._router.replicas[NodeId(best.replica)]
        if isinstance(request, DiffusionRequest) or replica.prefill_tokens_per_s <= 0:
            return 0.0
        return max(0, request.prompt_tokens - replica.hit_tokens) / replica.prefill_tokens_per_s

    def _outlook(self, request: Request, candidates: Sequence[Candidate], queue_s: float, at_ns: Ns) -> Outlook:
        best, router, line = candidates[0], self._router, line_of(request)
        first = router.replicas[NodeId(best.replica)]
        decoder = router.replicas[NodeId(best.decode or best.replica)]
        if decoder.report is None:
            return Outlook(is_idle=True)
        share = 1.0 / len(candidates)  # of the queue ahead, as if it spread evenly
        moment = Moment(
            at_ns,
            at_ns + ns_from_s(queue_s + best.seconds),
            self._queue.length(line) * share,
            self._queue.tokens(line) * share,
        )
        is_idle = not (first.requests or decoder.requests or self._queue.length(line))
        return msgspec.structs.replace(self.flights.foresee(request, decoder.report, moment), is_idle=is_idle)
