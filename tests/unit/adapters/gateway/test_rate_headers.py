import pytest

from headway.adapters.gateway.rate_headers import duration, rate_headers
from headway.core.reports import RateLimit, RateLimits


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0ms"),
        (16_000_001, "17ms"),
        (999_000_001, "1s"),
        (1_500_000_000, "1.5s"),
        (360_000_000_000, "6m0s"),
        (61_250_000_000, "1m1.25s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_only_limits_that_there_are_are_told() -> None:
    # SPEC A8
    assert rate_headers(RateLimits()) == []
    assert rate_headers(RateLimits(tokens=RateLimit(100, 40, 1_000_000))) == [
        (b"x-ratelimit-limit-tokens", b"100"),
        (b"x-ratelimit-remaining-tokens", b"40"),
        (b"x-ratelimit-reset-tokens", b"1ms"),
    ]
