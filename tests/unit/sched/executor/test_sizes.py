from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from headway.sched.executor.buckets import smallest
from headway.sched.executor.sizes import chosen_sizes, powers


def padding(steps: dict[int, int], sizes: tuple[int, ...]) -> int:
    return sum(count * (smallest(rows, sizes) - rows) for rows, count in steps.items())


# SPEC E1
@given(
    steps=st.dictionaries(st.integers(1, 60), st.integers(1, 1000), min_size=1, max_size=9),
    sizes_max=st.integers(1, 9),
)
def test_no_other_sizes_pad_less(steps: dict[int, int], sizes_max: int) -> None:
    sizes = chosen_sizes(steps, sizes_max)
    assert len(sizes) <= sizes_max
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == max(steps)
    # Sizes that no step has could only be lowered, so these are all that need to be tried.
    others = (
        (*rest, max(steps))
        for count in range(sizes_max)
        for rest in combinations(sorted(set(steps) - {max(steps)}), count)
    )
    assert padding(steps, sizes) == min(padding(steps, other) for other in others)


@given(steps=st.dictionaries(st.integers(1, 5000), st.integers(1, 10**9), min_size=1), sizes_max=st.integers(1, 20))
def test_one_more_size_never_pads_more(steps: dict[int, int], sizes_max: int) -> None:
    more = chosen_sizes(steps, sizes_max + 1)
    assert padding(steps, more) <= padding(steps, chosen_sizes(steps, sizes_max))


def test_sizes_go_where_the_steps_are() -> None:  # SPEC E1
    assert chosen_sizes({1: 900, 2: 5, 31: 700, 32: 700, 500: 3}, 3) == (1, 32, 500)


def test_nothing_seen_gives_nothing() -> None:
    assert chosen_sizes({}, 4) == chosen_sizes({0: 7}, 4) == ()


@given(rows_max=st.integers(1, 5000), rows=st.integers(1, 5000))
def test_powers_pad_by_less_than_what_is_computed(rows_max: int, rows: int) -> None:
    sizes = powers(rows_max)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == rows_max
    assert rows > rows_max or smallest(rows, sizes) < 2 * rows
