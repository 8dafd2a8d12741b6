"""When the garbage collector of a replica's process looks for cycles, and what its pauses cost.

Reference counting frees what requests leave: the ring makes no cycles. The collector is there for those of libraries. A
full pass visits every container in the process, which is tens of milliseconds with a model loaded, between two steps;
one of the young visits each token of prompts that came lately, 4 to 7 ms at 256 running.
"""

import gc
from typing import Final, Literal, Protocol

from headway.core.reports import GarbageFigures
from headway.core.units import NS_PER_S, Ns

IDLE_S: Final = 30  # between full passes while nothing runs
BUSY_S: Final = 900  # and while something always does: its cycles must go at some time
# So many more containers than when it last looked: what runs comes and goes and stays below, a leak of cycles does not.
YOUNG_MAX: Final = 50_000
_NEVER: Final = 1 << 30  # collections of one generation before the next older one is collected by itself
_FULL: Final = 2


class Now(Protocol):
    """The clock of the run."""

    def now_ns(self) -> Ns: ...


class Garbage:
    """The collector of this process. Young objects are collected when they are many, all of them only from here."""

    def __init__(self, clock: Now) -> None:
        self._clock = clock
        self._thresholds = gc.get_threshold()
        self._began_ns = self._last_ns = clock.now_ns()
        self._young = self._young_ns = self._full = self._full_ns = self._longest_ns = 0

    def settle(self) -> None:
        """Everything is loaded and warm: what there is now stays, and no pass visits it again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_MAX, _NEVER, _NEVER)
        self._last_ns = self._clock.now_ns()
        gc.callbacks.append(self._observe)

    def look(self, *, is_idle: bool) -> None:
        """Walk everything if the last time is long ago; called every now and then, between steps."""
        if self._clock.now_ns() - self._last_ns >= (IDLE_S if is_idle else BUSY_S) * NS_PER_S:
            gc.collect()

    @property
    def figures(self) -> GarbageFigures:
        """Pauses since `settle`."""
        return GarbageFigures(self._young, self._young_ns, self._full, self._full_ns, self._longest_ns)

    def _observe(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        now_ns = self._clock.now_ns()
        if phase == "start":
            self._began_ns = now_ns
            return
        took_ns = now_ns - self._began_ns
        self._longest_ns = max(self._longest_ns, took_ns)
        if info["generation"] == _FULL:
            self._full, self._full_ns, self._last_ns = self._full + 1, self._full_ns + took_ns, now_ns
        else:
            self._young, self._young_ns = self._young + 1, self._young_ns + took_ns

    def close(self) -> None:
        """Give the collector back its own ways."""
        if self._observe in gc.callbacks:
            gc.callbacks.remove(self._observe)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()
