"""What really takes time in the simulator. Policies never see it: their belief learns from events alone."""

from typing import Protocol

import msgspec

from headway.core.draw import draw_unit
from headway.core.plans import DenoisePlan, StepPlan
from headway.core.units import Ns


class StepTruth(Protocol):
    """Times of one replica's executor and of its scheduler."""

    def step_ns(self, plan: StepPlan) -> Ns:
        """Device time of a step."""
        ...

    def host_ns(self, plan: StepPlan) -> Ns:
        """Host time to plan it; the plan is ready only then."""
        ...

    def denoise_ns(self, plan: DenoisePlan) -> Ns:
        """Device time of a denoise batch."""
        ...


class LinearTruth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """t = (base + token x tokens + kv x context) x (1 + jitter x u), u a keyed draw in [-1, 1)."""

    base_ns: float = 5_000_000.0
    token_ns: float = 20_000.0  # per token computed, padding included
    kv_ns: float = 10.0  # per token of context of the decodes
    host_base_ns: float = 0.0
    host_row_ns: float = 0.0  # per row that the plan names or decodes
    pixel_ns: float = 10.0  # per pixel and denoise step
    jitter: float = 0.0
    seed: int = 0

    def step_ns(self, plan: StepPlan) -> Ns:
        """Device time of a step; a padded step pays for its bucket."""
        tokens = max(plan.tokens, plan.bucket)
        return self._jittered(self.base_ns + self.token_ns * tokens + self.kv_ns * plan.kv_tokens, plan.step)

    def host_ns(self, plan: StepPlan) -> Ns:
        """Host time to plan it."""
        return round(self.host_base_ns + self.host_row_ns * (plan.decodes + len(plan.chunks)))

    def denoise_ns(self, plan: DenoisePlan) -> Ns:
        """Device time of a denoise batch: its rows run together, its steps one after the other."""
        steps = max(row.count for row in plan.rows)
        pixels = plan.height * plan.width * len(plan.rows)
        return self._jittered((self.base_ns + self.pixel_ns * pixels) * steps, plan.step)

    def _jittered(self, ns: float, step: int) -> Ns:
        if self.jitter == 0:
            return round(ns)
        return round(ns * (1 + self.jitter * (2 * draw_unit(self.seed, "step", 0, step) - 1)))
