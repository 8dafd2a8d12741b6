"""Chooses the sizes that steps are padded to from how many rows steps had (SPEC E1)."""

from collections.abc import Mapping, Sequence
from itertools import accumulate


def chosen_sizes(steps: Mapping[int, int], sizes_max: int) -> tuple[int, ...]:
    """At most `sizes_max` sizes, ascending, that give `steps` (count by rows) the least padding; the last holds all.

    Exact, in O(sizes_max * n log n) for n different numbers of rows: between sizes the best place to cut moves up with
    the end (the quadrangle inequality), so each layer is solved by halves.
    """
    rows = sorted(row for row, count in steps.items() if row > 0 and count > 0)
    if sizes_max < 1 or len(rows) <= sizes_max:
        return tuple(rows) if sizes_max >= 1 else ()
    below = [0, *accumulate(steps[row] for row in rows)]
    best = [row * below[end + 1] for end, row in enumerate(rows)]  # rows computed for all up to `end`, with one size
    cuts: list[list[int]] = []
    for _ in range(sizes_max - 1):
        best, cut = _one_more(rows, below, best)
        cuts.append(cut)
    end, sizes = len(rows) - 1, []
    for cut in reversed(cuts):
        sizes.append(rows[end])
        end = cut[end]
        if end < 0:
            break
    else:
        sizes.append(rows[end])
    return tuple(reversed(sizes))


def _one_more(rows: Sequence[int], below: Sequence[int], best: Sequence[int]) -> tuple[list[int], list[int]]:
    """Least rows computed for all up to each end, with a size at that end and one more below; and where that lies.

    -1: none is below, this size holds all.
    """
    found, cut = [0] * len(rows), [-1] * len(rows)
    todo = [(0, len(rows) - 1, -1, len(rows) - 2)]
    while todo:
        first, last, low, high = todo.pop()
        if first > last:
            continue
        end = (first + last) // 2
        cost, place = min(
            ((best[at] if at >= 0 else 0) + rows[end] * (below[end + 1] - below[at + 1]), at)
            for at in range(low, min(high, end - 1) + 1)
        )
        found[end], cut[end] = cost, place
        todo.append((first, end - 1, low, place))
        todo.append((end + 1, last, place, high))
    return found, cut


def powers(rows_max: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `rows_max`: for steps of which nothing is known; none is padded to twice its rows."""
    return (*(1 << exponent for exponent in range(rows_max.bit_length()) if 1 << exponent < rows_max), rows_max)
