"""Runs an engine in a thread of its own: plans go in through a queue, results come back onto the loop, in order."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from headway.core.errors import EngineError
from headway.core.events import Event, StepDone, StepFailed
from headway.core.plans import StepPlan
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.timing import Handed, StepClock, runnable_since
from headway.live.wire import StepSpan

T = TypeVar("T")


class StepRunner(Protocol):
    """The part of an engine that runs steps (`core.ports.LlmEngine`)."""

    def launch(self, plan: StepPlan) -> Callable[[], StepDone]: ...


class EngineThread:
    """Owns the thread that alone touches the engine.

    A step that fails is reported; those queued behind it are void with it and dropped, so that the machine can restart
    from a known state.
    """

    def __init__(
        self,
        engine: StepRunner,
        clock: Clock,
        feed: Callable[[Callable[[Ns], Event]], None],
        span: Callable[[StepSpan], None],
    ) -> None:
        self._engine, self._clock, self._feed, self._span = engine, clock, feed, span
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._handed: dict[int, tuple[StepPlan, Handed]] = {}
        self._device = StepClock()
        self._void_below = 0  # steps handed over before the last failure was reported
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def run_step(self, plan: StepPlan, event: Event, planned_ns: Ns) -> None:
        """Queue one plan."""
        handed = Handed(planned_ns, self._clock.now_ns() - planned_ns, runnable_since(event))
        self._handed[plan.step] = (plan, handed)
        self._work.put(lambda: self._step(plan))

    def call(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Run `function` in the engine's thread, after the plans queued so far."""
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            try:
                result = function()
            except EngineError as error:
                self._post(_set_error, future, error)
            else:
                self._post(_set_result, future, result)

        self._work.put(work)
        return future

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _step(self, plan: StepPlan) -> None:
        if plan.step < self._void_below:
            return
        try:
            done = self._engine.launch(plan)()
        except Exception as error:  # the outer loop of the engine: whatever it was, the batch is void and the node told
            self._void_below = 1 << 62  # until the loop has told the node; nothing may run in between
            self._post(self._failed, plan.step, f"{type(error).__name__}: {error}")
            return
        self._post(self._done, done)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: the process ends and nobody waits for this result
            return

    def _done(self, done: StepDone) -> None:
        plan, handed = self._handed.pop(done.step)
        timing = self._device.complete(done.timing, handed)
        self._span(StepSpan(plan.step, plan.kind, plan.decodes, plan.prefill_tokens, handed.planned_ns, timing))
        self._feed(
            lambda at_ns: StepDone(
                at_ns, f"step-{done.step}", done.step, done.seqs, done.tokens, timing, done.stopped, done.scores
            )
        )

    def _failed(self, step: int, error: str) -> None:
        self._void_below = max(self._handed, default=step) + 1
        self._handed.clear()
        self._feed(lambda at_ns: StepFailed(at_ns, f"step-{step}", step, error))


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.cancelled():
        future.set_result(result)


def _set_error(future: "asyncio.Future[T]", error: EngineError) -> None:
    if not future.cancelled():
        future.set_exception(error)
