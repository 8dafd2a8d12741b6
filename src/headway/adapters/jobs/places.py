"""What clients do to their jobs' place and state: pause, resume, retry, reorder. All are conditional updates."""

from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy import Connection, and_, case, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.holds import is_held
from headway.adapters.jobs.records import JobRecord, record
from headway.adapters.jobs.rows import NODE_COLUMNS, is_open, job_row, waiting_state
from headway.adapters.jobs.tables import jobs, outputs
from headway.core.errors import RequestError
from headway.core.jobs import OVER, WAITING, JobRow
from headway.core.units import Ns


class Taken(msgspec.Struct, frozen=True):
    """A row after a client's write. `attempt`: the one that lost it; None: nobody had it."""

    record: JobRecord
    attempt: int | None = None
    row: JobRow | None = None  # it waits, and may be claimed


def of_tenant(tenant: str | None) -> list[ColumnElement[bool]]:
    """The condition that it may see the row."""
    return [] if tenant is None else [jobs.c.tenant == tenant]


def no_job(param: str, job: str) -> RequestError:
    """What is answered where a parameter names a job that is not there."""
    return RequestError(
        f"`{param}` is {job[:64]!r}: there is no such job.", status=404, code="job_not_found", param=param
    )


def find_job(connection: Connection, job: str, tenant: str | None) -> JobRecord | None:
    """One job with its outputs."""
    wanted = select(jobs, is_held().label("is_held")).where(jobs.c.id == job, *of_tenant(tenant))
    row = connection.execute(wanted).one_or_none()
    if row is None:
        return None
    made = connection.execute(select(outputs).where(outputs.c.job == job)).all()
    return record(row, made)


def change(
    connection: Connection,
    job: str,
    tenant: str | None,
    where: Iterable[ColumnElement[bool]],
    values: Mapping[str, object],
) -> Taken | None:
    """A conditional update. `attempt` tells that it was done."""
    changed = update(jobs).where(jobs.c.id == job, *of_tenant(tenant), *where).values(dict(values))
    row = connection.execute(changed.returning(*NODE_COLUMNS)).one_or_none()
    found = find_job(connection, job, tenant)
    if found is None:
        return None
    if row is None:
        return Taken(found)
    node = job_row(row)
    return Taken(found, node.attempt, node)


def _not_over(found: Taken | None, what: str) -> Taken | None:
    if found is not None and found.record.state in OVER:
        raise RequestError(
            f"job {found.record.id} is {found.record.state} and cannot be {what}", status=409, code="invalid_state"
        )
    return found


class Places:
    """The line as clients change it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self, job: str, tenant: str | None, now_ns: Ns) -> Taken | None:
        """Hold it. Who runs it keeps the row until it is saved. Raises RequestError 409 where it is over."""
        runs = and_(jobs.c.owner.is_not(None), jobs.c.until_ns >= now_ns)
        values = {
            "is_paused": True,
            "owner": case((runs, jobs.c.owner), else_=None),
            "state": case((runs, jobs.c.state), else_=waiting_state()),
        }
        return self._database.run(lambda c: _not_over(change(c, job, tenant, [is_open()], values), "paused"))

    def resume(self, job: str, tenant: str | None) -> Taken | None:
        """Let it go on. Raises RequestError 409 where it is over."""
        where = [is_open(), jobs.c.is_paused.is_(True)]
        return self._database.run(lambda c: _not_over(change(c, job, tenant, where, {"is_paused": False}), "resumed"))

    def retry(self, job: str, tenant: str | None, now_ns: Ns) -> Taken | None:
        """Once more from the start, in a new place. Raises RequestError 409 where it has not failed."""
        where = [jobs.c.state.in_(sorted(OVER - {"completed"}))]
        values: dict[str, object] = {
            "state": "queued",
            "position": now_ns,
            "stored_ns": now_ns,
            "not_before_ns": 0,
            "failures": 0,
            "counted": ",",
            "done": 0,
            "begun": 0,
            "device_ns": 0,
            "restarts": 0,
            "has_begun": False,
            "is_paused": False,
            **dict.fromkeys(("checkpoint", "error_code", "error_message", "ended_ns", "expires_ns", "restart_reason")),
        }
        found = self._database.run(lambda c: change(c, job, tenant, where, values))
        if found is not None and found.row is None:
            raise RequestError(
                f"job {job} is {found.record.state}, only a failed one is retried", status=409, code="invalid_state"
            )
        return found

    def reorder(self, job: str, tenant: str | None, before: str) -> Taken | None:
        """Put it between `before` and the one that comes before that. Raises RequestError 409 where one of them does
        not wait, or where there is no place between the two."""

        def work(connection: Connection) -> Taken | None:
            one, other = find_job(connection, job, tenant), find_job(connection, before, tenant)
            if one is None:
                return None
            if other is None or other.tenant != one.tenant:
                raise no_job("before", before)
            if job == before:
                raise RequestError(f"before: job {job} cannot go before itself", code="invalid_value", param="before")
            for found in (one, other):
                if found.state not in WAITING or found.is_claimed:
                    raise RequestError(
                        f"job {found.id} is {found.state} and not in the line any more",
                        status=409,
                        code="invalid_state",
                    )
            above = select(func.max(jobs.c.position)).where(
                is_open(), jobs.c.position < other.position, jobs.c.id != job
            )
            highest = connection.execute(above).scalar() or 0
            place = (highest + other.position) // 2
            if place == highest:
                raise RequestError(
                    f"there is no place left before job {before}; choose another one", status=409, code="invalid_state"
                )
            where = [jobs.c.state.in_(sorted(WAITING)), jobs.c.owner.is_(None)]
            return change(connection, job, tenant, where, {"position": place, "urgency": other.urgency})

        return self._database.run(work)
