from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice, pairwise
from statistics import fmean, median, pstdev, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S
from headway.workload.arrivals import Arrivals, Diurnal, Gamma, OnOff, Poisson, Regular, poisson, regular, times

PROCESSES: list[Arrivals] = [
    Poisson(rate_per_s=50.0),
    Regular(rate_per_s=50.0),
    Gamma(rate_per_s=50.0, cv=0.5),
    Gamma(rate_per_s=50.0, cv=4.0),
    OnOff(rate_per_s=50.0, on_s=2.0, off_s=6.0, idle_share=0.1),
    Diurnal(rate_per_s=50.0, period_s=40.0, depth=1.0),
]


def made(process: Arrivals, count: int = 20_000, seed: int = 1) -> list[int]:
    return list(islice(times(process, seed), count))


def gaps(at: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise((0, *at))]


def counts(at: Sequence[int], window_s: float) -> list[int]:
    edges = [round(k * window_s * NS_PER_S) for k in range(int(at[-1] / NS_PER_S / window_s) + 1)]
    places = [bisect_left(at, edge) for edge in edges]
    return [later - earlier for earlier, later in pairwise(places)]


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_times_ascend_and_a_seed_is_one_process_whose_beginning_does_not_depend_on_its_length(
    process: Arrivals,
) -> None:  # SPEC J2, J6
    long = made(process, 2000)
    assert long == sorted(long)
    assert made(process, 300) == long[:300]
    assert made(process, 2000) == long
    if not isinstance(process, Regular):
        assert made(process, 300, seed=2) != long[:300]


# The relative standard error of the rate over n arrivals is cv/sqrt(n) for renewal processes; four of them are allowed.
@pytest.mark.parametrize(("cv", "tolerance"), [(0.25, 0.008), (1.0, 0.029), (3.0, 0.085)])
def test_gamma_gaps_have_the_rate_and_the_cv_asked_for(cv: float, tolerance: float) -> None:  # SPEC J2
    between = gaps(made(Gamma(rate_per_s=8.0, cv=cv)))
    assert fmean(between) == pytest.approx(NS_PER_S / 8, rel=tolerance)
    # The standard error of a deviation is sqrt((kurtosis - 1) / 4n), and a gamma's kurtosis is 3 + 6 cv^2.
    assert pstdev(between) / fmean(between) == pytest.approx(cv, rel=4 * ((2 + 6 * cv**2) / 4 / 20_000) ** 0.5)


def test_a_gamma_process_as_bursty_as_azures_code_trace_keeps_its_rate() -> None:  # simulators.md §3: cv 13
    between = gaps(made(Gamma(rate_per_s=2.57, cv=13.0), 60_000))
    assert fmean(between) == pytest.approx(NS_PER_S / 2.57, rel=4 * 13 / 60_000**0.5)
    assert pstdev(between) / fmean(between) == pytest.approx(13.0, rel=0.15)


def test_poisson_counts_have_an_index_of_dispersion_of_one() -> None:
    per_window = counts(made(Poisson(rate_per_s=20.0)), 1.0)
    assert fmean(per_window) == pytest.approx(20, rel=0.03)
    # The standard error of the index over k windows is sqrt(2/k): 4.5 % here.
    assert pvariance(per_window) / fmean(per_window) == pytest.approx(1.0, abs=4 * (2 / len(per_window)) ** 0.5)


def test_on_off_keeps_the_mean_rate_and_is_silent_between_bursts() -> None:
    process = OnOff(rate_per_s=10.0, on_s=1.0, off_s=3.0)
    at = made(process, 40_000)
    # A cycle's arrivals have a cv of 1 on top of Poisson's: about 4000/4 cycles carry them.
    assert len(at) / (at[-1] / NS_PER_S) == pytest.approx(10.0, rel=0.1)
    between = gaps(at)
    # A burst of rate 10 (1 + 3) / 1 = 40 ends with a gap of three seconds; one gap in 41 is one.
    assert sum(gap > NS_PER_S for gap in between) / len(between) == pytest.approx(2.718281828 ** (-1 / 3) / 41, rel=0.1)
    assert median(between) == pytest.approx(0.6931 * NS_PER_S / 40, rel=0.05)


