"""Prices in the configuration, and in the file that it names."""

from pathlib import Path

import pytest

from headway.adapters.gateway.prices import Price
from headway.core.errors import ConfigError
from headway.live.config import Config, Host, gateway_settings, layers, resolve
from headway.live.config_prices import all_prices, check_sheet

FLUX = """
[[diffusion]]
name = "flux"
engine = "synthetic"
"""


def config(folder: Path, text: str) -> Config:
    (folder / "headway.toml").write_text("[model]\nreplicas = 0\n" + FLUX + text)
    return resolve(layers(folder / "headway.toml", {}, ()), Host(2)).config


def test_prices_of_the_configuration_and_of_the_file_reach_the_gateway(tmp_path: Path) -> None:
    # SPEC H6
    sheet = tmp_path / "prices.toml"
    sheet.write_text('[[prices]]\nmodel = "gone"\nretired = true\nimage_usd = 0.02\n')
    read = config(tmp_path, f'[server]\nprice_file = "{sheet}"\n[[prices]]\nmodel = "flux"\nimage_usd = 0.04\n')
    assert [(price.model, price.image_usd) for price in gateway_settings(read).prices] == [
        ("flux", 0.04),
        ("gone", 0.02),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[prices]]\nmodel = "flx"\nimage_usd = 1\n', "no such model; known are flux; .*retired = true"),
        ('[[prices]]\nmodel = "flux"\nimage_usd = -1\n', "image_usd"),
        ('[[prices]]\nmodel = "flux"\nimage_eur = 1\n', "image_eur"),
        ('[[prices]]\nmodel = "flux"\n', "names no price"),
    ],
)
def test_a_sheet_that_cannot_work_is_refused_at_load(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("[[prices", "is no TOML"),
        ("prices = 3", "list of tables"),
        ('[[prices]]\nmodel = "m"\nimage_usd = "much"', "image_usd"),
    ],
)
def test_a_price_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "prices.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"price_file = .*prices.toml'.*{words}"):
        all_prices((), str(path))


def test_models_of_upstreams_are_not_known_at_load() -> None:
    prices = (Price(model="theirs", output_million_usd=1.0),)
    check_sheet(prices, None)
    with pytest.raises(ConfigError, match="known are ours"):
        check_sheet(prices, ["ours"])
