"""What JobNode asks of the table, as conditional updates: a write of an older attempt or another owner changes nothing.

Every method is one transaction, called from the table's thread.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, Select, and_, case, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from headway.adapters.gateway.job_ports import ran
from headway.adapters.gateway.tally import day_of
from headway.adapters.jobs.connect import Database, plain
from headway.adapters.jobs.heartbeats import keep_all
from headway.adapters.jobs.holds import stops_when_saved
from headway.adapters.jobs.outbox import store_hook
from headway.adapters.jobs.outputs import StoredOutput, put_outputs
from headway.adapters.jobs.records import less_of
from headway.adapters.jobs.rows import (
    NODE_COLUMNS,
    RowOf,
    counted,
    forgiven,
    is_counted,
    is_free,
    is_open,
    job_row,
    waiting_state,
)
from headway.adapters.jobs.tables import inputs, jobs
from headway.adapters.jobs.usage import add_spent, add_usage
from headway.core.ids import RequestId
from headway.core.job_effects import (
    ClaimRow,
    CompleteRow,
    FailRow,
    KeepRows,
    RequeueRow,
    SaveCheckpoint,
    SpareRow,
    WatchRows,
)
from headway.core.jobs import JobRow
from headway.core.units import Ns


class JobInput(msgspec.Struct, frozen=True):
    """The encoded request, the key of its last checkpoint, and what the attempts so far went without (JSON)."""

    body: bytes
    checkpoint: str | None = None
    degraded: bytes | None = None


class Retention(msgspec.Struct, frozen=True):
    """How long what is over is kept."""

    objects_ns: Ns
    answers_ns: Ns


class NodeTable:
    """The table for one owner: this process, in this life."""

    def __init__(self, database: Database, owner: str, retention: Retention) -> None:
        self._database, self._owner, self._retention = database, owner, retention

    def give_back(self) -> int:
        """Everything that is claimed, where this process ends before it could be saved: whoever looks next goes on
        from the last checkpoint. Returns how many rows."""
        mine = update(jobs).where(jobs.c.owner == self._owner, is_open())
        back = mine.values({"owner": None, "state": waiting_state(), **forgiven()})  # nobody's fault
        return self._database.run(lambda c: c.execute(back).rowcount)

    def claimable(self, limit: int, now_ns: Ns, starting: Sequence[str] = ()) -> tuple[list[JobRow], bool]:
        """The first rows that may be claimed, and whether there are more; none of models that are `starting`."""
        found = (
            select(*NODE_COLUMNS)
            .where(is_free(now_ns), jobs.c.model.not_in(starting))
            .order_by(jobs.c.urgency.desc(), jobs.c.position, jobs.c.id)
            .limit(limit + 1)
        )
        rows = self._database.run(lambda c: c.execute(found).all())
        return [job_row(row) for row in rows[:limit]], len(rows) > limit

    def claim(self, effect: ClaimRow, now_ns: Ns) -> JobRow | None:
        """Take a free row, or tell of one that the same claim took before."""
        taken = (
            update(jobs)
            .where(jobs.c.id == effect.job, jobs.c.attempt == effect.attempt, is_free(now_ns))
            .values(
                attempt=jobs.c.attempt + 1,
                owner=self._owner,
                until_ns=effect.until_ns,
                # Without a checkpoint it is admitted anew, and told anew what it goes without.
                degraded=case((jobs.c.begun > 0, jobs.c.degraded), else_=None),
            )
            .returning(*NODE_COLUMNS)
        )
        mine = update(jobs).where(self._own(effect.job, effect.attempt + 1)).values(until_ns=effect.until_ns)

        def work(connection: Connection) -> RowOf | None:
            row = connection.execute(taken).one_or_none()
            return row or connection.execute(mine.returning(*NODE_COLUMNS)).one_or_none()

        row = self._database.run(work)
        return None if row is None else job_row(row)

    def begin(self, job: RequestId, attempt: int) -> JobInput | None:
        """What the attempt starts from, and that it has begun, which counts as a failure until it ends well. None: it
        has lost the row."""
        begun = update(jobs).where(self._own(job, attempt)).values(counted())
        found = self._input(job)

        def work(connection: Connection) -> RowOf | None:
            return connection.execute(found).one() if connection.execute(begun).rowcount else None

        return _job_input(self._database.run(work))

    def _own(self, job: RequestId, attempt: int) -> ColumnElement[bool]:
        return and_(jobs.c.id == job, jobs.c.attempt == attempt, jobs.c.owner == self._owner, is_open())

    def keep(self, effect: KeepRows) -> list[tuple[RequestId, int]]:
        """Heartbeats and progress. Returns those that have lost their rows."""
        kept = self._database.run(lambda c: keep_all(c, effect, self._owner))
        return [(row.job, row.attempt) for row in effect.rows if (row.job, row.attempt) not in kept]

    def watch(self, effect: WatchRows) -> tuple[tuple[tuple[RequestId, int], ...], tuple[tuple[RequestId, int], ...]]:
        """Those that have lost their rows, and those that are to be saved and handed back."""
        asked = or_(jobs.c.is_paused, stops_when_saved()).label("asked")
        owned = select(jobs.c.id, jobs.c.attempt, asked).where(
            jobs.c.id.in_([job for job, _ in effect.rows]), jobs.c.owner == self._owner, is_open()
        )
        rows = self._database.run(lambda c: c.execute(owned).all())
        held = {(row.id, row.attempt): row.asked for row in rows}
        lost = tuple(row for row in effect.rows if row not in held)
        return lost, tuple(row for row in effect.rows if held.get(row))

    def checkpoint(self, effect: SaveCheckpoint) -> bool:
        """The job goes on from here: at once, or, where it is paused or its queue is held so, when that is over."""
        kept = (
            update(jobs)
            .where(self._own(effect.job, effect.attempt))
            .values(
                until_ns=effect.until_ns,
                begun=effect.done,
                checkpoint=effect.key,
                done=case((jobs.c.done > effect.done, jobs.c.done), else_=effect.done),
                device_ns=effect.device_ns,
                failures=1,
                counted=f",{effect.attempt},",
                has_begun=True,
            )
        )
        handed = (
            update(jobs)
            .where(self._own(effect.job, effect.attempt), or_(jobs.c.is_paused, stops_when_saved()))
            .values(owner=None, state="preempted", failures=0, counted=",")
        )

        def work(connection: Connection) -> bool:
            return connection.execute(kept).rowcount == 1 and connection.execute(handed).rowcount == 0

        return self._database.run(work)

    def complete(self, effect: CompleteRow, made: Sequence[StoredOutput], now_ns: Ns) -> bool:
        """The end, the outputs, the usage and the webhook in one transaction."""
        done = (
            update(jobs)
            .where(self._own(effect.job, effect.attempt))
            .values(
                state="completed",
                owner=None,
                done=jobs.c.steps,
                device_ns=effect.device_ns,
                ended_ns=now_ns,
                expires_ns=now_ns + self._retention.objects_ns,
                has_begun=True,
            )
            .returning(jobs.c.tenant, jobs.c.model, jobs.c.degraded)
        )

        def work(connection: Connection) -> bool:
            row = connection.execute(done).one_or_none()
            if row is None:
                return False
            put_outputs(connection, effect.job, made)
            counts = {"device_ns": effect.device_ns, "images": effect.images, "frames": effect.frames, "requests": 1}
            add_usage(connection, day_of(now_ns), row.tenant, ran(row.model, less_of(row.degraded)), counts)
            store_hook(connection, effect.job, now_ns)
            return True

        return self._database.run(work)

    def fail(self, effect: FailRow, now_ns: Ns) -> bool:
        """The end without a result: what it took is metered, and nothing else."""
        failures = case((is_counted(), jobs.c.failures), else_=jobs.c.failures + 1)
        failed = (
            update(jobs)
            .where(self._own(effect.job, effect.attempt), failures >= effect.failures)
            .values(
                state=effect.state,
                owner=None,
                error_code=effect.code[:64],
                error_message=plain(effect.message),
                device_ns=effect.device_ns,
                ended_ns=now_ns,
                expires_ns=now_ns + self._retention.objects_ns,
            )
            .returning(jobs.c.tenant, jobs.c.model, jobs.c.degraded)
        )

        def work(connection: Connection) -> bool:
            row = connection.execute(failed).one_or_none()
            if row is None:
                back = update(jobs).where(self._own(effect.job, effect.attempt))
                return connection.execute(back.values(owner=None, state=waiting_state())).rowcount == 1
            add_spent(connection, day_of(now_ns), row.tenant, ran(row.model, less_of(row.degraded)), effect.device_ns)
            store_hook(connection, effect.job, now_ns)
            return True

        return self._database.run(work)

    def requeue(self, effect: RequeueRow) -> bool:
        """Back into the line, with its checkpoint or, as if it had never begun, without."""
        values: dict[str, object] = {
            "owner": None,
            "state": waiting_state(),
            "not_before_ns": effect.not_before_ns,
            **(forgiven() if effect.spares else counted()),
        }
        if effect.forgets:
            values |= {"state": "queued", "begun": 0, "done": 0, "checkpoint": None, "device_ns": 0}
            values |= {"restarts": jobs.c.restarts + 1, "restart_reason": plain(effect.reason)}
        back = update(jobs).where(self._own(effect.job, effect.attempt)).values(values)
        return self._database.run(lambda c: c.execute(back).rowcount == 1)

    def spare(self, effect: SpareRow) -> None:
        """Handed back, and counted no more whoever has had it since."""
        one = jobs.c.id == effect.job
        back = update(jobs).where(self._own(effect.job, effect.attempt)).values(owner=None, state=waiting_state())
        less = update(jobs).where(one, is_open(), is_counted(effect.attempt)).values(forgiven(effect.attempt))

        def work(connection: Connection) -> None:
            connection.execute(back)
            connection.execute(less)

        self._database.run(work)

    def add_outputs(self, job: RequestId, attempt: int, made: Sequence[StoredOutput]) -> bool:
        """Previews, while it runs."""
        own = select(func.count()).select_from(jobs).where(self._own(job, attempt))

        def work(connection: Connection) -> bool:
            if connection.execute(own).scalar_one() != 1:
                return False
            put_outputs(connection, job, made)
            return True

        return self._database.run(work)

    def degrade(self, job: RequestId, attempt: int, degraded: bytes) -> bool:
        """What its client is told that it does not get."""
        told = update(jobs).where(self._own(job, attempt)).values(degraded=degraded)
        return self._database.run(lambda c: c.execute(told).rowcount == 1)

    def input(self, job: RequestId) -> JobInput | None:
        """What an attempt starts from; None: it was deleted."""
        return _job_input(self._database.run(lambda c: c.execute(self._input(job)).one_or_none()))

    def _input(self, job: RequestId) -> Select[tuple[bytes, str | None, bytes | None]]:
        columns = (inputs.c.body, jobs.c.checkpoint, jobs.c.degraded)
        return select(*columns).join_from(inputs, jobs).where(jobs.c.id == job)


def _job_input(row: RowOf | None) -> JobInput | None:
    return None if row is None else JobInput(row.body, row.checkpoint, row.degraded)
