import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.gap_counts import GapCounts
from headway.bench.summary import nearest_rank


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=1), min_size=1, max_size=5))
def test_percentiles_are_within_a_thousandth_and_mean_and_maximum_exact(parts: list[list[int]]) -> None:  # SPEC I3
    counts = GapCounts()
    for part in parts:
        counts.add(np.array(part, dtype=np.int64))
    gaps = sorted(gap for part in parts for gap in part)
    found = counts.quantiles()
    assert found.count == len(gaps)
    assert found.mean == pytest.approx(sum(gaps) / len(gaps) / 1e6)
    assert found.max == gaps[-1] / 1e6
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        exact = nearest_rank(gaps, share) / 1e6
        assert value is not None
        assert exact <= value * (1 + 1e-9)
        assert value <= max(exact, 1e-6) * 1.001


def test_nothing_counted_is_none() -> None:
    assert GapCounts().quantiles().p99 is None
