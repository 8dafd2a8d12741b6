"""Intervals of differences between runs, by resampling blocks of consecutive arrivals.

Requests that queue together are alike, so a bootstrap over single requests promises too much; blocks keep what binds
them (Kuensch 1989). With the same requests in both runs a draw takes the same blocks of both: what their arrivals and
lengths have in common cancels.
"""

from typing import Final, TypeAlias

import msgspec
import numpy as np

from headway.bench.ends import Floats

Taken: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # [draws, blocks]: how often
BLOCKS: Final = 50
DRAWS: Final = 1000
GROUPS: Final = 2000  # ranks that a draw tells apart: more values than that are taken together by their neighbours
COVER: Final = 0.95


class Interval(msgspec.Struct, frozen=True):
    """A difference with the range that holds it in 95 % of the draws."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """True when the range leaves zero out."""
        return self.low > 0 or self.high < 0


def difference(base: Floats, other: Floats, share: float | None, *, is_paired: bool) -> Interval | None:
    """Return a statistic of `other` less that of `base`: the mean, or the nearest-rank percentile at `share`.

    Values in the order of arrival; nan: not measured, it is left out. `is_paired`: the same requests in the same order.
    None when one of the two has nothing to measure.
    """
    if np.isnan(base).all() or np.isnan(other).all():
        return None
    rng = np.random.default_rng(0)
    first = _draw(rng, len(base))
    second = first if is_paired else _draw(rng, len(other))
    found = _statistics(other, second, share) - _statistics(base, first, share)
    low, high = np.nanquantile(found, [(1 - COVER) / 2, (1 + COVER) / 2])
    return Interval(_exact(other, share) - _exact(base, share), float(low), float(high))


def _draw(rng: np.random.Generator, count: int) -> Taken:
    """How often each draw takes each block: [draws, blocks]."""
    blocks = min(BLOCKS, count)
    return np.asarray(rng.multinomial(blocks, [1 / blocks] * blocks, size=DRAWS), dtype=np.int64)


def _exact(values: Floats, share: float | None) -> float:
    values = values[~np.isnan(values)]
    if share is None:
        return float(values.mean())
    place = max(0, int(np.ceil(share * len(values))) - 1)
    return float(np.partition(values, place)[place])


def _statistics(values: Floats, taken: Taken, share: float | None) -> Floats:
    """The statistic of each draw; nan for a draw that measured nothing."""
    blocks = taken.shape[1]
    block = np.arange(len(values)) * blocks // len(values)
    is_there = ~np.isnan(values)
    values, block = values[is_there], block[is_there]
    held = taken @ np.bincount(block, minlength=blocks)
    some = np.where(held > 0, held, np.nan)
    if share is None:
        return np.asarray(taken @ np.bincount(block, weights=values, minlength=blocks) / some, dtype=np.float64)
    order = np.argsort(values)
    groups = min(GROUPS, len(values))
    group = np.arange(len(values)) * groups // len(values)
    counts = np.zeros((blocks, groups))
    np.add.at(counts, (block[order], group), 1.0)
    upto = np.cumsum(taken.astype(np.float64) @ counts, axis=1)
    rank = np.maximum(1, np.ceil(share * held))
    place = np.minimum((upto < rank[:, None]).sum(axis=1), groups - 1)
    last = np.searchsorted(group, np.arange(groups), side="right") - 1  # the largest value of each group
    return np.where(held > 0, values[order][last[place]], np.nan)
