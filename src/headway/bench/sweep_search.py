"""Searches a value of a scenario for the largest, or the smallest, with which a condition still holds.

It is taken to hold up to one value and to fail beyond it (for `smallest`: from one value on). Several points are tried
at once, one per process, and all cells of a grid search together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from headway.bench.metrics import Condition, metric
from headway.bench.sweep import Cell, Changes, Result, Sweep, cell_of
from headway.core.errors import ConfigError
from headway.sim.scenario import Scenario

ROUNDS_MAX: Final = 40

Direction = Literal["max", "min"]


class Search(msgspec.Struct, frozen=True):
    """What is searched. Values are above 0 and narrowed by ratios; whole numbers, where `is_whole`, one by one."""

    key: str
    direction: Direction
    hold: Condition
    low: float
    high: float
    tolerance: float = 0.02  # of the value
    is_whole: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ConfigError(f"--between {self.low:g},{self.high:g}: write two values above 0, the smaller one first")
        if not self.is_whole and not 0 < self.tolerance < 1:
            raise ConfigError(f"--tolerance {self.tolerance:g} must be above 0 and below 1")


class Found(msgspec.Struct, frozen=True):
    """What a search found for one cell. `value` None: it holds nowhere between the bounds."""

    changes: dict[str, object]
    value: float | None
    is_at_bound: bool  # it holds at the far bound too: look further
    results: list[Result]  # at that value, one per seed
    tried: int


class _Bracket:
    """Known so far of one cell: it holds at `good` and fails at `bad`."""

    def __init__(self, search: Search) -> None:
        self.search = search
        near, far = (search.low, search.high) if search.direction == "max" else (search.high, search.low)
        self.near, self.far = near, far
        self.good: float | None = None
        self.bad: float | None = None
        self.results: dict[float, list[Result]] = {}

    def wanted(self, count: int) -> list[float]:
        """Points to try next, the bounds first; none: it is found."""
        if not self.results:
            return list(dict.fromkeys([self.near, self.far]))
        good, bad = self.good, self.bad
        if good is None or bad is None:
            return []
        return [value for value in self._between(min(good, bad), max(good, bad), count) if value not in self.results]

    def _between(self, low: float, high: float, count: int) -> list[float]:
        if self.search.is_whole:
            inner = range(int(low) + 1, int(high))
            parts = min(count, len(inner))
            return [float(inner[(place + 1) * len(inner) // (parts + 1)]) for place in range(parts)]
        if high / low <= 1 + self.search.tolerance:
            return []
        return [low * (high / low) ** ((place + 1) / (count + 1)) for place in range(count)]

    def tell(self, value: float, results: list[Result]) -> None:
        """Take what came of a point."""
        self.results[value] = results
        side = 1 if self.search.direction == "max" else -1
        holding = [point for point, found in self.results.items() if self._holds(found)]
        failing = [point for point, found in self.results.items() if not self._holds(found)]
        self.bad = min(failing, key=lambda point: point * side, default=None)
        # What holds beyond a point that fails is luck of the seeds.
        within = [point for point in holding if self.bad is None or point * side < self.bad * side]
        self.good = max(within, key=lambda point: point * side, default=None)

    def _holds(self, results: Sequence[Result]) -> bool:
        values = [None if one.summary is None else metric(one.summary, self.search.hold.metric) for one in results]
        known = [value for value in values if value is not None]
        return len(known) == len(values) and self.search.hold.holds(sum(known) / len(known))


def find(
    sweep: Sweep,
    search: Search,
    grid: Sequence[Changes],
    seeds: Sequence[int],
    make: Callable[[Changes], Scenario],
    width: int = 1,
) -> list[Found]:
    """Search for every entry of the grid; the condition is judged on the mean over the seeds. `width`: points at once.

    Raises ConfigError for a scenario that cannot be built, and for a metric that no run has.
    """
    brackets = [_Bracket(search) for _ in grid]
    for _ in range(ROUNDS_MAX):
        asked = [
            (bracket, changes, value)
            for bracket, changes in zip(brackets, grid, strict=True)
            for value in bracket.wanted(max(1, width // len(grid)))
        ]
        if not asked:
            break
        cells = [_cells({**changes, search.key: _typed(search, value)}, seeds, make) for _, changes, value in asked]
        results = iter(sweep.evaluate([cell for group in cells for cell in group]))
        for (bracket, _, value), group in zip(asked, cells, strict=True):
            bracket.tell(value, [next(results) for _ in group])
    return [_found(dict(changes), bracket) for changes, bracket in zip(grid, brackets, strict=True)]


def _typed(search: Search, value: float) -> float | int:
    return round(value) if search.is_whole else float(f"{value:.6g}")


def _cells(changes: Mapping[str, object], seeds: Sequence[int], make: Callable[[Changes], Scenario]) -> list[Cell]:
    return [cell_of(changes, seed, make) for seed in seeds]


def _found(changes: dict[str, object], bracket: _Bracket) -> Found:
    good = bracket.good
    results = [] if good is None else bracket.results[good]
    value = None if good is None else _typed(bracket.search, good)
    return Found(changes, value, good is not None and math.isclose(good, bracket.far), results, len(bracket.results))
