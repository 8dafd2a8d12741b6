"""Intervals over few independent runs, one per seed."""

import math
from collections.abc import Sequence
from typing import Final

# Student's t for a two-sided interval of 95 %, by degrees of freedom; beyond the table that of 30, which is wider.
_T95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def spread_of(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half width of its 95 % interval by Student's t. Raises ValueError for fewer than two values."""
    count = len(values)
    if count < 2:
        raise ValueError(f"{count} values have no spread")
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, _T95[min(count - 1, len(_T95)) - 1] * deviation / math.sqrt(count)


def interval(shares: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean share, within 0 and 1; of one share it is everything."""
    if len(shares) < 2:
        return 0.0, 1.0
    mean, half = spread_of(shares)
    return max(0.0, mean - half), min(1.0, mean + half)
