"""`GET /v1/usage`: device time, pictures and frames per day, tenant and model, with their price (SPEC H6)."""

import datetime as dt
from typing import Final

from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import Meters
from headway.adapters.gateway.pictures.jobs import owner
from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.tenants import Tenant

DAYS: Final = 30  # that an answer covers unless the query says otherwise
DAYS_MAX: Final = 366


async def usage(exchange: Exchange, tenant: Tenant, meters: Meters, usd_per_hour: float) -> JsonObject:
    """Answer for the tenant, or for all of them to an admin. Raises RequestError for days that are none."""
    today = dt.datetime.now(dt.UTC).date()
    last = _day(exchange, "last_day", today)
    first = _day(exchange, "first_day", last - dt.timedelta(days=DAYS - 1))
    if first > last:
        raise invalid("first_day", f"`first_day` is {first}, after `last_day`, {last}.")
    if (last - first).days >= DAYS_MAX:
        raise invalid("first_day", f"{first} to {last} are more than {DAYS_MAX} days.")
    found = await meters.usage(owner(tenant), first.isoformat(), last.isoformat())
    data = [
        {
            "tenant": one.tenant,
            "model": one.model,
            "day": one.day,
            "requests": one.requests,
            "images": one.images,
            "frames": one.frames,
            "gpu_seconds": one.gpu_seconds,
            "price_usd": one.gpu_seconds * usd_per_hour / 3600,
        }
        for one in found
    ]
    spent = sum(one.gpu_seconds for one in found)
    return {
        "object": "list",
        "first_day": first.isoformat(),
        "last_day": last.isoformat(),
        "data": data,
        "gpu_seconds": spent,
        "price_usd": spent * usd_per_hour / 3600,
    }


def _day(exchange: Exchange, name: str, default: dt.date) -> dt.date:
    text = exchange.query.get(name, [default.isoformat()])[-1]
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise invalid(name, f"`{name}` is {text[:64]!r}; write a day as 2026-11-29.") from None
