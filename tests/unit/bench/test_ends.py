import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.bench.ended import end

from headway.bench.ends import GAP_BITS, Tokens, table_of
from headway.bench.outcome import Outcome
from headway.bench.summary import Targets, meets
from headway.core.errors import InvariantError

TIMES = st.lists(st.integers(1, 60), max_size=30).map(
    lambda gaps: [float(sum(gaps[: k + 1])) for k in range(len(gaps))]
)
LIMIT = st.none() | st.integers(1, 80).map(float)


@given(st.lists(TIMES, min_size=1, max_size=8))
def test_gaps_of_each_request_are_those_of_its_own_tokens(requests: list[list[float]]) -> None:
    # REFERENCE 1: mean, mean of the longest tenth (Mooncake), maximum
    ends = [end(f"req-{place}", 10.0 * place, *times) for place, times in enumerate(requests)]
    found = table_of(ends, Tokens([item.outcome for item in ends]))
    for place, times in enumerate(requests):
        gaps = sorted(later - earlier for earlier, later in pairwise(times))
        top = gaps[-max(1, round(0.1 * len(gaps))) :]
        wanted = [sum(gaps) / len(gaps), sum(top) / len(top), gaps[-1]] if gaps else [math.nan] * 3
        got = [found[f"itl_{name}_ms"][place] for name in ("mean", "top10", "max")]
        assert got == pytest.approx(wanted, nan_ok=True)


@given(st.lists(st.tuples(TIMES, LIMIT, LIMIT, LIMIT), min_size=1, max_size=6))
def test_targets_are_met_as_the_summary_of_a_load_says(
    requests: list[tuple[list[float], float | None, float | None, float | None]],
) -> None:
    ends = [
        end(f"req-{place}", 3.0, *times, targets=Targets(*limits)) for place, (times, *limits) in enumerate(requests)
    ]
    found = table_of(ends, Tokens([item.outcome for item in ends]))
    for place, item in enumerate(ends):
        targets, outcome = item.targets, item.outcome
        assert found["met"][place] == meets(outcome, targets)
        for name in ("ttft", "tpot", "e2e"):
            limit = getattr(targets, f"{name}_ms")
            wanted = None if limit is None else meets(outcome, Targets(**{f"{name}_ms": limit}))
            assert found[f"met_{name}"][place] == wanted


@given(TIMES.filter(bool), st.integers(1, 80), st.integers(1, 80))
def test_the_deadline_form_looks_at_every_token(times: list[float], ttft: int, tpot: int) -> None:
    item = end("req-0", 3.0, *times, targets=Targets(ttft_ms=ttft, tpot_ms=tpot))
    found = table_of([item], Tokens([item.outcome]))
    assert found["met_deadlines"][0] == all(time <= ttft + place * tpot for place, time in enumerate(times))


def test_a_gap_that_does_not_fit_beside_its_owner_is_a_bug_and_not_a_wrong_number() -> None:
    tokens = Tokens([Outcome(0, 1 << GAP_BITS, (0, 1 << GAP_BITS), 2)])
    with pytest.raises(InvariantError, match="too much to sort"):
        tokens.gap_columns()


def test_requests_without_tokens_between_others_shift_nothing() -> None:
    ends = [end("req-0", 0), end("req-1", 0, 5, 7), end("req-2", 0), end("req-3", 0, 9)]
    found = table_of(ends, Tokens([item.outcome for item in ends]))
    ttft = np.array(found["client_ttft_ms"], dtype=float)
    assert ttft.tolist() == pytest.approx([math.nan, 5, math.nan, 9], nan_ok=True)
