from pathlib import Path

import pytest

from headway.workload import mooncake
from headway.workload.rows import Row
from headway.workload.stats import lru_reuse, trace_stats

ROOT = Path(__file__).parents[3]
WHOLE = ROOT.parent / "shared/data/traces/mooncake_conversation.jsonl"


def test_figures_of_a_trace_that_can_be_counted_by_hand() -> None:
    stats = trace_stats([Row(k * 10**9, k + 1, 10) for k in range(5)])
    assert (stats.requests, stats.span_s, stats.rate_per_s, stats.gap_cv) == (5, 4.0, 1.25, 0.0)
    assert (stats.input.mean, stats.input.p50, stats.input.p90) == (3.0, 3.0, pytest.approx(4.6))
    with pytest.raises(ValueError, match="has no rate"):
        trace_stats([Row(0, 1, 1)])


def test_reuse_counts_the_blocks_before_the_first_that_is_not_held() -> None:
    assert lru_reuse([(1, 2), (1, 2, 3), (4, 2)], None) == 2 / 7
    assert lru_reuse([(1, 2), (3, 4), (1, 2)], 2) == 0.0
    assert lru_reuse([], None) == 0.0


@pytest.mark.skipif(not WHOLE.exists(), reason="the whole trace is not on this machine")
def test_the_conversation_trace_has_the_figures_that_were_measured_elsewhere() -> None:  # simulators.md §3
    rows = list(mooncake.rows(WHOLE))
    stats = trace_stats(rows)
    assert stats.requests == 12_031
    assert (stats.span_s, stats.rate_per_s) == pytest.approx((3537, 3.40), rel=0.001)
    spread = stats.input
    assert (spread.p50, spread.p90, spread.p99, spread.mean) == pytest.approx((6909, 27_367, 85_400, 12_035), abs=0.51)
    spread = stats.output
    assert (spread.p50, spread.p90, spread.p99, spread.mean) == pytest.approx((350, 597, 1119, 343), abs=0.51)
    # Hit shares at LRU of 0.5, 2.6, 10.2 and 25.6 M tokens; the table rounds the sizes.
    for blocks, share in ((None, 0.366), (1000, 0.044), (5000, 0.110), (20_000, 0.287), (50_000, 0.355)):
        assert lru_reuse((row.blocks for row in rows), blocks) == pytest.approx(share, abs=0.002)
