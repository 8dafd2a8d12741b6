"""Prices of the configuration, and of the price sheet file that it names."""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from headway.adapters.gateway.prices import ANY, Price, check_prices
from headway.core.errors import ConfigError


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prices: tuple[Price, ...]


def all_prices(own: Sequence[Price], file: str | None) -> tuple[Price, ...]:
    """Those of the configuration, then those of the file. Raises ConfigError naming it."""
    if file is None:
        return tuple(own)
    path = Path(file).expanduser()
    try:
        found = msgspec.convert(tomllib.loads(path.read_text()), type=_File)
    except OSError as error:
        raise ConfigError(f"server.price_file = {file!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"server.price_file = {file!r} is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"server.price_file = {file!r}: {error}; it holds a list of tables [[prices]]") from None
    return (*own, *found.prices)


def check_sheet(prices: Sequence[Price], known: Iterable[str] | None) -> None:
    """Raise ConfigError for a sheet that cannot work. `known`: every model that is served; None: others may come."""
    check_prices(prices)
    names = None if known is None else sorted(known)
    for number, price in enumerate(prices):
        if names is None or price.retired or price.model == ANY or price.model in names:
            continue
        raise ConfigError(
            f"prices[{number}].model = {price.model!r}: no such model; known are {', '.join(names)}; one that is not "
            "served any more has retired = true"
        )
