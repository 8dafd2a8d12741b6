"""Quantiles of output lengths against the plain definition (SPEC A3)."""

from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cost.output_length import Bucket

outputs = st.lists(st.integers(1, 5000), min_size=1, max_size=80)
shares = st.floats(0.01, 0.99)


def filled(tokens: list[int], most: int) -> Bucket:
    bucket = Bucket(most)
    for count in tokens:
        bucket.add(count)
    return bucket


@given(outputs, st.integers(1, 40), shares, st.integers(0, 5000))
@settings(max_examples=300, deadline=None)
def test_it_is_the_quantile_of_the_last_outputs_longer_than_a_length(
    tokens: list[int], most: int, share: float, above: int
) -> None:
    longer = sorted(count for count in tokens[-most:] if count > above)
    found = filled(tokens, most).quantile(share, above)
    assert found == (longer[max(0, ceil(share * len(longer)) - 1)] if longer else None)


@given(outputs, st.integers(1, 40), shares, shares)
@settings(max_examples=200, deadline=None)
def test_it_is_bounded_by_the_outputs_and_monotone_in_the_quantile(
    tokens: list[int], most: int, one: float, other: float
) -> None:
    bucket, last = filled(tokens, most), tokens[-most:]
    low, high = bucket.quantile(min(one, other)), bucket.quantile(max(one, other))
    assert low is not None
    assert high is not None
    assert min(last) <= low <= high <= max(last)


@given(outputs, shares, st.integers(0, 5000), st.integers(0, 5000))
@settings(max_examples=200, deadline=None)
def test_having_come_further_never_shortens_it(tokens: list[int], share: float, one: int, other: int) -> None:
    bucket = filled(tokens, 80)
    less, more = bucket.quantile(share, min(one, other)), bucket.quantile(share, max(one, other))
    if more is not None:
        assert less is not None
        assert less <= more
        assert more > max(one, other)
