from statistics import mean, pstdev

import pytest

from headway.core.errors import ConfigError
from headway.workload.lengths import Lengths


def drawn(lengths: Lengths, count: int = 20_000) -> list[int]:
    return [lengths.draw(3, "prompt", place) for place in range(count)]


def test_lognormal_has_the_mean_and_deviation_asked_for() -> None:  # SPEC J2
    lengths = drawn(Lengths(mean=500.0, cv=0.5, longest=100_000))
    # The standard errors of 20,000 draws are 0.4 % and about 1 %.
    assert mean(lengths) == pytest.approx(500, rel=0.02)
    assert pstdev(lengths) == pytest.approx(250, rel=0.05)


def test_geometric_has_the_mean_asked_for_and_at_least_one_token() -> None:
    lengths = drawn(Lengths(kind="geometric", mean=8.0))
    assert mean(lengths) == pytest.approx(8.0, rel=0.03)
    assert min(lengths) == 1


def test_fixed_is_fixed_and_the_longest_is_never_passed() -> None:
    assert set(drawn(Lengths(kind="fixed", mean=7.0), 50)) == {7}
    assert max(drawn(Lengths(mean=50.0, cv=3.0, longest=60), 2000)) == 60


@pytest.mark.parametrize("wrong", [{"mean": 0.0}, {"mean": 10.0, "longest": 5}, {"cv": -1.0}])
def test_lengths_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="lengths need"):
        Lengths(**wrong)  # type: ignore[arg-type]  # the wrong value is the point
