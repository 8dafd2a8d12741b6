"""Whether a diffusion replica should change its shape pool, and which one (SPEC F5).

A pool is the replicas of one model that take the same sizes. One of them goes where requests wait longer, when the
predicted waits differ by more than what it takes to prepare the other sizes (seed 003 4).
"""

from collections.abc import Container, Sequence
from typing import Annotated

import msgspec

from headway.core.ids import NodeId
from headway.core.units import NS_PER_S, Ns, ns_from_s

Pixels = tuple[int, int | None]


class ShapePoolParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a diffusion replica moves from one shape pool of its model to another."""

    cold_start_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0  # believed of a move until one was made and told its time
    margin: Annotated[float, msgspec.Meta(ge=0)] = 0.25  # of the cold start, by which waits must differ beyond it
    hold_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # for which they must have differed without a break
    cooldown_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # between two moves of one model, after the first has ended
    replicas_min: Annotated[int, msgspec.Meta(ge=1)] = 1  # that every pool keeps: its requests have nowhere else to go


class ShapeLoad(msgspec.Struct, frozen=True):
    """What a report says of one diffusion replica."""

    replica: NodeId
    model: str
    pixels: Pixels  # fewest and most of a request, all frames; None: any
    work_ns: Ns  # until all that it holds is done
    is_draining: bool = False


class Shift(msgspec.Struct, frozen=True):
    """One replica should take other sizes."""

    replica: NodeId
    model: str
    pixels: Pixels
    target_wait_ns: Ns  # predicted, of the pool that it goes to
    source_wait_ns: Ns
    waits: tuple[tuple[Pixels, Ns], ...]  # of all pools of the model, the longest first


class ShapePool:
    """The replicas of one model that take the same sizes."""

    def __init__(self, pixels: Pixels, members: Sequence[ShapeLoad]) -> None:
        self.pixels, self.members = pixels, members
        self.work_ns = sum(load.work_ns for load in members)

    @property
    def wait_ns(self) -> Ns:
        """Predicted wait of a request that comes now: the work that is there, spread over the replicas."""
        return self.work_ns // len(self.members)


def pools_of(loads: Sequence[ShapeLoad]) -> dict[str, list[ShapePool]]:
    """Return each model's pools, the longest wait first. Who drains serves nobody, and is in none."""
    found: dict[tuple[str, Pixels], list[ShapeLoad]] = {}
    for load in sorted(loads, key=lambda load: load.replica):
        if not load.is_draining:
            found.setdefault((load.model, load.pixels), []).append(load)
    pools: dict[str, list[ShapePool]] = {}
    for (model, pixels), members in found.items():
        pools.setdefault(model, []).append(ShapePool(pixels, members))
    for each in pools.values():
        each.sort(key=lambda pool: (-pool.wait_ns, pool.members[0].replica))
    return pools


def choose_shift(
    pools: Sequence[ShapePool],
    model: str,
    cold_ns: Ns,
    params: ShapePoolParams,
    barred: Container[tuple[NodeId, Pixels]] = (),
) -> Shift | None:
    """Return the move of one replica of a model that pays; `cold_ns`: what preparing other sizes takes, `barred`: who
    cannot prepare which.

    From the pool with the shortest wait that can spare one, its least busy, to the pool with the longest. The pool that
    gives must be better off afterwards than the one that gets is now, by the same difference: nothing swings back.
    """
    if len(pools) < 2:
        return None
    least_ns = round(cold_ns * (1 + params.margin))
    target = pools[0]
    spare = [
        (pool, able)
        for pool in pools[1:]
        if len(pool.members) > params.replicas_min
        and (able := [load for load in pool.members if (load.replica, target.pixels) not in barred])
    ]
    if not spare:
        return None
    source, able = min(spare, key=lambda pair: (pair[0].wait_ns, pair[0].members[0].replica))
    goes = min(able, key=lambda load: (load.work_ns, load.replica))
    stays_ns = (source.work_ns - goes.work_ns) // (len(source.members) - 1)
    if target.wait_ns - max(source.wait_ns, stays_ns) <= least_ns:
        return None
    waits = tuple((pool.pixels, pool.wait_ns) for pool in pools)
    return Shift(goes.replica, model, target.pixels, target.wait_ns, source.wait_ns, waits)


class Standing:
    """For how long a move has been worth while without a break, by model: one report proves nothing."""

    def __init__(self, params: ShapePoolParams) -> None:
        self._hold_ns = ns_from_s(params.hold_s)
        self._since: dict[str, tuple[Pixels, Ns]] = {}

    def holds(self, model: str, shift: Shift | None, at_ns: Ns) -> bool:
        """Fold in what is worth while now; True when it has been for long enough."""
        if shift is None:
            self._since.pop(model, None)
            return False
        pixels, since_ns = self._since.get(model, (shift.pixels, at_ns))
        if pixels != shift.pixels:
            since_ns = at_ns
        self._since[model] = shift.pixels, since_ns
        return at_ns - since_ns >= self._hold_ns


def sizes(pixels: Pixels) -> str:
    """For people."""
    least, most = pixels
    return f"{least}..{'any' if most is None else most} pixels"


def said(shift: Shift, cold_ns: Ns) -> str:
    """Why, in words."""
    s = 1 / NS_PER_S
    return (
        f"{shift.model}: requests of {sizes(shift.pixels)} wait {shift.target_wait_ns * s:.1f} s, others "
        f"{shift.source_wait_ns * s:.1f} s; preparing it takes {cold_ns * s:.1f} s"
    )
