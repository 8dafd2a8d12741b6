"""What a tenant's quota looks like from outside: OpenAI's `x-ratelimit-*` headers (SPEC A8)."""

from typing import Final

from headway.core.reports import RateLimits
from headway.core.units import NS_PER_MS, Ns

NAMES: Final = ("requests", "tokens")


def rate_headers(limits: RateLimits) -> list[tuple[bytes, bytes]]:
    """Return the headers of the limits that there are; none for a tenant without quota."""
    headers: list[tuple[bytes, bytes]] = []
    if limits.requests is None and limits.tokens is None:
        return headers
    for name, limit in zip(NAMES, (limits.requests, limits.tokens), strict=True):
        if limit is not None:
            headers += [
                (f"x-ratelimit-limit-{name}".encode(), str(limit.limit).encode()),
                (f"x-ratelimit-remaining-{name}".encode(), str(limit.remaining).encode()),
                (f"x-ratelimit-reset-{name}".encode(), duration(limit.reset_ns).encode()),
            ]
    return headers


def duration(ns: Ns) -> str:
    """`17ms`, `1.5s`, `6m0s`: the form that OpenAI writes and its clients parse. Rounded up: never too early."""
    ms = -(-ns // NS_PER_MS)
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
