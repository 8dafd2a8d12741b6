"""When requests arrive: open-loop processes as keyed draws, so that every process and order gives the same times."""

import math
from collections.abc import Iterator

from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S, Ns


def poisson(rate_per_s: float, count: int, seed: int, start_ns: Ns = 0) -> Iterator[Ns]:
    """Yield `count` arrival times with exponential gaps. Raises ConfigError unless the rate is positive."""
    mean_ns = NS_PER_S / _positive(rate_per_s)
    at_ns = float(start_ns)
    for place in range(count):
        at_ns -= mean_ns * math.log(1.0 - draw_unit(seed, "arrival", 0, place))
        yield round(at_ns)


def regular(rate_per_s: float, count: int, start_ns: Ns = 0) -> Iterator[Ns]:
    """Yield `count` arrival times with equal gaps. Raises ConfigError unless the rate is positive."""
    gap_ns = NS_PER_S / _positive(rate_per_s)
    for place in range(count):
        yield start_ns + round(gap_ns * (place + 1))


def _positive(rate_per_s: float) -> float:
    if not rate_per_s > 0:
        raise ConfigError(f"arrival rate {rate_per_s} per second must be above 0")
    return rate_per_s
