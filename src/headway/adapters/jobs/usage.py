"""Metering rows: what each tenant used of each model per day (UTC)."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from sqlalchemy import Connection, func, literal, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import ColumnElement

from headway.adapters.gateway.job_ports import Place, Usage, UsageQuery
from headway.adapters.gateway.tally import COUNTED, day_of, used
from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.tables import jobs, usage
from headway.core.ids import ModelId
from headway.core.jobs import JobRow
from headway.core.units import Ns


def add_usage(connection: Connection, day: str, tenant: str, model: str, counts: Mapping[str, int]) -> None:
    """Add `device_ns`, `images`, `frames`, `requests` and, of text, tokens to that day, in the caller's transaction."""
    new = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    row = new(usage).values(day=day, tenant=tenant, model=model, **counts)
    more = {name: usage.c[name] + value for name, value in counts.items()}
    connection.execute(row.on_conflict_do_update(index_elements=["day", "tenant", "model"], set_=more))


def add_spent(connection: Connection, day: str, tenant: str, model: str, device_ns: int) -> None:
    """Add the device time of what came to no result."""
    if device_ns:
        counts = {"device_ns": device_ns, "images": 0, "frames": 0, "requests": 0}
        add_usage(connection, day, tenant, model, counts)


class Spent(msgspec.Struct, frozen=True):
    """What an attempt took that came to no result. `row`: as it was claimed."""

    row: JobRow
    model: ModelId  # that ran
    device_ns: Ns
    saved_ns: Ns  # of that, what went into the row with checkpoints


class UsageTable:
    """The meters of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_all(self, counted: Mapping[Place, Mapping[str, int]]) -> None:
        """Add to days, tenants and models: all of it or nothing."""

        def work(connection: Connection) -> None:
            for (day, tenant, model), counts in counted.items():
                add_usage(connection, day, tenant, model, counts)

        self._database.run(work)

    def spent(self, spent: Spent, now_ns: Ns) -> None:
        """Meter what an attempt took that its client cancelled while it ran, less what its row had of it by then: the
        cancel metered that. Asked again, it adds nothing, unless the job is deleted or retried."""
        found = (
            select(jobs.c.state, jobs.c.attempt, jobs.c.device_ns, jobs.c.stored_ns)
            .where(jobs.c.id == spent.row.job)
            .with_for_update()
        )
        told = update(jobs).where(jobs.c.id == spent.row.job).values(device_ns=spent.row.device_ns + spent.device_ns)

        def work(connection: Connection) -> None:
            row = connection.execute(found).one_or_none()
            is_gone = row is None or row.stored_ns != spent.row.stored_ns  # retried, which begins a new life
            if row is None or is_gone:
                more_ns = spent.device_ns - spent.saved_ns
            elif (row.state, row.attempt) == ("cancelled", spent.row.attempt):
                more_ns = spent.row.device_ns + spent.device_ns - row.device_ns
            else:
                return  # it goes on somewhere, or was metered with its end
            if more_ns > 0:
                add_spent(connection, day_of(now_ns), spent.row.tenant, spent.model, more_ns)
                if not is_gone:
                    connection.execute(told)

        self._database.run(work)

    def rows(self, query: UsageQuery) -> Sequence[Usage]:
        """By day, tenant and model."""
        places = (usage.c.day, usage.c.tenant, usage.c.model)
        wanted = select(usage).where(*_asked(query)).order_by(*places)
        if query.after is not None:
            wanted = wanted.where(tuple_(*places) > tuple_(*(literal(part) for part in query.after)))
        if query.limit is not None:
            wanted = wanted.limit(query.limit)
        found = self._database.run(lambda c: c.execute(wanted).all())
        return [_usage(row.tenant, row) for row in found]

    def sums(self, query: UsageQuery) -> Sequence[Usage]:
        """By day and model."""
        added = [func.sum(usage.c[name]).label(name) for name in COUNTED]
        wanted = select(usage.c.day, usage.c.model, *added).where(*_asked(query)).group_by(usage.c.day, usage.c.model)
        found = self._database.run(lambda c: c.execute(wanted.order_by(usage.c.day, usage.c.model)).all())
        return [_usage("", row) for row in found]


def _asked(query: UsageQuery) -> list[ColumnElement[bool]]:
    found = [usage.c.day >= query.first_day, usage.c.day <= query.last_day]
    if query.tenant is not None:
        found.append(usage.c.tenant == query.tenant)
    if query.model is not None:
        found.append(usage.c.model == query.model)
    return found


class _Row(Protocol):
    """Of `usage`, or a sum of some."""

    day: str
    model: str
    device_ns: int
    images: int
    frames: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def _usage(tenant: str, row: _Row) -> Usage:
    counts = {name: int(getattr(row, name)) for name in COUNTED}  # PostgreSQL adds up as decimals
    return used((row.day, tenant, row.model), counts)
