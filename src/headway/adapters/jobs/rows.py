"""Rows of the job table as every writer sees them: which are open or free, and what goes back into the line."""

from collections.abc import Sequence
from typing import Final, get_args

from sqlalchemy import Row, and_, case, or_
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


def one_less() -> ColumnElement[int]:
    """Failures, but for an attempt that was none."""
    return case((jobs.c.failures > 0, jobs.c.failures - 1), else_=0)


def job_row(row: Sequence[object]) -> JobRow:
    """What the node sees of a row of `NODE_COLUMNS`."""
    job, tenant, model, *rest = row
    numbers = [int(str(value)) for value in rest]
    return JobRow(RequestId(str(job)), TenantId(str(tenant)), ModelId(str(model)), *numbers)
