"""Holding and releasing the queue of a model, or all of them: kept in the table, so that it outlasts every process."""

from sqlalchemy import Connection, case, delete, func, insert, select, update

from headway.adapters.gateway.queue_ports import Hold, QueueLine, QueueView, Running
from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.holds import ALL, is_held_by
from headway.adapters.jobs.rows import forgiven, is_open, waiting_state
from headway.adapters.jobs.tables import holds, jobs
from headway.core.errors import RequestError
from headway.core.ids import RequestId
from headway.core.units import NS_PER_S, Ns


class Queue:
    """The queue as operators see it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, model: str, running: Running, now_ns: Ns) -> list[tuple[RequestId, int]]:
        """Hold it, or change how. Returns the jobs that are taken from who runs them, with their attempts."""
        taken = (
            update(jobs)
            .where(is_open(), jobs.c.owner.is_not(None), is_held_by(model))
            .values({"owner": None, "state": waiting_state(), **forgiven()})  # nobody's fault
            .returning(jobs.c.id, jobs.c.attempt)
        )

        def work(connection: Connection) -> list[tuple[RequestId, int]]:
            connection.execute(delete(holds).where(holds.c.model == model))
            connection.execute(insert(holds).values(model=model, running=running, since_ns=now_ns))
            rows = connection.execute(taken).all() if running == "stop" else ()
            return [(RequestId(row.id), row.attempt) for row in rows]

        return self._database.run(work)

    def release(self, model: str) -> None:
        """Let it go on; `ALL` releases every hold. Raises RequestError 409 for one model while all are held."""

        def work(connection: Connection) -> None:
            if model == ALL:
                connection.execute(delete(holds))
                return
            held = {row.model for row in connection.execute(select(holds.c.model))}
            if ALL in held:
                raise RequestError(
                    f"The queues of all models are paused, that of `{model}` too; resume them without `model`.",
                    status=409,
                    code="queue_paused",
                    param="model",
                )
            connection.execute(delete(holds).where(holds.c.model == model))

        self._database.run(work)

    def view(self) -> QueueView:
        """Every hold, and how many jobs wait and run for each model."""
        claimed = func.sum(case((jobs.c.owner.is_not(None), 1), else_=0))
        counted = select(jobs.c.model, claimed, func.count()).where(is_open()).group_by(jobs.c.model)

        def work(connection: Connection) -> QueueView:
            found = connection.execute(select(holds).order_by(holds.c.model)).all()
            rows = connection.execute(counted.order_by(jobs.c.model)).all()
            return QueueView(
                tuple(Hold(row.model, row.running, row.since_ns // NS_PER_S) for row in found),
                tuple(QueueLine(model, waiting=total - running, running=running) for model, running, total in rows),
            )

        return self._database.run(work)
