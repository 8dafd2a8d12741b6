"""Runs an engine in a thread of its own: plans go in through a queue, results come back onto the loop, in order."""

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from headway.core.events import Event, StepDone, StepFailed
from headway.core.plans import StepPlan
from headway.core.units import Ns
from headway.cost.llm import pairs
from headway.live.clock import Clock
from headway.live.timing import Handed, StepClock, runnable_since
from headway.live.wire import StepSpan

T = TypeVar("T")
_UNTIL_TOLD: Final = 1 << 62


class StepRunner(Protocol):
    """The part of an engine that runs steps (`core.ports.LlmEngine`)."""

    def launch(self, plan: StepPlan) -> Callable[[], StepDone]: ...


class EngineThread:
    """Owns the thread that alone touches the engine.

    On a device that works on by itself (`is_asynchronous`) a second thread waits for results, so that the next step is
    launched while one runs. A processor computes inside `launch`, and the second thread would only cost a switch.

    A step that fails is reported; those queued behind it are void with it and dropped, so that the machine can restart
    from a known state.
    """

    def __init__(
        self,
        engine: StepRunner,
        clock: Clock,
        feed: Callable[[Callable[[Ns], Event]], None],
        span: Callable[[StepSpan], None],
        *,
        is_asynchronous: bool,
    ) -> None:
        self._engine, self._clock, self._feed, self._span = engine, clock, feed, span
        self._loop = asyncio.get_running_loop()
        self._bringing = asyncio.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._handed: dict[int, tuple[StepPlan, Handed]] = {}
        self._device = StepClock()
        # Steps from the failed one to the last that was handed over before the node knew: nothing of them may run.
        self._void_from, self._void_below = 0, 0
        self._launched: queue.SimpleQueue[tuple[int, Callable[[], StepDone]] | None] | None = None
        threading.Thread(target=self._run, name="engine", daemon=True).start()
        if is_asynchronous:
            self._launched = queue.SimpleQueue()
            threading.Thread(target=self._collect, args=(self._launched,), name="results", daemon=True).start()

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
            except Exception as error:  # the caller's to judge; the thread lives on
                self._post(_set_error, future, error)
            else:
                self._post(_set_result, future, result)

        self._work.put(work)
        return future

    def fetch(self, function: Callable[[], Callable[[], T]]) -> "asyncio.Future[T]":
        """As `call`, and then call what it returned: in another thread on a device that works on by itself."""
        if self._launched is None:
            return self.call(lambda: function()())
        # Shielded: what the function began must be waited for, whoever still asks for it.
        return asyncio.shield(self._loop.create_task(self._awaited(self.call(function))))

    def bring(self, function: Callable[[], Callable[[], T]]) -> "asyncio.Future[T]":
        """Call `function`, and in the engine's thread what it returned, after the plans queued by then.

        On a device that works on by itself `function` is called in another thread. One comes after the other.
        """
        if self._launched is None:
            return self.call(lambda: function()())
        return asyncio.shield(self._loop.create_task(self._brought(function)))

    async def _brought(self, function: Callable[[], Callable[[], T]]) -> T:
        async with self._bringing:  # first come, first served
            brought = self.call(await asyncio.to_thread(function))
        return await brought

    async def _awaited(self, launched: "asyncio.Future[Callable[[], T]]") -> T:
        return await asyncio.to_thread(await launched)

    def close(self) -> None:
        """Let the threads end after what they are doing."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self._launched is not None:
            self._launched.put(None)

    def _is_void(self, step: int) -> bool:
        return self._void_from <= step < self._void_below

    def _step(self, plan: StepPlan) -> None:
        if self._is_void(plan.step):
            return
        try:
            wait = self._engine.launch(plan)
        except Exception as error:  # the outer loop of the engine: whatever it was, the batch is void and the node told
            self._void(plan.step)
            wait = partial(_raise, error)
        if self._launched is not None:
            self._launched.put((plan.step, wait))  # a failure too: results of the steps before it come first
        else:
            self._finish(plan.step, wait)

    def _collect(self, launched: "queue.SimpleQueue[tuple[int, Callable[[], StepDone]] | None]") -> None:
        while (entry := launched.get()) is not None:
            self._finish(*entry)

    def _finish(self, step: int, wait: Callable[[], StepDone]) -> None:
        if self._is_void(step) and step != self._void_from:
            return
        try:
            done = wait()
        except Exception as error:  # as in `_step`: an asynchronous device fails when its results are awaited
            self._void(step)
            self._post(self._failed, step, f"{type(error).__name__}: {error}")
            return
        self._post(self._done, done)

    def _void(self, step: int) -> None:
        if not self._is_void(step):
            self._void_from, self._void_below = step, _UNTIL_TOLD

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: the process ends and nobody waits for this result
            return

    def _done(self, done: StepDone) -> None:
        known = self._handed.pop(done.step, None)
        if known is None:  # void: a step behind one that failed
            return
        plan, handed = known
        timing = self._device.complete(done.timing, handed)
        self._span(
            StepSpan(
                step=plan.step,
                kind=plan.kind,
                decodes=plan.decodes,
                kv_tokens=plan.kv_tokens,
                prefill_tokens=plan.prefill_tokens,
                prefill_pairs=sum(pairs(chunk.start, chunk.count) for chunk in plan.chunks),
                planned_ns=handed.planned_ns,
                timing=timing,
                chunks=len(plan.chunks),
                chunk_context=sum(chunk.start + chunk.count for chunk in plan.chunks),
            )
        )
        self._feed(
            lambda at_ns: StepDone(
                at_ns, f"step-{done.step}", done.step, done.seqs, done.tokens, timing, done.stopped, done.scores
            )
        )

    def _failed(self, step: int, error: str) -> None:
        self._void_from, self._void_below = step, max(self._handed, default=step) + 1
        self._handed.clear()
        self._feed(lambda at_ns: StepFailed(at_ns, f"step-{step}", step, error))


def _raise(error: Exception) -> StepDone:
    raise error


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.cancelled():
        future.set_result(result)


def _set_error(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.cancelled():
        future.set_exception(error)
