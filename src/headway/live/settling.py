"""Repeats a warm-up until the device's allocator takes nothing new: a request is not the one that waits for memory
(SPEC E1)."""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headway.core.errors import EngineError
from headway.core.ports import Reserved, ReservesMemory

PASSES_MAX: Final = 4
Mark = Callable[[str], None]


class _Growth(NamedTuple):
    """What the allocator took while one part of a pass ran."""

    part: str
    bytes: int
    segments: int

    def __str__(self) -> str:
        return f"{self.part} took {self.bytes} bytes in {self.segments} segments"


class Settled(msgspec.Struct, frozen=True):
    """Whole passes that were repeated, the last of which took nothing, and the bytes that the allocator holds."""

    passes: int = 0  # 0: there is no such allocator, as on a CPU
    held: int = 0

    @property
    def words(self) -> str:
        """For people."""
        if not self.passes:
            return "this device has no memory pool to fill first"
        return f"allocator settled at repeated pass {self.passes}, {self.held} bytes reserved"


def settle(engine: object, again: Callable[[Mark], None], passes_max: int = PASSES_MAX) -> Settled:
    """Call `again`, a whole pass over what is warm that marks the end of each of its parts, until one takes nothing.

    On a device without a caching allocator nothing is repeated. Raises EngineError when none of `passes_max` does.
    """
    watch = _Watch(engine)
    if watch.last is None:
        return Settled()
    for number in range(1, passes_max + 1):
        watch.grown.clear()
        again(watch.mark)
        watch.mark("the end of the pass")
        if not watch.grown:
            return Settled(number, watch.last.held)
    raise EngineError(
        f"the device's allocator has not settled, the replica is not ready: in repeated pass {passes_max} of at most "
        f"{passes_max} over what is warm {'; '.join(map(str, watch.grown))}; {watch.last.held} bytes are reserved; "
        "raise settle_passes_max"
    )


class _Watch:
    """What an engine's allocator had at the last mark."""

    def __init__(self, engine: object) -> None:
        self._engine = engine if isinstance(engine, ReservesMemory) else None
        self.grown: list[_Growth] = []
        self.last = self._now()

    def mark(self, part: str) -> None:
        """The end of a part."""
        before, self.last = self.last, self._now()
        if before is not None and self.last is not None:
            growth = _Growth(part, self.last.taken - before.taken, self.last.segments - before.segments)
            if growth.bytes or growth.segments:
                self.grown.append(growth)

    def _now(self) -> Reserved | None:
        return None if self._engine is None else self._engine.reserved()
