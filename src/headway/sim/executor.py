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


class Timeline:
    """When the host has planned and when the device has run, one after the other."""

    __slots__ = ("_began_ns", "_free_ns", "_planned_ns")

    def __init__(self) -> None:
        self._planned_ns = self._began_ns = self._free_ns = 0

    def copy(self) -> "Timeline":
        """Return one that goes on from here."""
        other = Timeline()
        other._planned_ns, other._began_ns, other._free_ns = self._planned_ns, self._began_ns, self._free_ns
        return other

    def stand(self, after: StepTiming) -> None:
        """Go on after a step."""
        self._planned_ns, self._began_ns, self._free_ns = after.launched_ns, after.started_ns, after.done_ns

    def step(self, at_ns: Ns, host_ns: Ns, device_ns: Ns) -> StepTiming:
        """A plan made at `at_ns`: its host time, then its device time."""
        free_ns, planned_ns, began_ns = self._free_ns, self._planned_ns, self._began_ns
        planned_ns = at_ns if at_ns > planned_ns else planned_ns
        ready_ns = planned_ns + host_ns
        started_ns = ready_ns if ready_ns > free_ns else free_ns
        hidden_ns = 0
        if host_ns and free_ns > planned_ns:
            hidden_ns = max(0, min(ready_ns, free_ns) - max(planned_ns, began_ns))
        idle_ns = started_ns - (free_ns if free_ns > at_ns else at_ns)
        done_ns = started_ns + device_ns
        self._planned_ns, self._began_ns, self._free_ns = ready_ns, started_ns, done_ns
        # In the order of its fields: host_ns within the executor is no part of this model.
        return StepTiming(ready_ns, started_ns, done_ns, 0, idle_ns if idle_ns > 0 else 0, host_ns, hidden_ns)


class SimExecutor:
    """Planning occupies the host one plan after the other; steps occupy the device in order."""

    def __init__(self, truth: StepTruth, engine: SimEngine | None, at: At) -> None:
        self.engine = engine
        self.painter: Painter | None = None  # of a diffusion replica; None: its pictures are not looked at
        self.truth, self._at = truth, at
        self.line = Timeline()
        self.open: dict[int, tuple[StepPlan, StepTiming]] = {}  # handed over and not done
        self.is_ahead = False  # somebody else counts the steps (`sim.ahead`)
        self.halt: Callable[[], None] | None = None  # makes that end
        self._failing = 0
        self._is_void = False
        self._generation = 0
        self.busy_ns: Ns = 0
        self.steps = 0

    def fail_next(self) -> None:
        """Let the next step end in an engine failure."""
        if self.halt is not None:
            self.halt()
        self._failing += 1

    @property
    def may_fail(self) -> bool:
        """A failure is due."""
        return self._failing > 0

    def run_step(self, plan: StepPlan, at_ns: Ns) -> None:
        """Plan on the host, then run on the device; results come at its end."""
        device_ns = self.truth.step_ns(plan)
        timing = self.line.step(at_ns, self.truth.host_ns(plan), device_ns)
        self.busy_ns += device_ns
        self.open[plan.step] = plan, timing
        self.end_at(plan, timing)

    def end_at(self, plan: StepPlan, timing: StepTiming) -> None:
        """The step will end by itself, unless it is voided or told of before."""
        generation = self._generation

        def finish(now_ns: Ns) -> Event | None:
            if generation != self._generation or self.is_ahead:  # a failure before it voided this step
                return None
            del self.open[plan.step]
            return self._step_end(plan, timing, now_ns)

        self._at(timing.done_ns, finish)

    def _step_end(self, plan: StepPlan, timing: StepTiming, now_ns: Ns) -> Event:
        cause = f"step {plan.step}"
        if self._failing:
            self._failing -= 1
            self._generation += 1
            self.open.clear()
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
        device_ns = self.truth.denoise_ns(plan)
        timing = self.line.step(at_ns, 0, device_ns)
        self.busy_ns += device_ns
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
