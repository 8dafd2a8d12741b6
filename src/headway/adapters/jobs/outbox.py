"""The webhook outbox. A message is stored in the transaction that ends its job, so that none is lost or made up."""

import secrets

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.tables import hooks, jobs
from headway.core.jobs import HookRow
from headway.core.units import NS_PER_S, Ns


class Hook(msgspec.Struct, frozen=True):
    """What is sent, and where."""

    id: str
    job: str
    tenant: str
    url: str
    body: bytes


def store_hook(connection: Connection, job: str, now_ns: Ns) -> None:
    """A message that the job is over, where somebody wants to be told (the client's event shape)."""
    row = connection.execute(
        select(jobs.c.webhook_url, jobs.c.tenant, jobs.c.kind, jobs.c.state).where(jobs.c.id == job)
    ).one()
    if row.webhook_url is None:
        return
    event = f"evt_{secrets.token_hex(16)}"
    kind = f"{row.kind}.{'completed' if row.state == 'completed' else 'failed'}"
    body = msgspec.json.encode(
        {"id": event, "object": "event", "type": kind, "created_at": now_ns // NS_PER_S, "data": {"id": job}}
    )
    connection.execute(
        insert(hooks).values(
            id=event,
            job=job,
            tenant=row.tenant,
            url=row.webhook_url,
            body=body,
            state="waiting",
            attempt=0,
            stored_ns=now_ns,
            not_before_ns=now_ns,
            until_ns=0,
            reason="",
        )
    )


class Outbox:
    """What JobNode asks of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, limit: int, now_ns: Ns) -> tuple[HookRow, ...]:
        """The oldest that nobody is sending."""
        found = (
            select(hooks.c.id, hooks.c.attempt, hooks.c.not_before_ns, hooks.c.stored_ns)
            .where(hooks.c.state == "waiting", hooks.c.not_before_ns <= now_ns, hooks.c.until_ns < now_ns)
            .order_by(hooks.c.not_before_ns, hooks.c.id)
            .limit(limit)
        )
        rows = self._database.run(lambda c: c.execute(found).all())
        return tuple(HookRow(row.id, row.attempt, row.not_before_ns, row.stored_ns) for row in rows)

    def claim(self, hook: str, attempt: int, until_ns: Ns, now_ns: Ns) -> HookRow | None:
        """Take a message that nobody is sending."""
        taken = (
            update(hooks)
            .where(
                hooks.c.id == hook,
                hooks.c.attempt == attempt,
                hooks.c.state == "waiting",
                hooks.c.not_before_ns <= now_ns,
                hooks.c.until_ns < now_ns,
            )
            .values(attempt=hooks.c.attempt + 1, until_ns=until_ns)
            .returning(hooks.c.attempt, hooks.c.not_before_ns, hooks.c.stored_ns)
        )
        row = self._database.run(lambda c: c.execute(taken).one_or_none())
        return None if row is None else HookRow(hook, row.attempt, row.not_before_ns, row.stored_ns)

    def message(self, hook: str) -> Hook | None:
        """What is to be sent."""
        found = select(hooks.c.id, hooks.c.job, hooks.c.tenant, hooks.c.url, hooks.c.body).where(hooks.c.id == hook)
        row = self._database.run(lambda c: c.execute(found).one_or_none())
        return None if row is None else Hook(row.id, row.job, row.tenant, row.url, row.body)

    def postpone(self, hook: str, attempt: int, not_before_ns: Ns, reason: str) -> None:
        """Later."""
        self._set(hook, attempt, {"not_before_ns": not_before_ns, "until_ns": 0, "reason": reason})

    def close(self, hook: str, attempt: int, is_delivered: bool, reason: str) -> None:
        """It is over."""
        self._set(hook, attempt, {"state": "delivered" if is_delivered else "dead", "reason": reason})

    def _set(self, hook: str, attempt: int, values: dict[str, object]) -> None:
        same = (hooks.c.id == hook, hooks.c.attempt == attempt, hooks.c.state == "waiting")
        self._database.run(lambda c: c.execute(update(hooks).where(*same).values(values)))

    def sweep(self, before_ns: Ns) -> None:
        """Forget messages that are over and were stored before that."""
        old = (hooks.c.state != "waiting", hooks.c.stored_ns < before_ns)
        self._database.run(lambda c: c.execute(delete(hooks).where(*old)))
