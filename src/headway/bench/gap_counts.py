"""Percentiles over all gaps between tokens of a run, in bounded memory: counts by length, to a thousandth."""

from collections import Counter
from typing import Final, TypeAlias

import numpy as np

from headway.bench.summary import Quantiles
from headway.core.units import NS_PER_MS

GapsNs: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
STEPS: Final = 720  # per doubling: neighbours differ by a thousandth
WAITING: Final = 1 << 16  # gaps that are kept until they are counted together


class GapCounts:
    """Counts gaps by the logarithm of their length; mean and maximum are exact."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._waiting: list[GapsNs] = []
        self._waiting_count = 0
        self._count, self._sum_ns, self._max_ns = 0, 0, 0

    def add(self, gaps: GapsNs) -> None:
        """Count the gaps of one request."""
        if not len(gaps):
            return
        self._waiting.append(gaps)
        self._waiting_count += len(gaps)
        if self._waiting_count >= WAITING:
            self._fold()

    def _fold(self) -> None:
        if not self._waiting:
            return
        gaps = np.concatenate(self._waiting)
        self._waiting, self._waiting_count = [], 0
        self._count += len(gaps)
        self._sum_ns += int(gaps.sum())
        self._max_ns = max(self._max_ns, int(gaps.max()))
        places = np.ceil(np.log2(np.maximum(gaps, 1)) * STEPS).astype(np.int64)
        for place, count in zip(*(found.tolist() for found in np.unique(places, return_counts=True)), strict=True):
            self._counts[place] += count

    def quantiles(self) -> Quantiles:
        """Return nearest-rank percentiles, too large by a thousandth at most."""
        self._fold()
        if not self._count:
            return Quantiles(0)
        ordered = sorted(self._counts.items())
        upto = np.cumsum([count for _, count in ordered])

        def ranked(share: float) -> float:
            place = ordered[int(np.searchsorted(upto, np.ceil(share * self._count)))][0]
            return float(min(2.0 ** (place / STEPS), self._max_ns) / NS_PER_MS)

        mean = self._sum_ns / self._count / NS_PER_MS
        return Quantiles(self._count, mean, ranked(0.5), ranked(0.95), ranked(0.99), self._max_ns / NS_PER_MS)
