"""Least slack first: to the end-to-end deadline, or to when a chunk is played."""

from typing import Annotated, ClassVar

import msgspec

from headway.core.units import ns_from_s
from headway.sched.diffusion.protocols import Item, Rank


class LeastSlack:
    """rank = deadline - work: the latest time at which it can begin and still be in time."""

    needs: ClassVar[frozenset[str]] = frozenset({"belief"})
    sees: ClassVar[str] = "end-to-end deadlines, playback of chunks, and estimated GPU-seconds"
    good_at: ClassVar[str] = "SLO attainment at a load that can be met"
    blind_spot: ClassVar[str] = "in overload it serves what is late anyway; admission must keep that out"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`default_s`: deadline after arrival of requests that have none."""

        default_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0

    def __init__(self, params: Params) -> None:
        self._default_ns = ns_from_s(params.default_s)

    def rank(self, item: Item) -> Rank:
        """Latest time to begin."""
        request = item.request
        due_ns = request.wanted_ns
        if due_ns is None:
            due_ns = request.arrived_ns + self._default_ns
        return (due_ns - item.work_ns, request.arrived_ns, item.seq)
