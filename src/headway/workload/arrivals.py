"""When requests arrive: open-loop processes as keyed draws, so that every process and order gives the same times.

Every process is endless and lazy: the first n times do not depend on how many are asked for. `rate_per_s` is always the
mean over long times, so that two shapes of one rate bring the same load.
"""

import math
from collections.abc import Iterator
from itertools import islice
from statistics import NormalDist
from typing import Annotated, Final, assert_never

import msgspec

from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S, Ns

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
CYCLE_ARRIVALS_MIN: Final = 1e-3  # each burst costs draws, with or without arrivals
_NORMAL: Final = NormalDist()
_TWO_PI: Final = 2 * math.pi


class _Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", kw_only=True):
    rate_per_s: Positive = 10.0  # mean over long times


class Poisson(_Process, frozen=True, tag="poisson"):
    """Independent arrivals: gaps are exponential, their coefficient of variation is 1."""


class Regular(_Process, frozen=True, tag="regular"):
    """Equal gaps."""


class Gamma(_Process, frozen=True, tag="gamma", kw_only=True):
    """Independent gamma gaps: burstier than Poisson above a `cv` of 1, smoother below."""

    cv: Annotated[float, msgspec.Meta(gt=0, le=30)] = 2.0  # of the gaps: deviation over mean


class OnOff(_Process, frozen=True, tag="on_off", kw_only=True):
    """Poisson bursts between idle times; burst and idle lengths are exponential."""

    on_s: Positive = 10.0  # mean length of a burst
    off_s: Positive = 30.0  # mean length of the time between bursts
    idle_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # rate between bursts over rate in one

    def __post_init__(self) -> None:
        arrivals = self.rate_per_s * (self.on_s + self.off_s)
        if arrivals < CYCLE_ARRIVALS_MIN:
            raise ConfigError(f"on_s + off_s bring {arrivals:g} arrivals, below {CYCLE_ARRIVALS_MIN}: use poisson")


class Diurnal(_Process, frozen=True, tag="diurnal", kw_only=True):
    """Poisson with a rate that swings as a sine; it begins in the trough, the peak is half a period later."""

    period_s: Positive = 86_400.0  # trough to trough
    depth: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8  # swing over mean: 1 is silent in the trough


Arrivals = Poisson | Regular | Gamma | OnOff | Diurnal


def times(arrivals: Arrivals, seed: int, key: str = "arrival", start_ns: Ns = 0) -> Iterator[Ns]:
    """Yield arrival times without end, ascending. `key` tells processes of one seed apart."""
    ns = NS_PER_S / arrivals.rate_per_s  # per arrival at the mean rate
    match arrivals:
        case Poisson():
            return (start_ns + round(at * ns) for at in _unit_poisson(seed, key))
        case Regular():
            return _regular(ns, start_ns)
        case Gamma():
            return (start_ns + round(at * ns) for at in _unit_gamma(arrivals.cv, seed, key))
        case OnOff():
            return _on_off(arrivals, seed, key, start_ns)
        case Diurnal():
            return _diurnal(arrivals, seed, key, start_ns)
        case _:
            assert_never(arrivals)


def poisson(rate_per_s: float, count: int, seed: int, start_ns: Ns = 0) -> Iterator[Ns]:
    """Yield `count` arrival times with exponential gaps. Raises ConfigError unless the rate is positive."""
    mean_ns = NS_PER_S / _positive(rate_per_s)
    at_ns = float(start_ns)
    for place in range(count):
        at_ns -= mean_ns * math.log(1.0 - draw_unit(seed, "arrival", 0, place))
        yield round(at_ns)


def regular(rate_per_s: float, count: int, start_ns: Ns = 0) -> Iterator[Ns]:
    """Yield `count` arrival times with equal gaps. Raises ConfigError unless the rate is positive."""
    yield from islice(_regular(NS_PER_S / _positive(rate_per_s), start_ns), count)


def _positive(rate_per_s: float) -> float:
    if not rate_per_s > 0:
        raise ConfigError(f"arrival rate {rate_per_s} per second must be above 0")
    return rate_per_s


def _regular(gap_ns: float, start_ns: Ns) -> Iterator[Ns]:
    place = 0
    while True:
        place += 1
        yield start_ns + round(gap_ns * place)


def _unit_poisson(seed: int, key: str) -> Iterator[float]:
    """A Poisson process of one arrival per unit of time."""
    at, place = 0.0, 0
    while True:
        at -= math.log(1.0 - draw_unit(seed, key, 0, place))
        place += 1
        yield at


def _unit_gamma(cv: float, seed: int, key: str) -> Iterator[float]:
    """A renewal process of gamma gaps of mean 1."""
    shape = 1.0 / cv**2
    at, place = 0.0, 0
    while True:
        at += gamma_variate(shape, seed, key, place) / shape
        place += 1
        yield at


def gamma_variate(shape: float, seed: int, key: str, place: int) -> float:
    """Return the gamma variate of scale 1 at a place (Marsaglia and Tsang 2000, rejection with keyed draws)."""
    boost, draw = 1.0, 0
    if shape < 1:
        boost = draw_unit(seed, key, place, draw) ** (1.0 / shape)
        shape, draw = shape + 1, 1
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = _NORMAL.inv_cdf(max(draw_unit(seed, key, place, draw), 1e-16))
        u = 1.0 - draw_unit(seed, key, place, draw + 1)
        draw += 2
        v = (1.0 + c * x) ** 3
        if v > 0 and math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
            return boost * d * v


def _on_off(process: OnOff, seed: int, key: str, start_ns: Ns) -> Iterator[Ns]:
    """Warps a Poisson process of unit rate by the rate of bursts and idle times, in turns, a burst first."""
    on_s, off_s, share = process.on_s, process.off_s, process.idle_share
    burst_per_s = process.rate_per_s * (on_s + off_s) / (on_s + off_s * share)
    unit = _unit_poisson(seed, key)
    due = next(unit)
    begun_s, done, turn = 0.0, 0.0, 0  # `done`: expected arrivals before the turn began
    while True:
        is_burst = turn % 2 == 0
        length_s = -(on_s if is_burst else off_s) * math.log(1.0 - draw_unit(seed, f"{key}/turn", 0, turn))
        per_s = burst_per_s * (1.0 if is_burst else share)
        end = done + per_s * length_s
        while due < end:
            yield start_ns + round((begun_s + (due - done) / per_s) * NS_PER_S)
            due = next(unit)
        begun_s, done, turn = begun_s + length_s, end, turn + 1


def _diurnal(process: Diurnal, seed: int, key: str, start_ns: Ns) -> Iterator[Ns]:
    """Warps a Poisson process of unit rate by the inverse of t - depth*P/2pi*sin(2pi*t/P), by bisection in a period."""
    depth, per_period = process.depth, process.rate_per_s * process.period_s
    for due in _unit_poisson(seed, key):
        periods, rest = divmod(due / per_period, 1.0)
        low, high = 0.0, 1.0
        for _ in range(52):  # bits of a double's mantissa
            middle = 0.5 * (low + high)
            if middle - depth / _TWO_PI * math.sin(_TWO_PI * middle) < rest:
                low = middle
            else:
                high = middle
        yield start_ns + round((periods + low) * process.period_s * NS_PER_S)
