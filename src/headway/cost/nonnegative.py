"""Least squares with coefficients that cannot be negative: more work never takes less time.

Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, on normal equations; for a few features.
"""

from collections.abc import Sequence
from typing import Final

_ROUNDS_PER_FEATURE: Final = 10
_TOLERANCE: Final = 1e-10  # of a gradient, with features scaled to length one


def solve_nonnegative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Return x >= 0 that minimises the sum of (row . x - target)^2. O(rows * features^2).

    Features that are all zero, or that others explain already, get zero.
    """
    width = len(rows[0])
    lengths = [sum(row[j] * row[j] for row in rows) ** 0.5 for j in range(width)]
    scale = [1.0 / length if length > 0 else 0.0 for length in lengths]
    gram = [[scale[i] * scale[j] * sum(r[i] * r[j] for r in rows) for j in range(width)] for i in range(width)]
    moment = [scale[j] * sum(r[j] * t for r, t in zip(rows, targets, strict=True)) for j in range(width)]
    return [value * factor for value, factor in zip(_active_set(gram, moment), scale, strict=True)]


def _active_set(gram: list[list[float]], moment: list[float]) -> list[float]:
    width = len(moment)
    x = [0.0] * width
    free: list[int] = []
    limit = _TOLERANCE * max(max(map(abs, moment), default=0.0), 1e-300)
    for _ in range(_ROUNDS_PER_FEATURE * width):
        pull = [moment[j] - sum(gram[j][i] * x[i] for i in free) for j in range(width)]
        waiting = [j for j in range(width) if j not in free and pull[j] > limit]
        if not waiting:
            break
        free = sorted([*free, max(waiting, key=lambda j: pull[j])])
        x, free = _settle(gram, moment, x, free)
    return x


def _settle(
    gram: list[list[float]], moment: list[float], x: list[float], free: list[int]
) -> tuple[list[float], list[int]]:
    """Solve for the free features; those that would go negative stop at zero and are free no more."""
    while free:
        solved = _solve([[gram[i][j] for j in free] for i in free], [moment[i] for i in free])
        aim = dict(zip(free, solved, strict=True))
        blocked = [j for j in free if aim[j] <= 0]
        if not blocked:
            return [aim.get(j, 0.0) for j in range(len(x))], free
        step = min((x[j] / (x[j] - aim[j]) for j in blocked if x[j] > aim[j]), default=0.0)
        x = [x[j] + step * (aim[j] - x[j]) if j in aim else 0.0 for j in range(len(x))]
        kept = [j for j in free if not (j in blocked and x[j] <= _TOLERANCE * max(1.0, abs(aim[j])))]
        free = kept if len(kept) < len(free) else [j for j in free if j not in blocked]
        x = [x[j] if j in free else 0.0 for j in range(len(x))]
    return x, free


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss with pivots; a direction without curvature gets zero."""
    size = len(right)
    a = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    used: list[int] = []
    for column in range(size):
        pivot = max((i for i in range(size) if i not in used), key=lambda i: abs(a[i][column]), default=-1)
        if pivot < 0 or abs(a[pivot][column]) < 1e-12:
            used.append(-1)
            continue
        used.append(pivot)
        for i in range(size):
            if i != pivot and a[i][column]:
                factor = a[i][column] / a[pivot][column]
                a[i] = [value - factor * other for value, other in zip(a[i], a[pivot], strict=True)]
    return [0.0 if row < 0 else a[row][size] / a[row][column] for column, row in enumerate(used)]
