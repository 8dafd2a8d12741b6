"""One attempt of a job that runs at this gateway."""

import asyncio

from headway.adapters.storage.keys import object_key, sealed
from headway.core.artifacts import Made
from headway.core.job_effects import StartJob
from headway.core.jobs import OutcomeKind
from headway.core.units import Ns


class Attempt:
    """From its claim until nobody works on it."""

    def __init__(self, start: StartJob) -> None:
        self.row, self.save_every = start.row, start.save_every
        self.trace_id: str | None = None  # of its client
        self.is_stopped = False
        self.is_lost = False  # stopped, and its row is not ours any more
        self.is_submitted = False
        self.first: tuple[int, Ns] | None = None  # steps and time of the first progress
        self.done = start.row.begun
        self.made: dict[tuple[str, int], Made] = {}
        self.checkpoints: list[str] = []  # keys, oldest first
        self.saved_ns: Ns = 0  # its device time as the row has it
        self.stored_ns: Ns = 0  # its outputs took so long to be stored
        self.outcome: OutcomeKind | None = None
        self.is_let_go = asyncio.Event()  # the front and its replica have done with the request

    @property
    def number(self) -> int:
        """Of the attempts of its job, from 1."""
        return self.row.attempt

    def key(self, name: str, body: bytes) -> str:
        """Of an object of this attempt."""
        return sealed(object_key(self.row.tenant, self.row.job, self.row.attempt, name), body)

    def device_ns(self, at_ns: Ns) -> Ns:
        """Estimated from its steps so far; the first one came without a time to compare with."""
        if self.first is None or self.done <= self.first[0]:
            return 0
        return (at_ns - self.first[1]) * (self.done - self.row.begun) // (self.done - self.first[0])
