import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench import resample
from headway.bench.resample import difference
from headway.bench.summary import nearest_rank

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=80).map(np.array)


@given(VALUES, VALUES, st.sampled_from([None, 0.5, 0.95, 0.99]))
def test_the_difference_is_that_of_the_statistics(base: np.ndarray, other: np.ndarray, share: float | None) -> None:
    found = difference(base, other, share, is_paired=False)
    assert found is not None
    before, after = (
        values.mean() if share is None else nearest_rank(sorted(values), share) for values in (base, other)
    )
    assert found.value == pytest.approx(after - before, abs=1e-6)


def test_what_was_not_measured_is_left_out() -> None:
    base, other = np.array([1.0, math.nan, 3.0]), np.array([math.nan, 5.0, 7.0])
    found = difference(base, other, None, is_paired=True)
    assert found is not None
    assert found.value == pytest.approx(4.0)
    assert difference(np.array([math.nan]), other, None, is_paired=False) is None


def test_pairing_takes_out_what_the_runs_have_in_common() -> None:
    rng = np.random.default_rng(1)
    common = rng.exponential(100.0, 2000)
    base, other = common, common - 2.0
    paired = difference(base, other, None, is_paired=True)
    alone = difference(base, other, None, is_paired=False)
    assert paired is not None
    assert alone is not None
    assert paired.is_clear
    assert not alone.is_clear
    assert paired.low == pytest.approx(-2.0)


@pytest.mark.parametrize("share", [None, 0.9])
def test_the_interval_covers_no_difference_as_often_as_it_says(share: float | None) -> None:
    # 50 pairs of equal, independent runs: a 95 % interval leaves zero out in 2.5 of them; the binomial's 99.9 % is 9.
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(50):
        found = difference(rng.exponential(1.0, 400), rng.exponential(1.0, 400), share, is_paired=False)
        assert found is not None
        wrong += found.is_clear
    assert wrong <= 9


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    # A queue: values drift together, so that one request tells little that its neighbour did not.
    rng = np.random.default_rng(3)
    walk = np.abs(np.cumsum(rng.normal(0, 1, 4000)))
    other = rng.permutation(walk)
    drifting = difference(walk, walk[::-1].copy(), None, is_paired=False)
    shuffled = difference(other, rng.permutation(walk), None, is_paired=False)
    assert drifting is not None
    assert shuffled is not None
    assert drifting.high - drifting.low > 3 * (shuffled.high - shuffled.low)


def test_many_values_have_the_interval_of_a_finer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample, "DRAWS", 200)
    rng = np.random.default_rng(4)
    base, other = rng.exponential(1.0, 9000), rng.exponential(1.1, 9000)
    coarse = difference(base, other, 0.95, is_paired=False)
    monkeypatch.setattr(resample, "GROUPS", 9000)
    fine = difference(base, other, 0.95, is_paired=False)
    assert coarse is not None
    assert fine is not None
    assert coarse.value == fine.value
    assert (coarse.low, coarse.high) == pytest.approx((fine.low, fine.high), abs=0.02 * (fine.high - fine.low))


def test_the_same_runs_give_the_same_interval() -> None:
    values = np.arange(100.0)
    assert difference(values, values + 1, 0.5, is_paired=True) == difference(values, values + 1, 0.5, is_paired=True)
