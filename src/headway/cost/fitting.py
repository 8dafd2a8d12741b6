"""Fits step times to measured steps. Errors count relative to the step, so that a long one does not drown the short."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import Ns
from headway.cost.fitted import Coefficients, HeldOut, Ranges
from headway.cost.llm import StepShape
from headway.cost.nonnegative import solve_nonnegative

SAMPLES_MIN: Final = 20
OUTLIER: Final = 4.0  # a step that takes so many times what was predicted stood still for a reason of its own
_REWEIGH: Final = 4
_BLOCK: Final = 16  # neighbouring steps are alike: whole runs of them are held out
_FEATURES: Final = ("base_ns", "row_ns", "kv_ns", "token_ns", "pair_ns", "chunk_ns")


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One measured step. `host_ns`: exposed host time before it; None: it was hidden behind another step."""

    shape: StepShape
    step_ns: Ns
    host_ns: Ns | None = None


class StepFit(msgspec.Struct, frozen=True):
    """What came of it. `dropped`: samples left out as outliers."""

    coefficients: Coefficients
    ranges: Ranges
    samples: int
    dropped: int
    held_out: dict[str, HeldOut]
    notes: tuple[str, ...]


def fit_steps(samples: Sequence[Sample]) -> StepFit:
    """Fit to all samples; the held-out error is that of a fit to every other run of `_BLOCK` of them.

    Raises ConfigError when there are too few, or when all are of one shape.
    """
    if len(samples) < SAMPLES_MIN:
        raise ConfigError(
            f"{len(samples)} steps with a shape and a time are too few, {SAMPLES_MIN} at least; log for longer"
        )
    kept, dropped = _without_outliers(samples)
    seen = [one for place, one in enumerate(kept) if place // _BLOCK % 2 == 0]
    unseen = [one for place, one in enumerate(kept) if place // _BLOCK % 2 == 1]
    trial = _fit(seen)
    held_out = {}
    if unseen:
        held_out["step"] = error_of([trial.step_ns(one.shape) for one in unseen], [one.step_ns for one in unseen])
    exposed = [one for one in unseen if one.host_ns is not None]
    if exposed:
        predicted = [trial.host_base_ns + trial.host_row_ns * _rows(one) for one in exposed]
        held_out["host"] = error_of(predicted, [one.host_ns or 0 for one in exposed])
    notes = [f"{dropped} steps took more than {OUTLIER:g} times the fit and were left out"] if dropped else []
    notes += _unidentified(kept)
    return StepFit(_fit(kept), ranges_of([one.shape for one in kept]), len(kept), dropped, held_out, tuple(notes))


def ranges_of(shapes: Sequence[StepShape]) -> Ranges:
    """The largest of each feature."""
    return Ranges(
        max(shape.decodes for shape in shapes),
        max(shape.kv_tokens for shape in shapes),
        max(shape.prefill_tokens for shape in shapes),
        max(shape.prefill_pairs for shape in shapes),
    )


def error_of(predicted: Sequence[float], measured: Sequence[float]) -> HeldOut:
    """Error of predictions of single values, as shares of the measured mean."""
    total = sum(measured)
    if total <= 0:
        raise ConfigError("the held-out samples take no time at all; is this a log of steps?")
    off = sum(abs(a - b) for a, b in zip(predicted, measured, strict=True))
    return HeldOut(len(measured), sum(predicted) / total - 1, off / total)


def _row(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        float(shape.decodes),
        float(shape.kv_tokens),
        float(shape.prefill_tokens),
        float(shape.prefill_pairs),
        float(shape.chunks),
    )


def _rows(sample: Sample) -> int:
    return sample.shape.decodes + sample.shape.chunks


Row: TypeAlias = Sequence[float]


def _relative(rows: Sequence[Row], targets: Sequence[float]) -> list[float]:
    """Least squares of relative errors. Weighing by what is predicted, not by what was measured, keeps noise from
    pulling the fit down (a short outlier would count more than a long one)."""
    weights = [1.0 / target for target in targets]
    x: list[float] = []
    for _ in range(_REWEIGH):
        weighed = [[value * w for value in row] for row, w in zip(rows, weights, strict=True)]
        x = solve_nonnegative(weighed, [t * w for t, w in zip(targets, weights, strict=True)])
        weights = [1.0 / max(_dot(x, row), 1.0) for row in rows]
    return x


def _dot(x: list[float], row: Row) -> float:
    return sum(a * b for a, b in zip(x, row, strict=True))


def _fit(samples: Sequence[Sample]) -> Coefficients:
    x = _relative([_row(one.shape) for one in samples], [float(one.step_ns) for one in samples])
    exposed = [(one, one.host_ns) for one in samples if one.host_ns is not None]
    host = [0.0, 0.0]
    if exposed:
        rows = [(1.0, float(_rows(one))) for one, _ in exposed]
        host = _relative(rows, [float(max(ns, 1)) for _, ns in exposed])
    values = dict(zip(_FEATURES, x, strict=True))
    return msgspec.convert({**values, "host_base_ns": host[0], "host_row_ns": host[1]}, Coefficients)


def _without_outliers(samples: Sequence[Sample]) -> tuple[list[Sample], int]:
    """Leave out what stood still: first calls, a host that was busy elsewhere."""
    usable = [one for one in samples if one.step_ns > 0]
    if len(usable) < SAMPLES_MIN:
        raise ConfigError(f"only {len(usable)} of {len(samples)} steps took any time; is this a log of steps?")
    kept = usable
    for _ in range(2):
        model = _fit(kept)
        kept = [one for one in usable if one.step_ns <= OUTLIER * max(model.step_ns(one.shape), 1.0)]
    return kept, len(samples) - len(kept)


def _unidentified(samples: Sequence[Sample]) -> list[str]:
    """Name what the log cannot tell, because it does not vary."""
    notes = []
    for place, name in enumerate(_FEATURES[1:], 1):
        values = {_row(one.shape)[place] for one in samples}
        if len(values) == 1:
            notes.append(f"{name} is not identified: every step has the same {name.removesuffix('_ns')} feature")
    return notes
