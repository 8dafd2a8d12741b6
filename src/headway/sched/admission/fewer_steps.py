"""How many denoise steps are left to a picture that would be late with all of them (SPEC F5)."""

from math import ceil
from typing import Protocol

from headway.core.request import DiffusionRequest


class Bounds(Protocol):
    """What may be taken away, and how sure it must be that the rest is in time."""

    @property
    def degrade_steps_share(self) -> float:
        """Share of the steps that is left at least."""

    @property
    def degrade_margin(self) -> float:
        """All may go so many times slower than forecast; 1 or more."""


def steps_that_fit(
    request: DiffusionRequest, bound_s: float, left_s: float, step_s: float, bounds: Bounds
) -> int | None:
    """Return the steps with which the end, `bound_s` from now with all of them, comes within `left_s`.

    With the margin where enough steps are left so, else the least number that is allowed. None: that is late even
    without the margin.
    """
    least = max(request.begun + 1, ceil(bounds.degrade_steps_share * request.steps))
    if request.steps - ceil((bound_s - left_s) / step_s) < least:
        return None
    return max(least, request.steps - ceil((bound_s - left_s / bounds.degrade_margin) / step_s))
