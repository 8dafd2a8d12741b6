"""Shortest job first with aging: waiting makes up for length."""

from typing import Annotated, ClassVar

import msgspec

from headway.sched.diffusion.protocols import Item, Rank


class SjfAging:
    """rank = arrival + stretch * work: a second of waiting outweighs 1 / stretch seconds of work.

    Who arrives stretch * work after a request of that much work can never overtake it, so that its wait is bounded by
    the work that arrives until then.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "estimated GPU-seconds and arrival of each request"
    good_at: ClassVar[str] = "mean wait of mixed durations without starving the long ones"
    blind_spot: ClassVar[str] = "deadlines; under overload it turns into first come, first served"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`stretch`: seconds that a request waits for each second of its own work before it counts as due."""

        stretch: Annotated[float, msgspec.Meta(ge=0)] = 5.0

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, item: Item) -> Rank:
        """Arrival plus stretched work."""
        arrived_ns = item.request.arrived_ns
        return (arrived_ns + round(self._params.stretch * item.work_ns), arrived_ns, item.seq)
