"""What a worker knows of a step that it has handed over, and of its engine."""

import msgspec

from headway.core.plans import StepPlan
from headway.core.units import Ns


class OpenStep(msgspec.Struct, frozen=True):
    """A step that was handed to the executor and is not done."""

    plan: StepPlan
    planned_ns: Ns


class Limits(msgspec.Struct, frozen=True):
    """What the worker knows of its engine and of its own patience."""

    eos_token_ids: tuple[int, ...]
    kv_blocks: int
    credits: int
    failures_max: int  # failed steps in a row before it gives its requests back
