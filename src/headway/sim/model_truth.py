"""Truth of a replica of a pool: its step model, off by what the scenario says. No policy can reach it."""

from typing import Final

from headway.core.draw import draw_unit
from headway.core.errors import InvariantError
from headway.core.ids import NodeId
from headway.core.plans import DenoisePlan, StepPlan
from headway.core.units import Ns
from headway.cost.llm import StepShape, pairs
from headway.cost.step import StepModel
from headway.sim.pools import TruthParams

_MASK: Final = 0xFFFFFFFFFFFFFFFF


def noise(seed: int, step: int) -> float:
    """Return a keyed number in [-1, 1). A step needs one, and a hash of the cryptographic kind is slow (splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return (x ^ x >> 31) / (1 << 63) - 1


class ModelTruth:
    """step = model x scale x (1 + spread u(replica)) x slowdown x (1 + jitter u(step))."""

    def __init__(self, model: StepModel, params: TruthParams, seed: int, replica: NodeId) -> None:
        self._model, self._jitter = model, params.jitter
        unit = 2 * draw_unit(seed, f"{replica}", 0, 0) - 1
        self._scale = params.scale * (1 + params.spread * unit)
        self._seed = round(draw_unit(seed, f"{replica}", 0, 1) * (1 << 53))
        self.slowdown = 1.0  # of steps from now on: a straggler's

    def step_ns(self, plan: StepPlan) -> Ns:
        """Device time of a step; a padded step pays for its bucket."""
        prefill_pairs = context = 0
        for chunk in plan.chunks:
            prefill_pairs += pairs(chunk.start, chunk.count)
            context += chunk.start + chunk.count
        decodes = plan.decodes + max(0, plan.bucket - plan.tokens)
        shape = StepShape(
            decodes,
            plan.kv_tokens,
            plan.prefill_tokens,
            prefill_pairs,
            chunks=len(plan.chunks),
            chunk_context=context,
        )
        factor = self._scale * self.slowdown
        if self._jitter:
            factor *= 1 + self._jitter * noise(self._seed, plan.step)
        return round(self._model.step_ns(shape) * factor)

    def host_ns(self, plan: StepPlan) -> Ns:
        """Host time between steps; the plan is ready only then."""
        return round(self._model.host_ns(plan.decodes + len(plan.chunks)))

    def denoise_ns(self, plan: DenoisePlan) -> Ns:
        """An LLM replica denoises nothing."""
        raise InvariantError(f"step {plan.step}: a replica of an LLM pool runs no denoise plan")
