"""The host and the device of one simulated replica: two timelines, and the fake engine that samples its tokens."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headway.core.errors import EngineError
from headway.core.events import DenoiseDone, Event, StepDone, StepFailed, Stopped
from headway.core.plans import DenoisePlan, StepPlan, StepTiming
from headway.core.units import Ns
from headway.sim.painter import Painter
from headway.sim.truth import StepTruth

At = Callable[[Ns, Callable[[Ns], Event | None]], None]  # run at a time; the event goes to this replica's node


class SimEngine(Protocol):
    """What samples tokens in a simulation."""

    beat: int  # what every row samples that does not join, as `StepDone.beat` says; negative: each is named

    def apply(self, plan: StepPlan) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Stopped, ...]]: ...

    def read_blocks(self, blocks: Sequence[int]) -> bytes: ...

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None: ...

    def lose_kv(self) -> None: ...


class SimExecutor:
    """Planning occupies the host one plan after the other; steps occupy the device in order."""

    def __init__(self, truth: StepTruth, engine: SimEngine | None, at: At) -> None:
        self.engine = engine
        self.painter: Painter | None = None  # of a diffusion replica; None: its pictures are not looked at
        self._truth, self._at = truth, at
        self._host_free_ns: Ns = 0
        self._device_free_ns: Ns = 0
        self._device_began_ns: Ns = 0
        self._failing = 0
        self._is_void = False
        self._generation = 0
        self.busy_ns: Ns = 0
        self.steps = 0

    def fail_next(self) -> None:
        """Let the next step end in an engine failure."""
        self._failing += 1

    def run_step(self, plan: StepPlan, at_ns: Ns) -> None:
        """Plan on the host, then run on the device; results come at its end."""
        timing = self._time(at_ns, self._truth.host_ns(plan), self._truth.step_ns(plan))
        generation = self._generation

        def finish(now_ns: Ns) -> Event | None:
            if generation != self._generation:  # a failure before it voided this step
                return None
            return self._step_end(plan, timing, now_ns)

        self._at(timing.done_ns, finish)

    def _step_end(self, plan: StepPlan, timing: StepTiming, now_ns: Ns) -> Event:
        cause = f"step {plan.step}"
        if self._failing:
            self._failing -= 1
            self._generation += 1
            if self.engine is not None:
                self.engine.lose_kv()
            return StepFailed(now_ns, cause, plan.step, "injected failure")
        self.steps += 1
        if self.engine is None or plan.kind == "dummy":
            return StepDone(now_ns, cause, plan.step, (), (), timing)
        try:
            seqs, tokens, stopped = self.engine.apply(plan)
        except EngineError as error:
            raise AssertionError(f"the engine refuses a plan: {error}") from error
        return StepDone(now_ns, cause, plan.step, seqs, tokens, timing, stopped, beat=self.engine.beat)

    def run_denoise(self, plan: DenoisePlan, at_ns: Ns) -> None:
        """Run a denoise batch."""
        timing = self._time(at_ns, 0, self._truth.denoise_ns(plan))
        self._at(timing.done_ns, lambda now_ns: self._denoise_end(plan, timing, now_ns))

    def _denoise_end(self, plan: DenoisePlan, timing: StepTiming, now_ns: Ns) -> Event:
        cause = f"step {plan.step}"
        if self._failing:
            self._failing -= 1
            if self.painter is not None:
                self.painter.lose()
            return StepFailed(now_ns, cause, plan.step, "injected failure")
        made, failed = ((), ()) if self.painter is None else self.painter.apply(plan)
        return DenoiseDone(now_ns, cause, plan.step, timing, made=made, failed=failed)

    def _time(self, at_ns: Ns, host_ns: Ns, device_ns: Ns) -> StepTiming:
        free_ns, planned_ns, began_ns = self._device_free_ns, self._host_free_ns, self._device_began_ns
        planned_ns = at_ns if at_ns > planned_ns else planned_ns
        ready_ns = planned_ns + host_ns
        started_ns = ready_ns if ready_ns > free_ns else free_ns
        hidden_ns = 0
        if host_ns and free_ns > planned_ns:
            hidden_ns = max(0, min(ready_ns, free_ns) - max(planned_ns, began_ns))
        idle_ns = started_ns - (free_ns if free_ns > at_ns else at_ns)
        self._host_free_ns = ready_ns
        self._device_began_ns, self._device_free_ns = started_ns, started_ns + device_ns
        self.busy_ns += device_ns
        # In the order of its fields: host_ns within the executor is no part of this model.
        return StepTiming(ready_ns, started_ns, started_ns + device_ns, 0, max(0, idle_ns), host_ns, hidden_ns)
