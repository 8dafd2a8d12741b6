"""What a trace is like: how often, how bursty, how long, how much of it repeats."""

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

import msgspec

from headway.core.units import NS_PER_S
from headway.workload.rows import Row


class Spread(msgspec.Struct, frozen=True):
    """A distribution of lengths; percentiles interpolate between the two nearest ranks."""

    mean: float
    p50: float
    p90: float
    p99: float


class TraceStats(msgspec.Struct, frozen=True):
    """`gap_cv`: deviation over mean of the gaps between arrivals: 1 for Poisson."""

    requests: int
    span_s: float
    rate_per_s: float
    gap_cv: float
    input: Spread
    output: Spread


def trace_stats(rows: Iterable[Row]) -> TraceStats:
    """Measure a trace of two requests or more. Raises ValueError for a shorter one. O(n log n), keeps the lengths."""
    held = [(row.at_ns, row.input_tokens, row.output_tokens) for row in rows]
    if len(held) < 2:
        raise ValueError(f"a trace of {len(held)} requests has no rate")
    gaps = [(after[0] - before[0]) / NS_PER_S for before, after in itertools.pairwise(held)]
    span_s = (held[-1][0] - held[0][0]) / NS_PER_S
    return TraceStats(
        requests=len(held),
        span_s=span_s,
        rate_per_s=len(held) / span_s if span_s else math.inf,
        gap_cv=pstdev(gaps) / fmean(gaps) if span_s else 0.0,
        input=_spread([item[1] for item in held]),
        output=_spread([item[2] for item in held]),
    )


def _spread(values: list[int]) -> Spread:
    ranked = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ranked) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ranked) - 1)
        return ranked[low] + (ranked[high] - ranked[low]) * (place - low)

    return Spread(fmean(ranked), at(0.5), at(0.9), at(0.99))


def lru_reuse(prompts: Iterable[Sequence[int]], capacity_blocks: int | None) -> float:
    """Return the share of blocks found in one cache of least recently used blocks; None: it keeps all.

    What a single cache in front of everything would hit: no fleet can hit more of its total capacity.
    """
    held: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for blocks in prompts:
        total += len(blocks)
        hits += next((place for place, block in enumerate(blocks) if block not in held), len(blocks))
        for block in reversed(blocks):  # a leaf goes before its parents
            held[block] = None
            held.move_to_end(block)
            if capacity_blocks is not None and len(held) > capacity_blocks:
                held.popitem(last=False)
    return hits / total if total else 0.0
