"""A search without derivatives."""

import pytest

from headway.cost.simplex import Point, minimise


def bowl(point: Point) -> float:
    return 1.0 + (point[0] - 3) ** 2 + 10 * (point[1] + 2) ** 2


def test_it_finds_the_bottom_of_a_bowl() -> None:
    point, value = minimise(bowl, (0.0, 0.0), 1.0, 300, settled=1e-12)
    assert point == pytest.approx((3.0, -2.0), abs=1e-3)
    assert value == pytest.approx(1.0, abs=1e-6)


def test_it_follows_a_bent_valley() -> None:
    """Rosenbrock's function, minimum 0 at (1, 1)."""
    point, _ = minimise(lambda p: (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2, (-1.2, 1.0), 0.5, 600, settled=1e-14)
    assert point == pytest.approx((1.0, 1.0), abs=1e-3)


def test_it_stops_at_its_budget() -> None:
    calls = []

    def counted(point: Point) -> float:
        calls.append(point)
        return bowl(point)

    minimise(counted, (0.0, 0.0), 1.0, 20, settled=0.0)
    assert len(calls) <= 20 + 3  # a shrink looks at every corner but the best


def test_it_never_returns_worse_than_it_began() -> None:
    _, value = minimise(lambda p: abs(p[0]), (0.0,), 1.0, 10)
    assert value == 0.0
