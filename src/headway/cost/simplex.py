"""Search for a minimum without derivatives (Nelder and Mead, The Computer Journal 7, 1965)."""

from collections.abc import Callable, Sequence
from typing import Final

Point = tuple[float, ...]

_SHRINK: Final = 0.5


def minimise(
    value_of: Callable[[Point], float], start: Sequence[float], spread: float, evaluations: int, settled: float = 1e-4
) -> tuple[Point, float]:
    """Return the best point found and its value, after so many evaluations or once all corners are within `settled`.

    Deterministic. `spread`: how far the first corners lie from the start, in each direction.
    """
    corners = [tuple(start)]
    corners += [tuple(v + (spread if i == j else 0.0) for j, v in enumerate(start)) for i in range(len(start))]
    ranked = sorted((value_of(corner), corner) for corner in corners)
    used = len(ranked)
    while used < evaluations and ranked[-1][0] - ranked[0][0] > settled * abs(ranked[0][0]):
        centre = _mean([corner for _, corner in ranked[:-1]])
        worst_value, worst = ranked[-1]
        tried = _along(centre, worst, -1.0)
        value = value_of(tried)
        used += 1
        if value < ranked[0][0]:
            further = _along(centre, worst, -2.0)
            beyond = value_of(further)
            used += 1
            ranked[-1] = min((value, tried), (beyond, further))
        elif value < ranked[-2][0]:
            ranked[-1] = (value, tried)
        else:
            nearer = _along(centre, worst if value >= worst_value else tried, _SHRINK)
            between = value_of(nearer)
            used += 1
            if between < min(value, worst_value):
                ranked[-1] = (between, nearer)
            else:
                best = ranked[0][1]
                shrunk = [_along(best, corner, _SHRINK) for _, corner in ranked[1:]]
                ranked[1:] = [(value_of(corner), corner) for corner in shrunk]
                used += len(shrunk)
        ranked.sort()
    return ranked[0][1], ranked[0][0]


def _mean(points: Sequence[Point]) -> Point:
    return tuple(sum(values) / len(points) for values in zip(*points, strict=True))


def _along(origin: Point, to: Point, share: float) -> Point:
    return tuple(a + share * (b - a) for a, b in zip(origin, to, strict=True))
