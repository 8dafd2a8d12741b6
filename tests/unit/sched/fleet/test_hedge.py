import pytest

from headway.core.errors import ConfigError
from headway.core.units import NS_PER_MS
from headway.sched.fleet.hedge import HedgeParams, Hedging


def test_a_fixed_delay_holds_from_the_first_request() -> None:
    assert Hedging(HedgeParams(after_ms=80)).delay_ns(10) == 80 * NS_PER_MS


def test_a_quantile_follows_the_latest_first_tokens() -> None:
    hedging = Hedging(HedgeParams(quantile=0.9))
    for number in range(1, 32):
        hedging.learned(number)
    assert hedging.delay_ns(10) is None  # too few to say
    for number in range(32, 101):
        hedging.learned(number)
    assert hedging.delay_ns(10) == 91
    for _ in range(256):
        hedging.learned(5)
    assert hedging.delay_ns(10) == 5  # the others are forgotten


def test_a_longer_prompt_is_never_hedged() -> None:
    hedging = Hedging(HedgeParams(after_ms=0, prompt_tokens_max=100))
    assert (hedging.delay_ns(100), hedging.delay_ns(101)) == (0, None)


def test_hedges_are_a_share_of_what_is_sent() -> None:
    hedging, taken = Hedging(HedgeParams(after_ms=0, share_max=0.05)), 0
    for _ in range(1000):
        hedging.sent()
        taken += hedging.take()
    assert taken == 51  # and the one that a start allows


def test_a_quiet_time_saves_a_few_only() -> None:
    hedging = Hedging(HedgeParams(after_ms=0, share_max=1))
    for _ in range(1000):
        hedging.sent()
    assert sum(hedging.take() for _ in range(100)) == 10


@pytest.mark.parametrize("fields", [{}, {"after_ms": 1.0, "quantile": 0.5}])
def test_exactly_one_kind_of_delay_is_asked_for(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"needs one of hedge\.after_ms and hedge\.quantile"):
        HedgeParams(**fields)
