"""Units of time. Inside Headway time is integer nanoseconds since run start; floats exist only at the edges."""

from typing import Final, TypeAlias

Ns: TypeAlias = int

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000


def ns_from_s(seconds: float) -> Ns:
    """Round seconds to the nearest nanosecond."""
    return round(seconds * NS_PER_S)


def ns_from_ms(ms: float) -> Ns:
    """Round milliseconds to the nearest nanosecond."""
    return round(ms * NS_PER_MS)


def s_from_ns(ns: Ns) -> float:
    """Seconds for reports and HTTP."""
    return ns / NS_PER_S


def ms_from_ns(ns: Ns) -> float:
    """Milliseconds for reports and HTTP."""
    return ns / NS_PER_MS
