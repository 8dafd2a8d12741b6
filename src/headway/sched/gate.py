"""What a front asks before it lets a request in: the router's forecast, what runs then (flights), and the policy."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from headway.core.decisions import Candidate, Explanation
from headway.core.effects import ErrorOut
from headway.core.ids import ModelId, NodeId
from headway.core.reports import AdmissionFigures, ReplicaReport
from headway.core.request import DiffusionRequest, LanguageRequest, LlmRequest, Request, TextRequest
from headway.core.units import NS_PER_S, Ns, ns_from_s
from headway.cost.diffusion import left_ns, step_ns
from headway.sched.admission.protocol import (
    AdmissionPolicy,
    Heard,
    Lessened,
    Load,
    Outlook,
    Verdict,
    lessened,
)
from headway.sched.admission.queue import GlobalQueue, line_of
from headway.sched.flights import Flights, Moment
from headway.sched.router.cost_terms import prefill_s
from headway.sched.router.explain import explain, output_tokens
from headway.sched.router.fleet_view import Replica, expected_output
from headway.sched.router.machine import Router
from headway.sched.router.work import kind_of, lacking


class Ways(msgspec.Struct, frozen=True):
    """Where a refused request of one model may go: `transfers` as the operator says, `smaller` if its client allows."""

    transfers: tuple[ModelId, ...] = ()
    smaller: tuple[ModelId, ...] = ()


class Admissions(msgspec.Struct, frozen=True):
    """The admission policy, those of single models that have their own, and where what they refuse may go."""

    policy: AdmissionPolicy
    by_model: Mapping[ModelId, AdmissionPolicy] = {}  # msgspec copies the default
    ways: Mapping[ModelId, Ways] = {}

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
        policies = (admissions.policy, *admissions.by_model.values())
        self.looks_ahead = any("outlook" in policy.needs for policy in policies)  # how far each request has come

    def explain(self, request: Request, at_ns: Ns) -> Explanation:
        """Where the request would go now, against which replicas, and what admission would say. Changes nothing."""
        verdict = self.judge(request, at_ns).verdict
        return Explanation(
            model=request.model,
            policy=self._router.choices.name_of(request.model),
            prompt_tokens=0 if isinstance(request, DiffusionRequest) else request.prompt_tokens,
            output_tokens=output_tokens(request),
            verdict=verdict.kind,
            verdict_reason=verdict.reason,
            replicas=explain(self._router, request, at_ns),
            left=verdict.left if verdict.kind == "degrade" else (),
            unservable=verdict.error.message if verdict.error and verdict.error.code == "unservable" else None,
        )

    def judge(self, request: Request, at_ns: Ns) -> Judged:
        """Forecast, and let the policy decide on the forecast; what it refuses may go elsewhere. Changes nothing."""
        judged = self._here(request, at_ns)
        ways = self._admissions.ways.get(request.model)
        if judged.verdict.kind != "reject" or ways is None:
            return judged
        smaller = ways.smaller if "model" in request.allow_degrade else ()
        if isinstance(request, DiffusionRequest):
            if request.is_chunk:  # latents are of one model
                return judged
            return self._other_model(request, judged, (*ways.transfers, *smaller), at_ns)
        return msgspec.structs.replace(judged, verdict=self._elsewhere(request, judged.verdict, ways, smaller, at_ns))

    def _here(self, request: Request, at_ns: Ns) -> Judged:
        candidates, policy = self._router.forecast(request, at_ns), self._admissions.of(request.model)
        if not candidates and isinstance(request, DiffusionRequest) and (why := self._lacking(request)) is not None:
            return Judged(Verdict("reject", "unservable", ErrorOut(400, "unservable", why, waiting_helps=False)), ())
        load = self._load(request, candidates, at_ns, looks_ahead="outlook" in policy.needs)
        return Judged(policy.decide(request, candidates, load, at_ns), candidates)

    def _lacking(self, request: DiffusionRequest) -> str | None:
        """Why no replica of its model that is there will ever run it, by the one with most room; None: one will, or
        nobody can tell. Replicas whose pool is for other sizes count too: they may move."""
        reports = [replica.report for replica in self._router.replicas.values()]
        own = [report for report in reports if report is not None and request.model in (report.model, *report.models)]
        told = [(_room(report), report.replica, lacking(report, request)) for report in own]
        if not told or any(why is None for _, _, why in told):
            return None
        return max(told)[2]

    def _other_model(self, request: DiffusionRequest, refused: Judged, models: Sequence[ModelId], at_ns: Ns) -> Judged:
        """A picture needs no other tokenizer: it goes on here, with the first other model that would be in time, in no
        more steps than that model is made for."""
        for model in models:
            left: list[tuple[Lessened, int | str]] = [("model", model)]
            steps = self._steps_of(model)
            if request.begun < steps < request.steps:
                left.append(("steps", steps))
            there = self._here(lessened(request, left), at_ns)
            if there.candidates and there.verdict.error is None:
                left += there.verdict.left
                reason = f"{refused.verdict.reason}; {model}: {there.verdict.kind}, {there.verdict.reason}"
                return Judged(Verdict("degrade", reason, left=tuple(left)), there.candidates)
        return refused

    def _steps_of(self, model: ModelId) -> int:
        """Denoise steps that a model is made for; 0: nobody has told."""
        reports = [replica.report for replica in self._router.replicas.values()]
        return max((r.denoise_cost.steps for r in reports if r and r.model == model and r.denoise_cost), default=0)

    def _elsewhere(
        self, request: LanguageRequest, refused: Verdict, ways: Ways, smaller: Sequence[ModelId], at_ns: Ns
    ) -> Verdict:
        """The first other model whose replicas would let the request in now; the refusal where there is none."""
        kinds: list[tuple[ModelId, Literal["transfer", "degrade"]]] = [(model, "transfer") for model in ways.transfers]
        kinds += [(model, "degrade") for model in smaller]
        for model, kind in kinds:
            for form in (_as_tokens(request, model), _as_text(request, model)):
                there = None if form is None else self._here(form, at_ns)
                if there is not None and there.candidates and there.verdict.error is None:
                    reason = f"{refused.reason}; {model}: {there.verdict.kind}, {there.verdict.reason}"
                    return msgspec.structs.replace(refused, kind=kind, reason=reason, to=model)
        return refused

    def has_fallback(self, model: ModelId, at_ns: Ns) -> bool:
        """True while another model can answer in place of this one."""
        ways = self._admissions.ways.get(model)
        return ways is not None and any(self._router.can_serve(other, at_ns) for other in ways.smaller)

    def hear(self, event: Heard, model: ModelId) -> None:
        """Let the model's policy learn."""
        self._admissions.of(model).observe(event)

    def figures(self) -> list[AdmissionFigures]:
        """What the policies say of their predictions."""
        policies = [self._admissions.policy, *self._admissions.by_model.values()]
        return [figures for policy in policies for figures in policy.figures()]

    def _load(self, request: Request, candidates: Sequence[Candidate], at_ns: Ns, *, looks_ahead: bool) -> Load:
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
            self._outlook(request, candidates, queue_s, at_ns) if looks_ahead else _NOT_LOOKED,
            self._step_seconds(best, request),
        )

    def _step_seconds(self, best: Candidate, request: Request) -> float:
        cost = self._router.replicas[NodeId(best.replica)].denoise_cost
        if cost is None or not isinstance(request, DiffusionRequest):
            return 0.0
        return step_ns(cost, request.shape, request.n) / NS_PER_S

    def device_us(self, request: Request) -> int | None:
        """What a picture or video is believed to take of devices, where that is least; None: nobody can tell."""
        if not isinstance(request, DiffusionRequest):
            return None
        replicas, kind = self._router.replicas.values(), kind_of(request)
        costs = [replica.denoise_cost for replica in replicas if _can_run(replica, request, kind)]
        took = [left_ns(cost, request) * cost.devices // 1000 for cost in costs if cost is not None]
        return min(took, default=None)

    def _prefill_seconds(self, best: Candidate, request: Request) -> float:
        replica = self._router.replicas[NodeId(best.replica)]
        if isinstance(request, DiffusionRequest):  # its first output is its last: what it takes alone
            return 0.0 if replica.denoise_cost is None else left_ns(replica.denoise_cost, request) / NS_PER_S
        if replica.prefill_tokens_per_s <= 0:
            return 0.0
        return prefill_s(replica, request.prompt_tokens, replica.hit_tokens)

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


_NOT_LOOKED: Final = Outlook()


def _room(report: ReplicaReport) -> int:
    memory = report.denoise_memory
    return 0 if memory is None or memory.room is None else memory.room


def _can_run(replica: Replica, request: DiffusionRequest, kind: str) -> bool:
    report = replica.report
    if report is None or request.model not in (report.model, *report.models):
        return False
    return replica.takes(request, kind)


def _as_tokens(request: LanguageRequest, model: ModelId) -> LlmRequest | None:
    """The request at a model of our own engines, as far as it can be known before its tokenizer has seen it."""
    if isinstance(request, TextRequest):
        return None
    return msgspec.structs.replace(request, model=model, block_hashes=())


def _as_text(request: LanguageRequest, model: ModelId) -> TextRequest:
    """The request at a relayed model."""
    if isinstance(request, TextRequest):
        return msgspec.structs.replace(request, model=model)
    return TextRequest(
        request.id,
        request.tenant,
        model,
        request.prompt_tokens,
        request.max_tokens,
        request.arrived_ns,
        slo=request.slo,
        urgency=request.urgency,
        output_tokens_predicted=request.output_tokens_predicted,
    )
