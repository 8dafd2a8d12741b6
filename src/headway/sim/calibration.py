"""From measured steps to a cost file: what of a step's time was device, and what was host."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.core.step_record import StepRecord
from headway.core.units import NS_PER_S
from headway.cost.devices import BYTES_OF, check_dtype, find_device
from headway.cost.fitted import CostFile, Stamp
from headway.cost.fitting import Sample, StepFit, fit_steps
from headway.cost.llm import StepShape
from headway.cost.models_catalogue import find_model

_NUMBERS: Final = {"auto": "bfloat16", "": "bfloat16"}  # what an engine takes where nothing is said

EXPOSED_MIN: Final = 20  # steps that waited for the host; with fewer, planning time stands for it


class Origin(msgspec.Struct, frozen=True):
    """Where measurements come from, for the stamp. `date` is that of the fit."""

    stamp: Stamp
    source: str
    date: str


def weights_ns(stamp: Stamp) -> float:
    """The time in which the device reads the weights once, at its peak: no step takes less. 0: not in the catalogues.

    Chosen experts do not count: a small batch may miss them.
    """
    try:
        model, device = find_model(stamp.model.rpartition("/")[2]), find_device(stamp.device)
        number = BYTES_OF[check_dtype(_NUMBERS.get(stamp.dtype, stamp.dtype))]
    except ConfigError:
        return 0.0
    read = model.linear_parameters * number + model.head_parameters * max(number, 2.0)
    return read / (device.bytes_per_s * stamp.layout.get("tp", 1)) * NS_PER_S


def samples_of(steps: Sequence[StepRecord]) -> list[Sample]:
    """What each step took of its executor, and the host time that the executor waited for.

    The executor is taken from the launch, or from the end of the step before where that is later (on a device that
    works by itself launches run ahead): so the samples of a busy replica add up to the time that has passed.
    """
    before: dict[str, StepRecord] = {}
    found = []
    for step in steps:
        earlier = before.get(step.replica)
        before[step.replica] = step
        free_ns = earlier.done_ns if earlier is not None and earlier.step < step.step else step.launched_ns
        took_ns = step.done_ns - max(free_ns, step.launched_ns)
        waited_ns = step.idle_gap_ns - (step.started_ns - step.launched_ns)
        host_ns = waited_ns if step.idle_gap_ns and waited_ns > 0 else None
        found.append(Sample(_shape(step), took_ns, host_ns))
    if sum(one.host_ns is not None for one in found) >= EXPOSED_MIN:
        return found
    return [Sample(one.shape, one.step_ns, step.plan_ns or None) for one, step in zip(found, steps, strict=True)]


def _shape(step: StepRecord) -> StepShape:
    return StepShape(
        step.decodes,
        step.kv_tokens,
        step.prefill_tokens,
        step.prefill_pairs,
        chunks=step.chunks,
        chunk_context=step.chunk_context,
    )


def calibrate_steps(steps: Sequence[StepRecord], origin: Origin) -> CostFile:
    """Fit a cost file. Raises ConfigError when the steps do not suffice."""
    fit = fit_steps(samples_of(steps))
    return CostFile(
        stamp=origin.stamp,
        source=origin.source,
        date=origin.date,
        coefficients=fit.coefficients,
        ranges=fit.ranges,
        samples=fit.samples,
        held_out=fit.held_out,
        notes=_notes(fit, steps),
    )


def _notes(fit: StepFit, steps: Sequence[StepRecord]) -> tuple[str, ...]:
    waited = sum(1 for step in steps if step.idle_gap_ns > step.started_ns - step.launched_ns)
    if waited >= EXPOSED_MIN:
        return fit.notes
    if any(step.plan_ns for step in steps):
        said = f"only {waited} steps waited for the host: its time is that of planning alone"
    else:
        said = "the log tells no host time: it is part of base_ns, or missing where it was not measured"
    return (*fit.notes, said)
