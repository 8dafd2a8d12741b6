"""Heartbeats of everything that one process runs: each row is written where it is still its own."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, case, or_, tuple_, update
from sqlalchemy.sql.dml import ReturningUpdate

from headway.adapters.jobs.rows import is_open
from headway.adapters.jobs.tables import jobs
from headway.core.job_effects import KeepRow, KeepRows

_AT_ONCE: Final = 500  # rows of one statement: databases bound its parameters, of which a row has ten


def keep_all(connection: Connection, effect: KeepRows, owner: str) -> set[tuple[str, int]]:
    """Write them, in the caller's transaction. Returns the attempts that still have their rows."""
    parts = [effect.rows[at : at + _AT_ONCE] for at in range(0, len(effect.rows), _AT_ONCE)]
    return {(row.id, row.attempt) for part in parts for row in connection.execute(_kept(part, effect, owner))}


def _kept(rows: Sequence[KeepRow], effect: KeepRows, owner: str) -> ReturningUpdate[tuple[str, int]]:
    done = case({row.job: row.done for row in rows}, value=jobs.c.id)
    return (
        update(jobs)
        .where(
            tuple_(jobs.c.id, jobs.c.attempt).in_([(row.job, row.attempt) for row in rows]),
            jobs.c.owner == owner,
            is_open(),
        )
        .values(
            until_ns=effect.until_ns,
            state=case({row.job: row.state for row in rows}, value=jobs.c.id),
            # An attempt that goes on from a checkpoint does again what was shown as done.
            done=case((jobs.c.done > done, jobs.c.done), else_=done),
            has_begun=or_(jobs.c.has_begun, done > 0),
        )
        .returning(jobs.c.id, jobs.c.attempt)
    )
