"""Batches have the sizes that are measured."""

import pytest

from headway.cost.batch_sizes import batch_sizes, parts_of


# SPEC F8
@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [1, 2, 3, 4, 5, 6, 7, 8, 16]),
        (40, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 40]),
    ],
)
def test_small_batches_have_every_size_and_large_ones_powers_of_two(largest: int, sizes: list[int]) -> None:
    assert batch_sizes(largest) == sizes


@pytest.mark.parametrize(
    ("pictures", "largest", "parts"),
    [(5, 4, [4, 1]), (10, 16, [8, 2]), (31, 16, [16, 8, 7]), (12, 12, [12]), (1, 1, [1]), (3, 1, [1, 1, 1])],
)
def test_other_numbers_of_pictures_are_passes_of_these_sizes(pictures: int, largest: int, parts: list[int]) -> None:
    assert parts_of(pictures, largest) == parts
