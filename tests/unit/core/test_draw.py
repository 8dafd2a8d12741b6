"""Keyed draws: a function of the key alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.draw import draw_below, draw_u64, draw_unit


def test_a_draw_is_the_same_in_every_process() -> None:
    # The value is part of the replay format: recorded runs must give equal effects after an upgrade.
    assert draw_u64(7, "req-1", 0, 0) == 0x0F77ED7FB1108B6E


def test_every_part_of_the_key_counts() -> None:
    draws = [draw_u64(*key) for key in [(7, "a", 0, 0), (8, "a", 0, 0), (7, "b", 0, 0), (7, "a", 1, 0), (7, "a", 0, 1)]]
    assert len(set(draws)) == len(draws)


@given(seed=st.integers(), request=st.text(max_size=9), bound=st.integers(1, 1000))
def test_draws_stay_in_range(seed: int, request: str, bound: int) -> None:
    assert 0 <= draw_below(seed, request, 0, 0, bound) < bound
    assert 0.0 <= draw_unit(seed, request, 0, 0) < 1.0


def test_draws_below_a_bound_are_even() -> None:
    counts = [0] * 10
    for k in range(10_000):
        counts[draw_below(1, "req", 0, k, 10)] += 1
    # chi-square with 9 degrees of freedom: 27.9 is the 99.9 % quantile
    assert sum((c - 1000) ** 2 / 1000 for c in counts) < 27.9


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="bound 0"):
        draw_below(1, "req", 0, 0, 0)
