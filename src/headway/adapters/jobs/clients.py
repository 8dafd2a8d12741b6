"""What clients ask of the job table: store, look, page, cancel, pause, retry, reorder, delete. One transaction each.

`tenant` None sees every tenant's.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, case, delete, func, insert, or_, select

from headway.adapters.gateway.job_ports import JobQuery, ran
from headway.adapters.gateway.tally import day_of
from headway.adapters.jobs.answers import KeyTaken, bind_job, held_job
from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.holds import is_held
from headway.adapters.jobs.outbox import store_hook
from headway.adapters.jobs.outputs import StoredOutput, put_outputs
from headway.adapters.jobs.places import Taken, change, find_job, no_job, of_tenant
from headway.adapters.jobs.records import JobRecord, NewRecord, less_of, record, work_left_ns
from headway.adapters.jobs.rows import NODE_COLUMNS, is_open, job_row
from headway.adapters.jobs.table import Retention
from headway.adapters.jobs.tables import inputs, jobs, outputs
from headway.adapters.jobs.usage import add_spent, add_usage
from headway.core.errors import CapacityError, RequestError
from headway.core.ids import ModelId
from headway.core.jobs import JobRow
from headway.core.units import Ns


class ClientTable:
    """The table as the gateway's clients use it."""

    def __init__(self, database: Database, retention: Retention, queued_max: int) -> None:
        self._database, self._retention, self._queued_max = database, retention, queued_max

    def insert(self, new: NewRecord, now_ns: Ns) -> tuple[JobRecord, JobRow | None]:
        """Store a job; the row is None where the idempotency key had made one before. Raises RequestError 409 for the
        key with another body, CapacityError where too many wait."""

        def work(connection: Connection) -> tuple[JobRecord, JobRow | None]:
            if new.key is not None:
                before = held_job(connection, new.tenant, new.key, now_ns)
                if before is not None:
                    found = find_job(connection, before, None)
                    if found is None:
                        raise RequestError(
                            f"Idempotency-Key {new.key.key!r} made job {before}, which is deleted; use a new key",
                            status=409,
                            code="idempotency_conflict",
                        )
                    return found, None
            waiting = select(func.count()).select_from(jobs).where(is_open())
            if connection.execute(waiting).scalar_one() >= self._queued_max:
                raise CapacityError(
                    f"{self._queued_max} jobs wait or run already (jobs.queued_max); send it later",
                    retry_after_ms=10_000,
                )
            _insert_job(connection, new, now_ns, {"state": "queued"})
            if new.key is not None:
                bind_job(connection, new, now_ns + self._retention.answers_ns)
            row = connection.execute(select(*NODE_COLUMNS).where(jobs.c.id == new.id)).one()
            return self._must(connection, new.id), job_row(row)

        try:
            return self._database.run(work)
        except KeyTaken:
            return self._database.run(work)

    def insert_completed(self, new: NewRecord, made: Sequence[StoredOutput], device_ns: Ns, now_ns: Ns) -> JobRecord:
        """A synchronous answer whose pictures are kept, metered in the same transaction."""
        over = {
            "state": "completed",
            "ended_ns": now_ns,
            "expires_ns": now_ns + self._retention.objects_ns,
            "device_ns": device_ns,
            "has_begun": True,
            "done": new.steps,
        }

        def work(connection: Connection) -> JobRecord:
            _insert_job(connection, new, now_ns, over)
            put_outputs(connection, new.id, made)
            counts = {"device_ns": device_ns, "images": len(made), "frames": 0, "requests": 1}
            add_usage(connection, day_of(now_ns), new.tenant, ran(ModelId(new.model), less_of(new.degraded)), counts)
            return self._must(connection, new.id)

        return self._database.run(work)

    def find(self, job: str, tenant: str | None) -> JobRecord | None:
        """One job."""
        return self._database.run(lambda c: find_job(c, job, tenant))

    def request(self, job: str, tenant: str | None) -> bytes | None:
        """As it was stored."""
        wanted = select(inputs.c.body).join_from(inputs, jobs).where(jobs.c.id == job, *of_tenant(tenant))
        return self._database.run(lambda c: c.execute(wanted).scalar_one_or_none())

    def _must(self, connection: Connection, job: str) -> JobRecord:
        found = find_job(connection, job, None)
        if found is None:
            raise RequestError(f"job {job} is deleted", status=404, code="not_found")
        return found

    def page(self, query: JobQuery) -> tuple[list[JobRecord], bool]:
        """By creation, then id. Raises RequestError 404 for an unknown `after`."""
        age = (jobs.c.stored_ns, jobs.c.id)
        is_up = query.order == "asc"
        wanted = select(jobs, is_held().label("is_held")).where(jobs.c.kind == query.kind, *of_tenant(query.tenant))

        def work(connection: Connection) -> tuple[list[JobRecord], bool]:
            found = wanted
            if query.after is not None:
                last = connection.execute(
                    select(*age).where(jobs.c.id == query.after, *of_tenant(query.tenant))
                ).one_or_none()
                if last is None:
                    raise no_job("after", query.after)
                same, other = jobs.c.stored_ns == last.stored_ns, jobs.c.stored_ns > last.stored_ns
                if not is_up:
                    other = jobs.c.stored_ns < last.stored_ns
                beyond = jobs.c.id > last.id if is_up else jobs.c.id < last.id
                found = found.where(or_(other, same & beyond))
            order = age if is_up else tuple(column.desc() for column in age)
            rows = connection.execute(found.order_by(*order).limit(query.limit + 1)).all()
            kept = rows[: query.limit]
            made = connection.execute(select(outputs).where(outputs.c.job.in_([row.id for row in kept]))).all()
            return [record(row, [o for o in made if o.job == row.id]) for row in kept], len(rows) > query.limit

        return self._database.run(work)

    def ahead_ns(self, job: JobRecord) -> Ns:
        """Estimated device time of other jobs that come before this one, less what they have done: what runs, then what
        a gateway has claimed, then the line, each by urgency, position and id."""
        left = jobs.c.estimate_ns * (jobs.c.steps - jobs.c.done) / jobs.c.steps
        stage = case((jobs.c.owner.is_(None), 2), (jobs.c.has_begun, 0), else_=1)
        own = (0 if job.has_begun else 1) if job.is_claimed else 2
        same_place = (jobs.c.position == job.position) & (jobs.c.id < job.id)
        sooner = (jobs.c.urgency == job.urgency) & or_(jobs.c.position < job.position, same_place)
        before = or_(stage < own, (stage == own) & or_(jobs.c.urgency > job.urgency, sooner))
        ahead = (is_open(), ~is_held(), jobs.c.is_paused.is_(False), jobs.c.id != job.id, before)
        whole = select(func.sum(left)).where(*ahead, jobs.c.degraded.is_(None))
        columns = (jobs.c.estimate_ns, jobs.c.steps, jobs.c.done, jobs.c.degraded)
        less = select(*columns).where(*ahead, jobs.c.degraded.is_not(None))  # begun ones alone: few

        def work(connection: Connection) -> Ns:
            total = round(connection.execute(whole).scalar() or 0)
            return total + sum(work_left_ns(*row) for row in connection.execute(less))

        return self._database.run(work)

    def cancel(self, job: str, tenant: str | None, now_ns: Ns) -> Taken | None:
        """End an open one, whoever runs it (InvokeAI#6049: by id and state, so never another one). Its checkpoints
        are metered; who runs it adds the rest (`UsageTable.spent`)."""
        values = {
            "state": "cancelled",
            "owner": None,
            "error_code": "cancelled",
            "error_message": "it was cancelled",
            "ended_ns": now_ns,
            "expires_ns": now_ns + self._retention.objects_ns,
        }

        def work(connection: Connection) -> Taken | None:
            found = change(connection, job, tenant, [is_open()], values)
            if found is not None and found.row is not None:
                row = found.row
                model = ran(row.model, less_of(found.record.degraded))
                add_spent(connection, day_of(now_ns), row.tenant, model, row.device_ns)
                store_hook(connection, job, now_ns)
            return found

        return self._database.run(work)

    def delete(self, job: str, tenant: str | None) -> Taken | None:
        """Remove row, request and outputs' rows; the objects are the caller's to delete."""

        def work(connection: Connection) -> Taken | None:
            found = find_job(connection, job, tenant)
            if found is None:
                return None
            connection.execute(delete(jobs).where(jobs.c.id == job))
            return Taken(found, found.attempt)

        return self._database.run(work)

    def expired(self, now_ns: Ns, limit: int) -> list[tuple[str, str]]:
        """Tenant and id of jobs whose time is over, oldest first."""
        old = select(jobs.c.tenant, jobs.c.id).where(jobs.c.expires_ns <= now_ns)
        rows = self._database.run(lambda c: c.execute(old.order_by(jobs.c.expires_ns).limit(limit)).all())
        return [(row.tenant, row.id) for row in rows]

    def states(self) -> list[tuple[str, int]]:
        """How many jobs are in each state."""
        counted = select(jobs.c.state, func.count()).group_by(jobs.c.state).order_by(jobs.c.state)
        return [(row[0], row[1]) for row in self._database.run(lambda c: c.execute(counted).all())]


def _insert_job(connection: Connection, new: NewRecord, now_ns: Ns, values: dict[str, object]) -> None:
    zeros = ("not_before_ns", "attempt", "failures", "done", "begun", "device_ns", "until_ns", "restarts")
    first: dict[str, object] = {
        "id": new.id,
        "kind": new.kind,
        "tenant": new.tenant,
        "model": new.model,
        "urgency": new.urgency,
        "position": now_ns,
        "stored_ns": now_ns,
        "steps": new.steps,
        "estimate_ns": new.estimate_ns,
        "echo": new.echo,
        "webhook_url": new.webhook_url,
        "degraded": new.degraded,
        **dict.fromkeys(zeros, 0),
        **dict.fromkeys(("is_paused", "has_begun"), False),
    }
    connection.execute(insert(jobs).values({**first, **values}))
    connection.execute(insert(inputs).values(job=new.id, body=new.body))
