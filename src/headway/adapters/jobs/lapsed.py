"""Rows that nobody works on any more: of an earlier life, of gateways that died, and of those that waited too long."""

from sqlalchemy import Connection, and_, delete, or_, update

from headway.adapters.jobs.connect import Database
from headway.adapters.jobs.holds import is_held
from headway.adapters.jobs.outbox import store_hook
from headway.adapters.jobs.rows import is_open, waiting_state
from headway.adapters.jobs.table import Retention
from headway.adapters.jobs.tables import answers, jobs
from headway.core.ids import RequestId
from headway.core.units import Ns


class Lapsed:
    """They are freed, or ended. `owner`: this process, which knows of its own."""

    def __init__(self, database: Database, retention: Retention, owner: str) -> None:
        self._database, self._retention, self._owner = database, retention, owner

    def release_all(self) -> int:
        """SQLite at start: whoever claimed these is gone, for there is one gateway only. Returns how many."""
        if not self._database.is_sqlite:
            return 0
        free = update(jobs).where(jobs.c.owner.is_not(None), is_open()).values(owner=None, state=waiting_state())
        unanswered = delete(answers).where(answers.c.answer.is_(None), answers.c.job.is_(None))

        def work(connection: Connection) -> int:
            connection.execute(unanswered)
            return connection.execute(free).rowcount

        return self._database.run(work)

    def expire(self, before_ns: Ns, now_ns: Ns) -> list[RequestId]:
        """End jobs that waited too long and were never begun; what runs at nobody any more is shown as waiting."""
        is_silent = and_(jobs.c.until_ns < now_ns, jobs.c.owner != self._owner)
        silent = update(jobs).where(is_open(), jobs.c.owner.is_not(None), is_silent)
        over = (
            update(jobs)
            .where(
                jobs.c.state == "queued",
                jobs.c.has_begun.is_(False),
                ~is_held(),
                jobs.c.stored_ns < before_ns,
                or_(jobs.c.owner.is_(None), is_silent),
            )
            .values(
                state="expired",
                owner=None,
                error_code="expired",
                error_message="no worker began it within jobs.wait_hours_max; send it again",
                ended_ns=now_ns,
                expires_ns=now_ns + self._retention.objects_ns,
            )
            .returning(jobs.c.id)
        )

        def work(connection: Connection) -> list[RequestId]:
            found = [RequestId(row.id) for row in connection.execute(over)]
            for job in found:
                store_hook(connection, job, now_ns)
            connection.execute(silent.values(owner=None, state=waiting_state()))
            return found

        return self._database.run(work)
