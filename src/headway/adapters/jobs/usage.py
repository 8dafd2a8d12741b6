"""Metering rows: what each tenant used of each model per day (UTC)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from headway.adapters.gateway.job_ports import Usage
from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.tables import usage
from headway.core.ids import ModelId, TenantId
from headway.core.units import NS_PER_S, Ns, s_from_ns


def day_of(now_ns: Ns) -> str:
    """`2026-11-29`."""
    return datetime.fromtimestamp(now_ns // NS_PER_S, UTC).date().isoformat()


def add_usage(connection: Connection, now_ns: Ns, tenant: str, model: str, counts: Mapping[str, int]) -> None:
    """Add `device_ns`, `images`, `frames`, `requests` to today, in the caller's transaction."""
    new = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    row = new(usage).values(day=day_of(now_ns), tenant=tenant, model=model, **counts)
    more = {name: usage.c[name] + value for name, value in counts.items()}
    connection.execute(row.on_conflict_do_update(index_elements=["day", "tenant", "model"], set_=more))


class UsageTable:
    """The meters of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, now_ns: Ns, tenant: str, model: str, counts: Mapping[str, int]) -> None:
        """Add to today."""
        self._database.run(lambda c: add_usage(c, now_ns, tenant, model, counts))

    def between(self, tenant: str | None, first_day: str, last_day: str) -> Sequence[Usage]:
        """By day, tenant and model."""
        wanted = select(usage).where(usage.c.day >= first_day, usage.c.day <= last_day)
        if tenant is not None:
            wanted = wanted.where(usage.c.tenant == tenant)
        rows = self._database.run(
            lambda c: c.execute(wanted.order_by(usage.c.day, usage.c.tenant, usage.c.model)).all()
        )
        return [
            Usage(
                TenantId(row.tenant),
                ModelId(row.model),
                row.day,
                s_from_ns(row.device_ns),
                row.images,
                row.frames,
                row.requests,
            )
            for row in rows
        ]
