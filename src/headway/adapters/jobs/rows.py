"""Rows of the job table as every writer sees them: which are open or free, and what goes back into the line."""

from collections.abc import Sequence
from typing import Final, get_args

from sqlalchemy import Row, String, and_, case, func, literal, or_
from sqlalchemy.sql.elements import ColumnElement

from headway.adapters.jobs.holds import is_held
from headway.adapters.jobs.tables import jobs
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.jobs import OVER, JobRow, JobState
from headway.core.units import Ns

RowOf = Row[tuple[object, ...]]
_OPEN: Final = tuple(state for state in get_args(JobState) if state not in OVER)
NODE_COLUMNS: Final = (
    jobs.c.id,
    jobs.c.tenant,
    jobs.c.model,
    jobs.c.steps,
    jobs.c.stored_ns,
    jobs.c.position,
    jobs.c.urgency,
    jobs.c.attempt,
    jobs.c.failures,
    jobs.c.not_before_ns,
    jobs.c.begun,
    jobs.c.device_ns,
    jobs.c.estimate_ns,
    jobs.c.restarts,
)


def is_open() -> ColumnElement[bool]:
    """It is not over. Named by what it is, for which there is an index: most rows are over."""
    return jobs.c.state.in_(_OPEN)


def is_free(now_ns: Ns) -> ColumnElement[bool]:
    """It may be claimed."""
    return and_(
        is_open(),
        ~is_held(),
        jobs.c.is_paused.is_(False),
        jobs.c.not_before_ns <= now_ns,
        or_(jobs.c.owner.is_(None), jobs.c.until_ns < now_ns),
    )


def waiting_state() -> ColumnElement[str]:
    """Of a row that goes back into the line."""
    return case((or_(jobs.c.done > 0, jobs.c.begun > 0), "preempted"), else_="queued")


def _mark(attempt: int | None) -> ColumnElement[str]:
    number = jobs.c.attempt.cast(String) if attempt is None else literal(str(attempt))
    return literal(",").concat(number).concat(",")


def is_counted(attempt: int | None = None) -> ColumnElement[bool]:
    """An attempt, None: the one that the row is at, is among its failures."""
    return jobs.c.counted.contains(_mark(attempt))


def counted() -> dict[str, ColumnElement[int] | ColumnElement[str]]:
    """Values with which the attempt that the row is at is among its failures: once, however often they are written."""
    more = jobs.c.counted.concat(jobs.c.attempt.cast(String)).concat(",")
    return {
        "failures": case((is_counted(), jobs.c.failures), else_=jobs.c.failures + 1),
        "counted": case((is_counted(), jobs.c.counted), else_=more),
    }


def forgiven(attempt: int | None = None) -> dict[str, ColumnElement[int] | ColumnElement[str]]:
    """Values with which an attempt, None: the one that the row is at, is not among its failures any more."""
    return {
        "failures": case((is_counted(attempt), jobs.c.failures - 1), else_=jobs.c.failures),
        "counted": func.replace(jobs.c.counted, _mark(attempt), ","),
    }


def job_row(row: Sequence[object]) -> JobRow:
    """What the node sees of a row of `NODE_COLUMNS`."""
    job, tenant, model, *rest = row
    numbers = [int(str(value)) for value in rest]
    return JobRow(RequestId(str(job)), TenantId(str(tenant)), ModelId(str(model)), *numbers)
