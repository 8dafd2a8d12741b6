"""Refuse before the prefill what the calibrated forecast says cannot keep its SLO (SPEC A7, A7b)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import msgspec

from headway.core.decisions import Candidate
from headway.core.draw import draw_unit
from headway.core.effects import ErrorOut
from headway.core.ids import ModelId, RequestId
from headway.core.reports import AdmissionFigures
from headway.core.request import DiffusionRequest, LlmRequest, Request, Slo
from headway.core.units import NS_PER_S, Ns, s_from_ns
from headway.sched.admission.calibration import Calibration, CalibrationParams, Promise, Share
from headway.sched.admission.fewer_steps import steps_that_fit
from headway.sched.admission.protocol import Began, Considered, Heard, Load, Over, Prediction, Verdict

_DRAW: Final = 7  # place of this policy's draw among those of a request
_GRAIN_STEPS: Final = 2  # a token comes at the end of a step, after the one that runs


class _Late(msgspec.Struct, frozen=True):
    """A promise that the bounds break, in seconds from now."""

    what: Promise
    bound: float
    left: float
    can_wait_help: bool

    def said(self, quantile: float) -> str:
        """In words."""
        return f"{self.what} {self.bound * 1e3:.0f} ms at quantile {quantile:.2f}, {self.left * 1e3:.0f} ms are left"


class _Open(msgspec.Struct):
    """What was predicted for a request that is not over."""

    at_ns: Ns
    model: ModelId
    slo: Slo
    prediction: Prediction
    bounds: Prediction
    is_shadow: bool
    first_ns: Ns | None = None


class Predictive:
    """Predicts first token, time per token and end, at a quantile that holds a rate of false rejections."""

    needs: ClassVar[frozenset[str]] = frozenset({"queued", "has_room", "outlook"})
    sees: ClassVar[str] = "queue, forecast and decode load at the end of the prefill, deadlines; how forecasts held"
    good_at: ClassVar[str] = "goodput past the knee: what is let in is in time, and pools do not swing"
    blind_spot: ClassVar[str] = "what a new request costs the promises of those that run already"

    class Params(CalibrationParams, frozen=True, forbid_unknown_fields=True):
        """`queue_max`: requests that may wait; beyond `queue_watermark` of it only those with a promise.

        `confidence_min`: a forecast below it refuses nobody. `idle_margin`: an idle replica is refused only to what
        would be late if all went so many times faster than forecast: a wrong forecast locks nobody out.
        `shadow_share`: of the refusals, run all the same to judge them (a keyed draw). `degrade_tokens_min` and
        `degrade_steps_share` of the denoise steps: what `degrade` leaves at least. `degrade_margin`: fewer steps are
        chosen to be in time though all goes so many times slower, as a picture that is late is lost whole.
        `scale_share`: of the SLO that the wait may take before more replicas are asked for, at most every
        `scale_interval_s`. `retry_after_ms`: told when no forecast says how long. `seed` is part of every draw.

        Calibration: `quantile`, moved by `quantile_step` per judged refusal towards `false_reject_target`, within
        its two bounds; a forecast counts as it is before `samples_min` answers, of which the last `window` count.
        """

        queue_max: Annotated[int, msgspec.Meta(ge=0)] = 1024
        queue_watermark: Share = 0.8
        confidence_min: Share = 0.5
        idle_margin: Annotated[float, msgspec.Meta(ge=1)] = 2.0
        shadow_share: Share = 0.02
        degrade_tokens_min: Annotated[int, msgspec.Meta(ge=1)] = 16
        degrade_steps_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
        degrade_margin: Annotated[float, msgspec.Meta(ge=1)] = 1.25
        scale_share: Annotated[float, msgspec.Meta(gt=0)] = 0.5
        scale_interval_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0
        retry_after_ms: Annotated[int, msgspec.Meta(ge=1)] = 1000
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __init__(self, params: Params) -> None:
        self._params = params
        self._calibrations: dict[ModelId, Calibration] = {}
        self._fresh = Calibration(params)  # of a model of which nothing was heard
        self._open: dict[RequestId, _Open] = {}
        self._asked_ns: dict[ModelId, Ns] = {}  # when more replicas were asked for

    # The verdict

    def decide(self, request: Request, candidates: Sequence[Candidate], load: Load, at_ns: Ns) -> Verdict:
        """Refuse a full queue or a promise that would break, else admit; queue where nothing has room."""
        params, slo = self._params, request.slo
        has_promise = slo != Slo()
        if load.queued >= params.queue_max * (1.0 if has_promise else params.queue_watermark):
            return self._full(request, candidates, load, has_promise)
        if not candidates:
            return self._let_in(load, None, "cold")
        best = candidates[0]
        prediction = self._predict(best, load)
        bounds = self._bounds(request.model, prediction)
        asks = self._asks_scale_out(request, best, load, at_ns)
        late = self._late(request, bounds, load, at_ns) if best.confidence >= params.confidence_min else None
        verdict = None
        if late is not None and isinstance(request, DiffusionRequest):
            slower = bounds.e2e / prediction.e2e if prediction.e2e > 0 else 1.0
            verdict = self._fewer_steps(request, late, load, slower)
        elif late is not None:
            verdict = self._fewer(request, late, bounds)
        if verdict is None and late is not None and load.outlook.is_idle:
            late = self._late(request, _alone(load, 1.0 / params.idle_margin), load, at_ns)
        if verdict is None:
            verdict = self._let_in(load, None, "") if late is None else self._refuse(request, late, load)
        return msgspec.structs.replace(verdict, prediction=prediction, asks_scale_out=asks)

    def _predict(self, best: Candidate, load: Load) -> Prediction:
        step, room = load.outlook.step_seconds, load.outlook.room_seconds
        is_split = best.decode is not None and best.decode != best.replica
        ttft = load.queue_seconds + best.seconds + (0.0 if is_split else room)
        end = ttft + (room if is_split else 0.0) + step * max(0, load.output_tokens - 1)
        return Prediction(ttft, step, end, _GRAIN_STEPS * step)

    def _bounds(self, model: ModelId, forecast: Prediction) -> Prediction:
        known = self._calibrations.get(model, self._fresh)
        return Prediction(
            known.bound("ttft", forecast.ttft, forecast.grain),
            known.bound("tpot", forecast.tpot, 0.0),
            known.bound("e2e", forecast.e2e, forecast.grain),
        )

    @staticmethod
    def _late(request: Request, bounds: Prediction, load: Load, at_ns: Ns) -> _Late | None:
        slo, alone = request.slo, _alone(load, 1.0)
        if slo.ttft_deadline_ns is not None:
            left = s_from_ns(slo.ttft_deadline_ns - at_ns)
            if bounds.ttft > left:
                can_wait_help = alone.ttft <= s_from_ns(slo.ttft_deadline_ns - request.arrived_ns)
                return _Late("ttft", bounds.ttft, left, can_wait_help)
        if slo.tpot_ns is not None and bounds.tpot > s_from_ns(slo.tpot_ns):
            # Alone, a step takes at least its row's share of the one it would take now.
            rows, left = load.outlook.rows, s_from_ns(slo.tpot_ns)
            return _Late("tpot", bounds.tpot, left, rows > 0 and bounds.tpot / (rows + 1) <= left)
        if slo.e2e_deadline_ns is not None:
            left = s_from_ns(slo.e2e_deadline_ns - at_ns)
            if bounds.e2e > left:
                can_wait_help = alone.e2e <= s_from_ns(slo.e2e_deadline_ns - request.arrived_ns)
                return _Late("e2e", bounds.e2e, left, can_wait_help)
        return None

    def _quantile(self, request: Request) -> float:
        return self._calibrations.get(request.model, self._fresh).quantile

    def _fewer(self, request: Request, late: _Late, bounds: Prediction) -> Verdict | None:
        """It would end late: take tokens away where that is allowed and enough."""
        if late.what != "e2e" or not isinstance(request, LlmRequest) or "max_tokens" not in request.allow_degrade:
            return None
        fits = int((late.left - bounds.ttft) / bounds.tpot) + 1 if bounds.tpot > 0 else 0
        least = max(self._params.degrade_tokens_min, request.sampling.min_tokens)
        if not least <= fits < request.max_tokens:
            return None
        return Verdict(
            "degrade", f"{late.said(self._quantile(request))}; max_tokens {fits} fit", left=(("max_tokens", fits),)
        )

    def _fewer_steps(self, request: DiffusionRequest, late: _Late, load: Load, slower: float) -> Verdict | None:
        """A picture would be late: denoise it in fewer steps where that is allowed and enough."""
        step_s = load.denoise_step_seconds * slower * min(1.0, request.strength)  # an edit skips its share of them
        if step_s <= 0 or "steps" not in request.allow_degrade:
            return None
        fits = steps_that_fit(request, late.bound, late.left, step_s, self._params)
        if fits is None:
            return None
        return Verdict("degrade", f"{late.said(self._quantile(request))}; {fits} steps fit", left=(("steps", fits),))

    def _refuse(self, request: Request, late: _Late, load: Load) -> Verdict:
        """It will be late: refuse it, or see whether that would be right."""
        quantile = self._quantile(request)
        said = late.said(quantile)
        attempts = 0 if isinstance(request, DiffusionRequest) else request.attempts
        if draw_unit(self._params.seed, request.id, attempts, _DRAW) < self._params.shadow_share:
            let_in = self._let_in(load, None, "")
            return msgspec.structs.replace(let_in, reason=f"{said}; it runs to judge the refusals", is_shadow=True)
        retry_ms = max(1, round((late.bound - late.left) * 1e3))
        if late.what == "tpot":  # how long the others decode on says no forecast
            retry_ms = self._params.retry_after_ms
        error = ErrorOut(
            429,
            "slo_unattainable",
            f"request {request.id}: {late.what} is forecast {late.bound * 1e3:.0f} ms from now at quantile "
            f"{quantile:.2f}, its SLO leaves {late.left * 1e3:.0f} ms",
            retry_ms,
            waiting_helps=late.can_wait_help,
        )
        return Verdict("reject", said, error)

    def _full(self, request: Request, candidates: Sequence[Candidate], load: Load, has_promise: bool) -> Verdict:
        wait_s = load.queue_seconds + (candidates[0].seconds if candidates else 0.0)
        retry_ms = max(self._params.retry_after_ms, round(wait_s * 1e3))
        limit = (
            "the limit" if has_promise else f"{self._params.queue_watermark:g} of the limit, for requests without SLO,"
        )
        message = f"request {request.id}: {load.queued} requests wait, {limit} is reached; retry after {retry_ms} ms"
        return Verdict("reject", "queue full", ErrorOut(429, "queue_full", message, retry_ms))

    @staticmethod
    def _let_in(load: Load, prediction: Prediction | None, why: str) -> Verdict:
        if load.queued:
            return Verdict("queue", f"{load.queued} wait before it", prediction=prediction)
        if not load.has_room:
            return Verdict("queue", why or "no replica has room", prediction=prediction)
        return Verdict("admit", why or "a replica has room", prediction=prediction)

    def _asks_scale_out(self, request: Request, best: Candidate, load: Load, at_ns: Ns) -> bool:
        """The predicted wait takes more than its share of the SLO (A12)."""
        slo, last_ns = request.slo, self._asked_ns.get(request.model)
        due_ns = slo.ttft_deadline_ns if slo.ttft_deadline_ns is not None else slo.e2e_deadline_ns
        if due_ns is None or (last_ns is not None and at_ns - last_ns < self._params.scale_interval_s * NS_PER_S):
            return False
        wait = load.queue_seconds + best.seconds - load.prefill_seconds
        return wait > self._params.scale_share * s_from_ns(due_ns - request.arrived_ns)

    # What happened

    def observe(self, event: Heard) -> None:
        """Compare predictions with what came."""
        match event:
            case Considered():
                self._considered(event)
            case Began():
                self._began(event)
            case Over():
                self._over(event)

    def _considered(self, event: Considered) -> None:
        request, verdict = event.request, event.verdict
        if verdict.asks_scale_out:
            self._asked_ns[request.model] = event.at_ns
        if verdict.prediction is None or verdict.error is not None:
            return
        self._open[request.id] = _Open(
            event.at_ns,
            request.model,
            request.slo,
            verdict.prediction,
            self._bounds(request.model, verdict.prediction),
            verdict.is_shadow,
        )

    def _of(self, model: ModelId) -> Calibration:
        if model not in self._calibrations:
            self._calibrations[model] = Calibration(self._params)
        return self._calibrations[model]

    def _began(self, event: Began) -> None:
        item = self._open.get(event.request)
        if item is not None and item.first_ns is None:
            item.first_ns = event.at_ns
            forecast = (item.prediction.ttft, item.prediction.grain)
            self._of(item.model).came("ttft", forecast, item.bounds.ttft, s_from_ns(event.at_ns - item.at_ns))

    def _over(self, event: Over) -> None:
        item = self._open.pop(event.request, None)
        if item is None or event.outcome == "lost":
            return
        known, forecast, bounds, count = self._of(item.model), item.prediction, item.bounds, event.output_tokens
        took, grain = s_from_ns(event.at_ns - item.at_ns), forecast.grain
        tpot_ns = None
        if item.first_ns is not None and count > 1:
            tpot_ns = (event.at_ns - item.first_ns) / (count - 1)
            known.came("tpot", (forecast.tpot, 0.0), bounds.tpot, tpot_ns / NS_PER_S)
        if event.outcome == "late":
            if item.first_ns is None:
                known.never_came("ttft", (forecast.ttft, grain), bounds.ttft, took)
            known.never_came("e2e", (forecast.e2e, grain), bounds.e2e, took)
        else:
            known.came("e2e", (forecast.e2e, grain), bounds.e2e, took)
        if item.is_shadow:
            known.shadowed(event.outcome == "done" and _kept(item, event.at_ns, tpot_ns))

    def figures(self) -> Sequence[AdmissionFigures]:
        """Coverage, false rejections and quantile of every model that was predicted for."""
        return [known.figures(model) for model, known in self._calibrations.items()]


def _alone(load: Load, share: float) -> Prediction:
    """A share of what the request takes where nothing else runs."""
    step = load.outlook.step_seconds
    end = load.prefill_seconds + step * max(0, load.output_tokens - 1)
    return Prediction(load.prefill_seconds * share, step * share, end * share)


def _kept(item: _Open, ended_ns: Ns, tpot_ns: float | None) -> bool:
    slo, first_ns = item.slo, item.first_ns
    return (
        (slo.ttft_deadline_ns is None or (first_ns is not None and first_ns <= slo.ttft_deadline_ns))
        and (slo.tpot_ns is None or tpot_ns is None or tpot_ns <= slo.tpot_ns)
        and (slo.e2e_deadline_ns is None or ended_ns <= slo.e2e_deadline_ns)
    )
