"""When the next step is planned."""

from typing import ClassVar, Protocol

import msgspec

from headway.core.units import Ns


class InFlight(msgspec.Struct, frozen=True, gc=False):
    """What a pacing policy sees: steps handed over and not done, and what steps and plans took lately."""

    steps: int
    oldest_planned_ns: Ns | None  # when the oldest open step was planned
    last_done_ns: Ns | None
    step_ns: Ns  # smoothed device time of a step; 0: not known
    plan_ns: Ns  # smoothed host time of a plan; 0: not known


class PacePolicy(Protocol):
    """Chooses when to plan, given a free credit."""

    is_prompt: ClassVar[bool]  # it always says now, and need not be asked

    def plan_at(self, at_ns: Ns, flight: InFlight) -> Ns:
        """Return when to plan the next step; `at_ns` or earlier means now. Writes nothing."""
        ...
