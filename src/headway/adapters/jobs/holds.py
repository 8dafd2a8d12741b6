"""Queues that are held: of one model, or of all. What waits there is not claimed by any gateway."""

from typing import Final

from sqlalchemy import Select, literal, or_, select
from sqlalchemy.sql.elements import ColumnElement

from headway.adapters.jobs.tables import holds, jobs

ALL: Final = "*"  # every model's


def is_held() -> ColumnElement[bool]:
    """The queue of a row's model is held."""
    return _hold().exists()


def stops_when_saved() -> ColumnElement[bool]:
    """It is held, and what runs there stops with its next checkpoint."""
    return _hold().where(holds.c.running == "checkpoint").exists()


def is_held_by(model: str) -> ColumnElement[bool]:
    """A row that a hold on `model` means."""
    return or_(literal(model == ALL), jobs.c.model == model)


def _hold() -> Select[tuple[str]]:
    return select(holds.c.model).where(or_(holds.c.model == ALL, holds.c.model == jobs.c.model)).correlate(jobs)
