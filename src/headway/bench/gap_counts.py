"""Percentiles over all gaps between tokens of a run, in bounded memory: counts by length, to a thousandth."""

from typing import Final, TypeAlias

import numpy as np

from headway.bench.summary import Quantiles
from headway.core.units import NS_PER_MS

GapsNs: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
STEPS: Final = 720  # per doubling: neighbours differ by a thousandth
PLACES: Final = 63 * STEPS + 1


class GapCounts:
    """Counts gaps by the logarithm of their length; mean and maximum are exact."""

    def __init__(self) -> None:
        self._counts = np.zeros(PLACES, dtype=np.int64)
        self._count, self._sum_ns, self._max_ns = 0, 0, 0

    def add(self, gaps: GapsNs) -> None:
        """Count gaps."""
        if not len(gaps):
            return
        self._count += len(gaps)
        self._sum_ns += int(gaps.sum())
        self._max_ns = max(self._max_ns, int(gaps.max()))
        places = np.ceil(np.log2(np.maximum(gaps, 1)) * STEPS).astype(np.int64)
        self._counts += np.bincount(places, minlength=PLACES)

    def quantiles(self) -> Quantiles:
        """Return nearest-rank percentiles, too large by a thousandth at most."""
        if not self._count:
            return Quantiles(0)
        upto = np.cumsum(self._counts)

        def ranked(share: float) -> float:
            place = int(np.searchsorted(upto, np.ceil(share * self._count)))
            return float(min(2.0 ** (place / STEPS), self._max_ns) / NS_PER_MS)

        mean = self._sum_ns / self._count / NS_PER_MS
        return Quantiles(self._count, mean, ranked(0.5), ranked(0.95), ranked(0.99), self._max_ns / NS_PER_MS)
