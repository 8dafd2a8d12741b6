"""`GET /v1/usage` and `/v1/usage/export`: what was used per day, tenant and model, with its price (SPEC H6)."""

import base64
import binascii
import csv
import datetime as dt
import io
from collections.abc import Sequence
from typing import Final

import msgspec

from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import Meters, Place, Usage, UsageQuery
from headway.adapters.gateway.pictures.jobs import number_asked, owner
from headway.adapters.gateway.plain import JsonObject
from headway.adapters.gateway.prices import PriceSheet
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import RequestError
from headway.core.ids import TenantId

DAYS: Final = 30  # that an answer covers unless the query says otherwise
DAYS_MAX: Final = 366
ROWS: Final = 1000  # of a page
ROWS_MAX: Final = 10_000
NAME_CHARS_MAX: Final = 255
CSV: Final = b"text/csv; charset=utf-8"
JSON_LINES: Final = b"application/jsonl"
_NAMES: Final = ("first_day", "last_day", "tenant", "model", "after")  # and one more each
_COUNTS: Final = (
    "requests",
    "images",
    "frames",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "gpu_seconds",
)
COLUMNS: Final = ("day", "tenant", "model", *_COUNTS, "price_usd")


class UsageRoutes:
    """For the tenant, or for all of them to an admin."""

    def __init__(self, meters: Meters, sheet: PriceSheet) -> None:
        self._meters, self._sheet = meters, sheet

    async def page(self, exchange: Exchange, tenant: Tenant) -> JsonObject:
        """One page, and the sums of all pages. Raises RequestError."""
        query = _query(exchange, tenant, "limit")
        limit = number_asked(exchange, "limit", ROWS, 1, ROWS_MAX)
        found = await self._meters.usage(msgspec.structs.replace(query, limit=limit + 1))
        rows = found[:limit]
        sums = await self._meters.sums(query)
        total = {name: sum(getattr(one, name) for one in sums) for name in _COUNTS}
        price = sum(self._sheet.usd(one) for one in sums)
        return {
            "object": "list",
            "first_day": query.first_day,
            "last_day": query.last_day,
            "since": self._meters.since,
            "data": [self._row(one) for one in rows],
            "has_more": len(found) > limit,
            "next": _cursor(rows[-1]) if len(found) > limit else None,
            "total": {**total, "price_usd": price},
            "gpu_seconds": total["gpu_seconds"],
            "price_usd": price,
        }

    async def export(self, exchange: Exchange, tenant: Tenant) -> None:
        """Every row as CSV or JSON lines, as it is read. Raises RequestError."""
        shape = exchange.query.get("format", ["csv"])[-1]
        if shape not in ("csv", "jsonl"):
            raise invalid("format", f"`format` is {shape[:64]!r}; it must be csv or jsonl.")
        if "limit" in exchange.query:
            raise invalid("limit", "An export has every row: leave `limit` out.")
        query = msgspec.structs.replace(_query(exchange, tenant, "format"), limit=ROWS)
        render = _csv if shape == "csv" else _lines
        rows = await self._meters.usage(query)  # what fails before the first byte is answered as an error
        await exchange.begin(CSV if shape == "csv" else JSON_LINES)
        if shape == "csv":
            await exchange.write(render([dict(zip(COLUMNS, COLUMNS, strict=True))]))
        while rows:
            await exchange.write(render([self._row(one) for one in rows]))
            if len(rows) < ROWS:
                break
            rows = await self._meters.usage(msgspec.structs.replace(query, after=_place(rows[-1])))
        await exchange.finish(b"")

    def _row(self, one: Usage) -> JsonObject:
        named = {"day": one.day, "tenant": one.tenant, "model": one.model}
        counts = {name: getattr(one, name) for name in _COUNTS}
        return {**named, **counts, "price_usd": self._sheet.usd(one)}


def _query(exchange: Exchange, tenant: Tenant, own: str) -> UsageQuery:
    """`own`: the parameter that only this route has."""
    known = (*_NAMES, own)
    for name, values in exchange.query.items():
        if name not in known:
            raise RequestError(
                f"Unknown parameter `{name[:64]}`; known are {', '.join(known)}.",
                code="unknown_parameter",
                param=name[:64],
            )
        if len(values) > 1:
            raise invalid(name, f"`{name}` is given {len(values)} times.")
    today = dt.datetime.now(dt.UTC).date()
    last = _day(exchange, "last_day", today)
    first = _day(exchange, "first_day", dt.date.fromordinal(max(1, last.toordinal() - DAYS + 1)))
    if first > last:
        raise invalid("first_day", f"`first_day` is {first}, after `last_day`, {last}.")
    if (last - first).days >= DAYS_MAX:
        raise invalid("first_day", f"{first} to {last} are more than {DAYS_MAX} days.")
    return UsageQuery(
        tenant=_whose(exchange, tenant),
        first_day=first.isoformat(),
        last_day=last.isoformat(),
        model=_name(exchange, "model"),
        after=_after(exchange),
    )


def _whose(exchange: Exchange, tenant: Tenant) -> TenantId | None:
    """Others than its own are an admin's to ask for."""
    asked = _name(exchange, "tenant")
    if asked is None:
        return owner(tenant)
    if not tenant.admin and asked != tenant.id:
        raise RequestError("Only an admin key sees the usage of other tenants.", status=403, code="admin_only")
    return TenantId(asked)


def _name(exchange: Exchange, name: str) -> str | None:
    text: str | None = exchange.query.get(name, [None])[-1]
    if text is not None and not (0 < len(text) <= NAME_CHARS_MAX and text.isprintable()):
        raise invalid(name, f"`{name}` is {text[:64]!r}; it has 1 to {NAME_CHARS_MAX} printable characters.")
    return text


def _day(exchange: Exchange, name: str, default: dt.date) -> dt.date:
    text = exchange.query.get(name, [default.isoformat()])[-1]
    try:
        found = dt.date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.isoformat() != text:
        raise invalid(name, f"`{name}` is {text[:64]!r}; write a day as 2026-11-29.")
    return found


def _place(row: Usage) -> Place:
    return (row.day, row.tenant, row.model)


def _cursor(row: Usage) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_place(row))).decode()


def _after(exchange: Exchange) -> Place | None:
    text = exchange.query.get("after", [None])[-1]
    if text is None:
        return None
    try:
        found = msgspec.json.decode(base64.b64decode(text, altchars=b"-_", validate=True), type=Place)
        if all(part.isprintable() for part in found):
            return found
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        pass
    raise invalid("after", f"`after` is {text[:64]!r}; it is the `next` of the page before.")


def _lines(rows: Sequence[JsonObject]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _csv(rows: Sequence[JsonObject]) -> bytes:
    """RFC 4180."""
    text = io.StringIO(newline="")
    csv.DictWriter(text, COLUMNS).writerows(rows)
    return text.getvalue().encode()
