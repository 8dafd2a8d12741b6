"""Least squares with coefficients that cannot be negative."""

from random import Random

import pytest

from headway.cost.nonnegative import solve_nonnegative


def test_it_finds_what_the_data_were_made_of() -> None:
    rng = Random(1)
    rows = [[1.0, rng.random() * 100, rng.random() * 1e6] for _ in range(50)]
    targets = [5.0 + 0.25 * row[1] + 3e-4 * row[2] for row in rows]
    assert solve_nonnegative(rows, targets) == pytest.approx([5.0, 0.25, 3e-4], rel=1e-6)


def test_what_would_be_negative_is_zero_and_the_rest_is_solved_without_it() -> None:
    rows = [[1.0, float(n)] for n in range(10)]
    assert solve_nonnegative(rows, [10.0 - n for n in range(10)]) == pytest.approx([5.5, 0.0])


def test_a_feature_that_is_never_there_gets_zero() -> None:
    rows = [[1.0, float(n), 0.0] for n in range(5)]
    assert solve_nonnegative(rows, [2.0 + 3 * n for n in range(5)]) == pytest.approx([2.0, 3.0, 0.0])


def test_equal_features_share_one_solution() -> None:
    rows = [[1.0, float(n), float(n)] for n in range(5)]
    x = solve_nonnegative(rows, [2.0 + 3 * n for n in range(5)])
    assert x[0] == pytest.approx(2.0)
    assert x[1] + x[2] == pytest.approx(3.0)


def test_no_step_of_any_feature_improves_the_answer() -> None:
    """The conditions of Karush, Kuhn and Tucker, on problems where the bound matters."""
    rng = Random(7)
    for _ in range(40):
        rows = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(12)]
        targets = [rng.gauss(0, 1) for _ in range(12)]
        x = solve_nonnegative(rows, targets)
        rest = [t - sum(a * b for a, b in zip(r, x, strict=True)) for r, t in zip(rows, targets, strict=True)]
        for j, value in enumerate(x):
            gradient = sum(r[j] * e for r, e in zip(rows, rest, strict=True))
            assert value >= 0
            assert gradient <= 1e-8
            assert value == 0 or abs(gradient) < 1e-8
