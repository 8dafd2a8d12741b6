"""Runs a denoiser in a thread of its own; results come back onto the loop, in order."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headway.core.events import DenoiseDone, Event
from headway.core.plans import DenoisePlan, StepTiming
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.timing import Handed, StepClock, runnable_since
from headway.live.wire import StepSpan


class Denoiser(Protocol):
    """The part of a diffusion engine that runs batches."""

    def run(self, plan: DenoisePlan) -> StepTiming: ...


class DenoiseThread:
    """Owns the thread that alone touches the denoiser (`driver.DenoiseExecutor`)."""

    def __init__(
        self,
        denoiser: Denoiser,
        clock: Clock,
        feed: Callable[[Callable[[Ns], Event]], None],
        span: Callable[[StepSpan], None],
    ) -> None:
        self._denoiser, self._clock, self._feed, self._span = denoiser, clock, feed, span
        self._pool = ThreadPoolExecutor(1, "denoise")
        self._device = StepClock()

    def run_denoise(self, plan: DenoisePlan, event: Event, planned_ns: Ns) -> None:
        """Queue one batch."""
        handed = Handed(planned_ns, self._clock.now_ns() - planned_ns, runnable_since(event))
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._denoiser.run, plan)
        future.add_done_callback(lambda done: self._done(plan, handed, done.result()))

    def _done(self, plan: DenoisePlan, handed: Handed, measured: StepTiming) -> None:
        timing = self._device.complete(measured, handed)
        self._span(StepSpan(plan.step, "denoise", len(plan.rows), 0, 0, 0, handed.planned_ns, timing))
        self._feed(lambda at_ns: DenoiseDone(at_ns, f"step-{plan.step}", plan.step, timing))
