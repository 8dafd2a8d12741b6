"""The price sheet: what use costs, per model and day (SPEC H6)."""

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headway.adapters.gateway.job_ports import Usage
from headway.core.errors import ConfigError

ANY: Final = "*"
_MILLION: Final = 1e6

Usd = Annotated[float, Meta(ge=0, le=1e6)]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one model costs, from a day on: the sum of what is named. A model without an entry costs its device time."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]  # that runs; `*`: every model without an entry
    retired: bool = False  # no such model is served any more: it prices what was used
    from_day: str = ""  # first day (UTC) that it counts for, as 2026-12-01; empty: from the beginning
    gpu_second_usd: Usd | None = None  # per second and device
    request_usd: Usd | None = None  # per request or job that was answered
    image_usd: Usd | None = None  # per picture
    frame_usd: Usd | None = None  # per frame of a video
    prompt_million_usd: Usd | None = None  # per million prompt tokens
    cached_million_usd: Usd | None = None  # per million of those that a cache held; unset: as any prompt token
    output_million_usd: Usd | None = None  # per million generated tokens

    @property
    def is_empty(self) -> bool:
        """It names no price."""
        return all(getattr(self, name) is None for name in self.__struct_fields__ if name.endswith("_usd"))


class PriceSheet:
    """Prices by model and day."""

    def __init__(self, prices: Sequence[Price], usd_per_hour: float) -> None:
        """`usd_per_hour`: of device time, for models without an entry."""
        self._newest_first = sorted(prices, key=lambda price: price.from_day, reverse=True)
        self._usual = Price(model=ANY, gpu_second_usd=usd_per_hour / 3600)

    def of(self, model: str, day: str) -> Price:
        """The entry that counts; `day` as 2026-12-01."""
        for wanted in (model, ANY):
            for price in self._newest_first:
                if price.model == wanted and price.from_day <= day:
                    return price
        return self._usual

    def usd(self, used: Usage) -> float:
        """What that costs."""
        price = self.of(used.model, used.day)
        prompt = price.prompt_million_usd or 0.0
        cached = prompt if price.cached_million_usd is None else price.cached_million_usd
        tokens = (
            (used.prompt_tokens - used.cached_tokens) * prompt
            + used.cached_tokens * cached
            + used.output_tokens * (price.output_million_usd or 0.0)
        )
        return (
            used.gpu_seconds * (price.gpu_second_usd or 0.0)
            + used.requests * (price.request_usd or 0.0)
            + used.images * (price.image_usd or 0.0)
            + used.frames * (price.frame_usd or 0.0)
            + tokens / _MILLION
        )


def today() -> str:
    """The day (UTC) that use counts for now."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def check_prices(prices: Sequence[Price]) -> None:
    """Raise ConfigError for entries that say nothing, or two things."""
    seen: dict[tuple[str, str], int] = {}
    for number, price in enumerate(prices):
        key = f"prices[{number}]"
        if price.is_empty:
            raise ConfigError(f"{key} names no price for {price.model!r}; gpu_second_usd = 0 makes it free")
        if price.from_day and not _is_day(price.from_day):
            raise ConfigError(f"{key}.from_day = {price.from_day!r}: write a day as 2026-12-01")
        before = seen.setdefault((price.model, price.from_day), number)
        if before != number:
            when = f"from {price.from_day}" if price.from_day else "from the beginning"
            raise ConfigError(f"prices[{before}] and {key} are both for {price.model!r} {when}; leave one out")


def _is_day(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
