"""Corrections of the roofline by published measurements: per engine, model, device and number type.

TPOT of a closed loop = scale * roofline + step + row * concurrency
TTFT of a closed loop = base + (prompt + crowd * concurrency) * (roofline of the prompt)
                        + (text + texts * concurrency) * (prompt tokens / 1024)

The first is a step model like any other (`CorrectedStep`). The second is a description: prompts that come at once, at
the start of a run and after, wait for each other, on the device and where they are received and tokenised.
"""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from headway.core.units import NS_PER_MS
from headway.cost.closed_loop import ClosedLoop, prefill_ns, tpot_ns
from headway.cost.deployment import Deployment
from headway.cost.efficiency import Efficiency
from headway.cost.llm import StepShape
from headway.cost.roofline import RooflineModel
from headway.cost.step import StepModel

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
TEXT_TOKENS: Final = 1024

Key: TypeAlias = tuple[str, ...]  # (), (engine), (engine, model) or (engine, model, device, number type)


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times in milliseconds. `rows`: measurements that it was fitted to."""

    rows: int
    scale: NotNegative
    step_ms: NotNegative
    row_ms: NotNegative
    base_ms: NotNegative
    prompt: NotNegative
    crowd: NotNegative
    text_ms: NotNegative
    texts_ms: NotNegative


class CorrectedStep:
    """A `cost.step.StepModel`."""

    def __init__(self, roofline: StepModel, correction: Correction) -> None:
        self._roofline, self._scale = roofline, correction.scale
        self._step_ns, self._row_ns = correction.step_ms * NS_PER_MS, correction.row_ms * NS_PER_MS

    def step_ns(self, shape: StepShape) -> float:
        """Device time of a step. What the roofline does not explain counts as device time."""
        return self._scale * self._roofline.step_ns(shape) + self._step_ns

    def host_ns(self, rows: int) -> float:
        """Host time that grows with the rows."""
        return self._row_ns * rows


class Prediction(NamedTuple):
    """What clients of a closed loop see, and how much stands behind it. `near`: what the correction was found for."""

    ttft_ms: float
    tpot_ms: float
    near: Key
    rows: int


def shares_alone() -> Efficiency:
    """Shares of peaks without times: what corrections are relative to. Whoever changes one fits them again."""
    return Efficiency(
        name="shares alone",
        compute=0.63,
        attention=0.5,
        memory=0.81,
        collective_floor=0.53,
        overhead_ns=0.0,
        host_base_ns=0.0,
        host_row_ns=0.0,
        experts=0.5,
        imbalance=1.15,
        source="those of `vllm` in cost.efficiency when corrections were fitted",
        date="2026-11",
    )


def roofline_of(deployment: Deployment) -> RooflineModel:
    """The roofline that corrections are relative to, whatever efficiency the deployment names."""
    return RooflineModel(msgspec.structs.replace(deployment, efficiency=shares_alone()))


def find_correction(key: Key, known: Mapping[Key, Correction]) -> tuple[Key, Correction]:
    """Return the correction for a full key, or of the nearest that is coarser: other devices, other models, any."""
    for length in (4, 2, 1):
        if (found := known.get(key[:length])) is not None:
            return key[:length], found
    return (), PRIOR


def corrected(deployment: Deployment, engine: str, known: Mapping[Key, Correction]) -> tuple[CorrectedStep, Key]:
    """Return the step model of a deployment, and the key that its correction was found for."""
    near, found = find_correction((engine, deployment.model.name, deployment.device.name, deployment.dtype), known)
    return CorrectedStep(roofline_of(deployment), found), near


def predict(deployment: Deployment, engine: str, load: ClosedLoop, known: Mapping[Key, Correction]) -> Prediction:
    """Predict a closed loop. `known`: `measured_silicon.CORRECTIONS`, or those of another fit."""
    key = (engine, deployment.model.name, deployment.device.name, deployment.dtype)
    near, found = find_correction(key, known)
    roofline = roofline_of(deployment)
    tpot = tpot_ns(CorrectedStep(roofline, found), load) / NS_PER_MS
    prompt = prefill_ns(roofline, load.prompt) / NS_PER_MS
    waits = waits_of(prompt, load)
    ttft = sum(value * wait for value, wait in zip(waits_in(found), waits, strict=True))
    return Prediction(ttft, tpot, near, found.rows)


def waits_of(prompt_ms: float, load: ClosedLoop) -> tuple[float, ...]:
    """What the terms of TTFT are multiplied with."""
    text, crowd = load.prompt / TEXT_TOKENS, load.concurrency
    return (1.0, prompt_ms, crowd * prompt_ms, text, crowd * text)


def waits_in(correction: Correction) -> tuple[float, ...]:
    """The terms of TTFT, in the same order."""
    c = correction
    return (c.base_ms, c.prompt, c.crowd, c.text_ms, c.texts_ms)


PRIOR: Final = Correction(
    rows=0, scale=1.0, step_ms=1.5, row_ms=0.03, base_ms=20.0, prompt=1.0, crowd=0.02, text_ms=5.0, texts_ms=0.2
)
