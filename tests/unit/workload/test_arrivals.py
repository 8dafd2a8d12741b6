import itertools
from statistics import mean, pstdev

import pytest

from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S
from headway.workload.arrivals import poisson, regular


def test_poisson_gaps_are_exponential() -> None:  # SPEC J2
    times = list(poisson(50.0, 20_000, seed=1))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    # For an exponential mean and deviation are equal; the standard error of 20,000 gaps is 0.7 %.
    assert mean(gaps) == pytest.approx(NS_PER_S / 50, rel=0.03)
    assert pstdev(gaps) == pytest.approx(NS_PER_S / 50, rel=0.03)


def test_a_seed_is_one_arrival_process() -> None:  # SPEC J6
    assert list(poisson(5.0, 50, seed=1)) == list(poisson(5.0, 50, seed=1))
    assert list(poisson(5.0, 50, seed=1)) != list(poisson(5.0, 50, seed=2))


def test_regular_gaps_are_equal() -> None:
    assert list(regular(4.0, 3, start_ns=5)) == [5 + NS_PER_S // 4 * k for k in (1, 2, 3)]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        list(poisson(rate, 1, seed=0))
    with pytest.raises(ConfigError, match="above 0"):
        list(regular(rate, 1))
