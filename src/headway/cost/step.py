"""The time of one LLM step: what every step model answers, the catalogue's roofline and fitted ones alike."""

from typing import Protocol

from headway.core.plans import StepPlan
from headway.cost.llm import StepShape, pairs


class StepModel(Protocol):
    """Times in nanoseconds, without noise: whoever simulates a truth perturbs them."""

    def step_ns(self, shape: StepShape) -> float:
        """Device time of a step of this shape."""
        ...

    def host_ns(self, rows: int) -> float:
        """Host time between steps: scheduling, input preparation and launch for so many decodes and chunks."""
        ...


def shape_of(plan: StepPlan) -> StepShape:
    """Return the shape of a plan. O(its chunks)."""
    prefill_pairs = context = 0
    for chunk in plan.chunks:
        prefill_pairs += pairs(chunk.start, chunk.count)
        context += chunk.start + chunk.count
    return StepShape(
        plan.decodes, plan.kv_tokens, plan.prefill_tokens, prefill_pairs, chunks=len(plan.chunks), chunk_context=context
    )
