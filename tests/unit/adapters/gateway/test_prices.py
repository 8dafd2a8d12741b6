"""The price sheet: which entry counts, and what use costs by it (SPEC H6)."""

import msgspec
import pytest

from headway.adapters.gateway.job_ports import Usage
from headway.adapters.gateway.prices import Price, PriceSheet, check_prices
from headway.core.errors import ConfigError
from headway.core.ids import ModelId, TenantId


def used(model: str, day: str = "2026-11-29", **counts: float) -> Usage:
    return msgspec.structs.replace(Usage(TenantId("t"), ModelId(model), day), **counts)


def test_a_model_without_an_entry_costs_its_device_time() -> None:
    # SPEC H6
    sheet = PriceSheet((Price(model="flux", image_usd=0.04),), usd_per_hour=3.6)
    assert sheet.usd(used("wan", gpu_seconds=500.0, images=3)) == pytest.approx(0.5)
    assert sheet.usd(used("flux", gpu_seconds=500.0, images=3)) == pytest.approx(0.12)


def test_everything_that_an_entry_names_is_added_up() -> None:
    # SPEC H6
    price = Price(
        model="m",
        gpu_second_usd=0.001,
        request_usd=0.01,
        image_usd=0.1,
        frame_usd=0.002,
        prompt_million_usd=1.0,
        cached_million_usd=0.1,
        output_million_usd=4.0,
    )
    use = used("m", gpu_seconds=10.0, requests=2, images=3, frames=8, prompt_tokens=10**6, cached_tokens=4 * 10**5)
    spent = PriceSheet((price,), 1.0).usd(msgspec.structs.replace(use, output_tokens=5 * 10**5))
    assert spent == pytest.approx(0.01 + 0.02 + 0.3 + 0.016 + 0.6 + 0.04 + 2.0)


def test_cached_tokens_cost_what_others_do_where_nothing_is_said() -> None:
    sheet = PriceSheet((Price(model="*", prompt_million_usd=2.0),), 1.0)
    assert sheet.usd(used("any", prompt_tokens=10**6, cached_tokens=10**6)) == pytest.approx(2.0)


def test_the_newest_entry_of_the_day_counts_and_a_models_own_before_the_usual_one() -> None:
    prices = (
        Price(model="*", from_day="2026-12-05", request_usd=9.0),
        Price(model="m", request_usd=1.0),
        Price(model="m", from_day="2026-12-01", request_usd=2.0),
    )
    sheet = PriceSheet(prices, 0.0)
    days = ("2026-11-30", "2026-12-01", "2026-12-06")
    assert [sheet.usd(used("m", day, requests=1)) for day in days] == [1.0, 2.0, 2.0]
    assert [sheet.usd(used("n", day, requests=1)) for day in days] == [0.0, 0.0, 9.0]


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ((Price(model="m"),), r"prices\[0\] names no price for 'm'; gpu_second_usd = 0 makes it free"),
        ((Price(model="m", from_day="1.12.2026", image_usd=1),), r"prices\[0\].from_day = '1.12.2026'"),
        ((Price(model="m", from_day="20261201", image_usd=1),), "write a day as 2026-12-01"),
        ((Price(model="m", image_usd=1), Price(model="m", frame_usd=1)), r"prices\[0\] and prices\[1\] are both"),
    ],
)
def test_what_says_nothing_or_two_things_is_refused(prices: tuple[Price, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_prices(prices)


def test_a_free_model_is_free() -> None:
    check_prices((Price(model="m", gpu_second_usd=0.0),))
    assert PriceSheet((Price(model="m", gpu_second_usd=0.0),), 5.0).usd(used("m", gpu_seconds=9.0)) == 0.0
