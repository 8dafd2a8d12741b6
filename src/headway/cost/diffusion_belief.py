"""The belief of one diffusion replica: where the catalogue puts it, corrected by what plans took (SPEC F2).

Efficiency and step-cache speed-up of a replica are constants that nobody knows exactly beforehand, so one factor is
learned for all shapes, one for each shape and one for each size of its batches; what was seen seldom leans on the
factor of what is more general. What batches gain is therefore measured wherever they have run.
"""

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from headway.core.artifacts import StageTimes
from headway.core.plans import DenoisePlan
from headway.core.reports import DenoiseCoefficients, WarmShape
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.core.units import Ns
from headway.cost.diffusion import begin_ns, decode_ns, encode_ns, gain, left_ns, passes_of, step_ns
from headway.cost.first_runs import FirstRuns
from headway.cost.interruption import InterruptionPrice
from headway.cost.means import Mean

_SHAPES_MAX: Final = 256  # of which the oldest is forgotten; as many of shapes with a size
_Key = TypeVar("_Key")


class DenoiseCostParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast measured plans correct what is believed."""

    learn: bool = True  # correct the catalogue by what plans took
    memory_plans: Annotated[int, msgspec.Meta(ge=2)] = 100  # after so many a plan weighs a third
    trust_plans: Annotated[int, msgspec.Meta(ge=1)] = 5  # plans of a shape that weigh as much as all other shapes


def plan_ns(cost: DenoiseCoefficients, plan: DenoisePlan) -> float:
    """Return the time of a plan: rows that begin are encoded together, all run together, rows that end are decoded.

    Rows of a batch have equally many steps; a ragged one takes as long as its longest row.
    """
    shape = plan.shape or DenoiseShape(plan.height, plan.width)
    pictures = sum(row.pictures for row in plan.rows)
    begun = sum(row.start == 0 for row in plan.rows)
    ended = sum(row.pictures for row in plan.rows if row.start + row.count == row.total)
    steps = max(row.runs for row in plan.rows)
    shared_ns = max(0, begun - 1) * passes_of(cost, shape) * cost.text_shared_ns  # prompts are encoded in one call
    brought_ns = sum(begin_ns(cost, new.request) for new in plan.new if not new.request.begun)
    before = plan.merges * cost.merge_ns + begun * encode_ns(cost, shape) - shared_ns + brought_ns
    return before + steps * step_ns(cost, shape, pictures) + decode_ns(cost, shape, ended)


class DenoiseCost:
    """Deterministic: plain floats, no clock."""

    def __init__(self, start: DenoiseCoefficients, params: DenoiseCostParams | None = None) -> None:
        self._start = start
        self._params = params or DenoiseCostParams()
        self._common = Mean()
        self._shapes: dict[DenoiseShape, Mean] = {}
        self._sizes: dict[tuple[DenoiseShape, int], Mean] = {}  # by pictures in the batch
        self._error = Mean()
        self.interruption = InterruptionPrice(self._params.memory_plans)
        self.first_runs = FirstRuns(self._params.memory_plans)

    def begin(self, shapes: Sequence[WarmShape]) -> None:
        """Take what a warm-up has measured beside what its work costs."""
        self.interruption.begin(shapes)
        self.first_runs.begin(shapes)

    @property
    def error(self) -> float | None:
        """Mean relative error of the predictions of the last plans, each made before its plan ran."""
        return self._error.value if self._error.count else None

    @property
    def coefficients(self) -> DenoiseCoefficients:
        """What is believed now, for a report: the common factor is in every time."""
        k, c = self._common.value, self._start
        return msgspec.structs.replace(
            c,
            base_ns=c.base_ns * k,
            floor_ns=c.floor_ns * k,
            token_ns=c.token_ns * k,
            pair_ns=c.pair_ns * k,
            text_ns=c.text_ns * k,
            text_shared_ns=c.text_shared_ns * k,
            reference_ns=c.reference_ns * k,
            image_prompt_ns=c.image_prompt_ns * k,
            begin_ns=c.begin_ns * k,
            decode_ns=c.decode_ns * k,
            merge_ns=c.merge_ns * k,
            error=self.error,
            save_ns=self.interruption.save.mean_ns,
            resume_ns=self.interruption.resume.mean_ns,
            interruption_error=self.interruption.error,
            first_ns=float(self.first_runs.more_ns),
        )

    def factor(self, shape: DenoiseShape, pictures: int | None = None) -> float:
        """Measured over catalogue, as far as known for this shape, and for batches of so many pictures of it."""
        of_shape = self._leaning(self._shapes.get(shape), self._common.value)
        if pictures is None:
            return of_shape
        return self._leaning(self._sizes.get((shape, pictures)), of_shape)

    def _leaning(self, known: Mean | None, general: float) -> float:
        if known is None:
            return general
        trust = self._params.trust_plans
        return (known.value * known.count + general * trust) / (known.count + trust)

    def plan_ns(self, plan: DenoisePlan) -> Ns:
        """Predicted time of a plan."""
        return round(plan_ns(self._start, plan) * self.factor(_shape(plan), _pictures(plan)))

    def left_ns(self, request: DiffusionRequest, done: int | None = None) -> Ns:
        """Predicted time of a request alone, from now (None: from the steps that it came with) to its end."""
        return round(left_ns(self._start, request, done) * self.factor(request.shape, request.n))

    @property
    def merges(self) -> bool:
        """True where an adapter is merged into the weights while it is used."""
        return self._start.merge_ns > 0

    @property
    def merge_ns(self) -> float:
        """One rewrite of all weights; 0 where adapters are not merged."""
        return self._start.merge_ns * self._common.value

    def gain(self, shape: DenoiseShape, pictures: int) -> float:
        """MFU(b)/MFU(1): predicted, and measured where such batches and single pictures have run."""
        return gain(self._start, shape, pictures) * self.factor(shape, 1) / self.factor(shape, pictures)

    def observe(self, plan: DenoisePlan, took_ns: Ns, stages: StageTimes | None = None) -> None:
        """Fold in one measured plan. What checkpoints took of it is no work of its rows; of a cold one it is what first
        runs take, and teaches nothing of those that follow."""
        if stages is not None:
            took_ns -= stages.save_ns + stages.resume_ns
        if plan.is_cold:
            if any(row.runs_first for row in plan.rows):
                self.first_runs.observe(took_ns, self.plan_ns(plan))
            return
        if stages is not None:
            self.interruption.observe(plan, stages)
        params, predicted = self._params, plan_ns(self._start, plan)
        if took_ns <= 0 or predicted <= 0 or not any(row.runs for row in plan.rows):
            return  # steps that are only counted teach nothing of steps
        shape, pictures, ratio = _shape(plan), _pictures(plan), took_ns / predicted
        self._error.observe(abs(self.factor(shape, pictures) / ratio - 1.0), params.memory_plans)
        if not params.learn:
            return
        self._common.observe(ratio, params.memory_plans)
        _kept(self._shapes, shape).observe(ratio, params.memory_plans)
        _kept(self._sizes, (shape, pictures)).observe(ratio, params.memory_plans)


def _kept(factors: dict[_Key, Mean], key: _Key) -> Mean:
    known = factors.get(key)
    if known is None:
        if len(factors) >= _SHAPES_MAX:
            del factors[next(iter(factors))]
        known = factors[key] = Mean()
    return known


def _pictures(plan: DenoisePlan) -> int:
    return sum(row.pictures for row in plan.rows)


def _shape(plan: DenoisePlan) -> DenoiseShape:
    return plan.shape or DenoiseShape(plan.height, plan.width)
