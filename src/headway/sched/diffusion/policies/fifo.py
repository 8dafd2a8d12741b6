"""First come, first served."""

from typing import ClassVar

import msgspec

from headway.sched.diffusion.protocols import Item, Rank


class Fifo:
    """By arrival at the front."""

    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "arrival times"
    good_at: ClassVar[str] = "work that is alike: nobody is overtaken"
    blind_spot: ClassVar[str] = "a picture of seconds waits for a video of minutes"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, item: Item) -> Rank:
        """Arrival."""
        return (item.request.arrived_ns, item.seq)
