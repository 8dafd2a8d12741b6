"""Shortest job first, by estimated GPU-seconds."""

from typing import ClassVar

import msgspec

from headway.sched.diffusion.protocols import Item, Rank


class Sjf:
    """The duration of a request is known when it arrives, so this is the order with the smallest mean wait."""

    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "estimated GPU-seconds of each request"
    good_at: ClassVar[str] = "mean wait of mixed durations"
    blind_spot: ClassVar[str] = "long requests starve while short ones keep coming"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, item: Item) -> Rank:
        """Estimated work, then arrival."""
        return (item.work_ns, item.request.arrived_ns, item.seq)
