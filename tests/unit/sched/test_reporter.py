"""What a replica learns about itself for its reports."""

import pytest

from headway.core.units import NS_PER_MS
from headway.sched.reporter import Rates


def test_the_rate_is_what_a_token_of_a_queue_meets_and_not_a_mean_over_steps() -> None:  # SPEC A5
    rates = Rates()
    for _ in range(5):
        rates.served(2000, 100 * NS_PER_MS)
    for _ in range(50):  # prompts that are cached but for their last tokens
        rates.served(10, 10 * NS_PER_MS)
    assert rates.prefill_tokens_per_s == pytest.approx(20_000, rel=0.02)


def test_the_rate_follows_a_replica_that_became_slower() -> None:  # SPEC A5
    rates = Rates()
    for took_ms in (100, 300):
        for _ in range(100):
            rates.served(2000, took_ms * NS_PER_MS)
    assert rates.prefill_tokens_per_s == pytest.approx(2000 / 0.3, rel=0.05)


def test_steps_that_serve_nothing_of_a_queue_slow_its_rate() -> None:
    rates = Rates()
    rates.served(0, 300 * NS_PER_MS)
    assert rates.prefill_tokens_per_s == 0.0
    rates.served(1000, 100 * NS_PER_MS)
    assert rates.prefill_tokens_per_s == pytest.approx(1000 / 0.4)
