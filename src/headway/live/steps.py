"""What each engine step of a recorded run computed and took: the material that step models are fitted to."""

from collections.abc import Iterable, Iterator

import msgspec

from headway.core.effects import RunStep
from headway.core.events import Event, StepDone
from headway.core.plans import StepPlan, StepTiming
from headway.core.units import Ns
from headway.cost.llm import StepShape
from headway.cost.step import shape_of
from headway.live.eventlog import Entry
from headway.live.timing import runnable_since


class StepRecord(msgspec.Struct, frozen=True):
    """One step of one replica. Times are in the clock of the run."""

    step: int
    shape: StepShape
    began_ns: Ns  # it was launched, and the executor had ended the step before
    done_ns: Ns
    host_ns: Ns | None  # from what made it runnable to its begin; None where the executor was busy meanwhile
    is_after_step: bool  # the results of a step made it runnable, not a message

    @property
    def device_ns(self) -> Ns:
        """How long it held the executor, input preparation of a synchronous one included."""
        return self.done_ns - self.began_ns

    @property
    def rows(self) -> int:
        """Decodes and chunks."""
        return self.shape.decodes + self.shape.chunks


def steps_of(turns: Iterable[Entry]) -> Iterator[StepRecord]:
    """Yield the steps of a worker's event log (`live.eventlog.read_log`), in the order in which they ended."""
    plans: dict[int, tuple[StepPlan, Event]] = {}
    free_ns: Ns = 0
    for turn in turns:
        if isinstance(turn.event, StepDone) and turn.event.step in plans:
            plan, event = plans.pop(turn.event.step)
            yield _record(plan, event, turn.event.timing, free_ns)
            free_ns = turn.event.timing.done_ns
        for effect in turn.effects:
            if isinstance(effect, RunStep):
                plans[effect.plan.step] = (effect.plan, turn.event)


def _record(plan: StepPlan, event: Event, timing: StepTiming, free_ns: Ns) -> StepRecord:
    began_ns, runnable_ns = max(timing.launched_ns, free_ns), runnable_since(event)
    return StepRecord(
        step=plan.step,
        shape=shape_of(plan),
        began_ns=began_ns,
        done_ns=timing.done_ns,
        host_ns=began_ns - runnable_ns if runnable_ns >= free_ns else None,
        is_after_step=isinstance(event, StepDone),
    )
