"""Runs a denoiser in a thread of its own; results come back onto the loop, in order."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from headway.core.artifacts import Denoised, RowFailed
from headway.core.errors import InvariantError
from headway.core.events import DenoiseDone, Event
from headway.core.plans import DenoisePlan, StepTiming
from headway.core.ports import DenoiseEngine
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.timing import Handed, StepClock, runnable_since
from headway.live.wire import StepSpan

log = logging.getLogger(__name__)
T = TypeVar("T")

ENGINE_FAILED: Final = "engine_failed"  # code of rows whose plan raised


class DenoiseThread:
    """Owns the thread that alone touches the denoiser (`driver.DenoiseExecutor`)."""

    def __init__(
        self,
        denoiser: DenoiseEngine,
        clock: Clock,
        feed: Callable[[Callable[[Ns], Event]], None],
        span: Callable[[StepSpan], None],
    ) -> None:
        self._denoiser, self._clock, self._feed, self._span = denoiser, clock, feed, span
        self._pool = ThreadPoolExecutor(1, "denoise")
        self._device = StepClock()

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the engine's thread, between plans."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def run_denoise(self, plan: DenoisePlan, event: Event, planned_ns: Ns) -> None:
        """Queue one batch."""
        handed = Handed(planned_ns, self._clock.now_ns() - planned_ns, runnable_since(event))
        launched_ns = self._clock.now_ns()
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._denoiser.run, plan)
        future.add_done_callback(lambda done: self._done(plan, handed, self._result(plan, launched_ns, done)))

    def _result(self, plan: DenoisePlan, launched_ns: Ns, done: asyncio.Future[Denoised]) -> Denoised:
        """What the engine answered; where it raised, every row of the plan is over and the engine goes on."""
        error = done.exception()
        if error is None:
            return done.result()
        if not isinstance(error, Exception) or isinstance(error, InvariantError):
            raise error
        log.error("denoise plan %d fails", plan.step, exc_info=error)
        words = f"the engine failed in denoise plan {plan.step}: {type(error).__name__}: {error}"
        failed = tuple(RowFailed(row.seq, ENGINE_FAILED, words) for row in plan.rows)
        return Denoised(StepTiming(launched_ns, launched_ns, self._clock.now_ns()), failed=failed)

    def _done(self, plan: DenoisePlan, handed: Handed, result: Denoised) -> None:
        timing = self._device.complete(result.timing, handed)
        self._span(StepSpan(plan.step, "denoise", len(plan.rows), 0, 0, 0, handed.planned_ns, timing))
        step, cause = plan.step, f"step-{plan.step}"
        told = (result.stages, result.made, result.failed, result.cached_bytes)
        self._feed(lambda at_ns: DenoiseDone(at_ns, cause, step, timing, *told))
