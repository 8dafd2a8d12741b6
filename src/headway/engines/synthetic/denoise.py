"""A denoiser without a model: each batch takes the time that its steps and pixels cost."""

import time
from collections.abc import Callable

import msgspec

from headway.core.plans import DenoisePlan, StepTiming
from headway.core.units import Ns, s_from_ns


class DenoiserParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Wall time of one denoise step of a batch: `step_ns` and `pixel_ns` for every pixel of every row."""

    step_ns: int = 1_000_000
    pixel_ns: float = 0.05


class SyntheticDenoiser:
    """Runs batches one after the other, in the caller's thread."""

    def __init__(self, params: DenoiserParams, clock: Callable[[], Ns] = time.monotonic_ns) -> None:
        self._params, self._clock = params, clock

    def batch_ns(self, plan: DenoisePlan) -> Ns:
        """How long a batch takes: its rows run together, its steps one after the other."""
        steps = max(row.count for row in plan.rows)
        pixels = plan.height * plan.width * len(plan.rows)
        return round((self._params.step_ns + self._params.pixel_ns * pixels) * steps)

    def run(self, plan: DenoisePlan) -> StepTiming:
        """Run one batch to its end."""
        launched_ns = self._clock()
        time.sleep(s_from_ns(self.batch_ns(plan)))
        return StepTiming(launched_ns, launched_ns, self._clock())