def test_on_off_with_a_busy_idle_time_splits_the_rate_as_asked() -> None:
    # The rates are 40 and 10; the long-run index of dispersion of a two-state modulated Poisson process is
    # 1 + 2 p (1-p) (r1-r0)^2 / (mean (a+b)), with p the share of bursts and a, b the rates of change.
    process = OnOff(rate_per_s=20.0, on_s=1.0, off_s=2.0, idle_share=0.25)
    per_window = counts(made(process, 100_000), 20.0)
    index = 1 + 2 * (1 / 3) * (2 / 3) * 30**2 / (20 * 1.5)
    short = 1 - (1 - 2.718281828 ** (-1.5 * 20)) / (1.5 * 20)  # a window of 20 s has not forgotten all
    assert fmean(per_window) == pytest.approx(20 * 20, rel=0.04)
    assert pvariance(per_window) / fmean(per_window) == pytest.approx(1 + (index - 1) * short, rel=0.35)


def test_diurnal_rates_follow_the_sine_from_trough_to_peak() -> None:  # dynamo#9410: static traffic only
    process = Diurnal(rate_per_s=50.0, period_s=100.0, depth=0.8)
    phases = [at / NS_PER_S % 100.0 for at in made(process, 50_000)]  # ten periods
    quarter = [sum(low <= phase < low + 25 for phase in phases) / 10 for low in (0, 25, 50, 75)]
    # Integrals of 50 (1 - 0.8 cos(2 pi t / 100)) over the quarters.
    expected = [1250 - 636.6, 1250 + 636.6, 1250 + 636.6, 1250 - 636.6]
    for got, due in zip(quarter, expected, strict=True):
        assert got == pytest.approx(due, abs=4 * (due / 10) ** 0.5)


def test_a_flat_diurnal_process_is_poisson() -> None:
    flat, plain = made(Diurnal(rate_per_s=5.0, period_s=7.0, depth=0.0), 500), made(Poisson(rate_per_s=5.0), 500)
    assert all(abs(one - other) <= 100 for one, other in zip(flat, plain, strict=True))  # ns: bisection's last bits


@settings(max_examples=30, deadline=None)
@given(
    process=st.one_of(
        st.builds(Poisson, rate_per_s=st.floats(0.01, 1e4)),
        st.builds(Gamma, rate_per_s=st.floats(0.01, 1e4), cv=st.floats(0.05, 15)),
        st.builds(OnOff, rate_per_s=st.floats(0.01, 1e4), on_s=st.floats(0.1, 50), idle_share=st.floats(0, 1)),
        st.builds(Diurnal, rate_per_s=st.floats(0.01, 1e4), period_s=st.floats(1, 1e5), depth=st.floats(0, 1)),
    ),
    seed=st.integers(0, 2**31),
)
def test_any_process_ascends_from_its_start_and_grows_at_the_end_only(process: Arrivals, seed: int) -> None:
    some = list(islice(times(process, seed, start_ns=77), 60))
    assert some == sorted(some)
    assert some[0] >= 77
    assert list(islice(times(process, seed, start_ns=77), 20)) == some[:20]


def test_poisson_gaps_are_exponential() -> None:  # SPEC J2
    between = gaps(list(poisson(50.0, 20_000, seed=1)))
    # For an exponential mean and deviation are equal; the standard error of 20,000 gaps is 0.7 %.
    assert fmean(between) == pytest.approx(NS_PER_S / 50, rel=0.03)
    assert pstdev(between) == pytest.approx(NS_PER_S / 50, rel=0.03)


def test_regular_gaps_are_equal() -> None:
    assert list(regular(4.0, 3, start_ns=5)) == [5 + NS_PER_S // 4 * k for k in (1, 2, 3)]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        list(poisson(rate, 1, seed=0))
    with pytest.raises(ConfigError, match="above 0"):
        list(regular(rate, 1))
