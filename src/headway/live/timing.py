"""Completes a step's timing with what only the host process knows: planning time, idle gap, overlap."""

from collections import deque
from typing import Final

import msgspec

from headway.core.events import Event, StepDone
from headway.core.plans import StepTiming
from headway.core.units import Ns

_KEPT: Final = 8  # device intervals; a plan is made at most a few steps before it runs


class Handed(msgspec.Struct, frozen=True):
    """A plan on its way to the engine: when planning began, how long it took, since when its work was runnable."""

    planned_ns: Ns
    plan_ns: Ns
    runnable_ns: Ns


def runnable_since(event: Event) -> Ns:
    """When the work of a plan became runnable: with the results that unlocked it, or with the event itself."""
    return event.timing.done_ns if isinstance(event, StepDone) else event.at_ns


class StepClock:
    """The timeline of one replica's executor. Steps end in order.

    Planning is overlapped where the executor is at work on another step: it prepares or computes, on a processor both
    in one thread, and planning beside either adds nothing to the critical path.
    """

    def __init__(self) -> None:
        self._busy: deque[tuple[Ns, Ns]] = deque(maxlen=_KEPT)  # from launch to results, without what lies in two

    def complete(self, timing: StepTiming, handed: Handed) -> StepTiming:
        """Fold in one finished step and return its timing with planning, idle gap and overlap."""
        free_since = self._busy[-1][1] if self._busy else handed.runnable_ns
        idle_ns = max(0, timing.started_ns - max(free_since, handed.runnable_ns))
        hidden_ns = self._busy_within(handed.planned_ns, handed.planned_ns + handed.plan_ns)
        self._busy.append((max(timing.launched_ns, free_since) if self._busy else timing.launched_ns, timing.done_ns))
        return msgspec.structs.replace(
            timing,
            plan_ns=handed.plan_ns,
            idle_gap_ns=idle_ns,
            overlapped_ns=timing.overlapped_ns + hidden_ns,
        )

    def _busy_within(self, start_ns: Ns, end_ns: Ns) -> Ns:
        busy_ns = 0
        for start, end in reversed(self._busy):
            if end <= start_ns:
                break  # so did all before it: a plan is made beside the last step or two
            busy_ns += max(0, min(end, end_ns) - max(start, start_ns))
        return busy_ns
