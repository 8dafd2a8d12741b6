"""Plan so late that the plan is ready just before the device needs it."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.units import Ns, ns_from_ms
from headway.sched.executor.protocol import InFlight


class JustInTime:
    """Keeps the plan young."""

    is_prompt: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"step_ns", "plan_ns"})
    sees: ClassVar[str] = "smoothed step and plan times"
    good_at: ClassVar[str] = "first-token latency: late arrivals join one step sooner"
    blind_spot: ClassVar[str] = "a step shorter than expected leaves the device idle"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`margin_ms` is added to the expected planning time."""

        margin_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.5

    def __init__(self, params: Params) -> None:
        self._margin_ns = ns_from_ms(params.margin_ms)

    def plan_at(self, at_ns: Ns, flight: InFlight) -> Ns:
        """The expected end of the running step, less planning time and margin; now when nothing runs."""
        if flight.steps == 0 or flight.step_ns == 0 or flight.oldest_planned_ns is None:
            return at_ns
        begun = max(flight.oldest_planned_ns, flight.last_done_ns or 0)
        return begun + flight.step_ns * flight.steps - flight.plan_ns - self._margin_ns
