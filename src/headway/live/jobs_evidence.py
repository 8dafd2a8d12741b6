"""Writes the evidence of attempts into the job table: it outlives this process (SPEC I1)."""

import asyncio
import logging
from functools import partial
from typing import Final

import msgspec

from headway.adapters.jobs.evidence import moved
from headway.core.errors import CapacityError
from headway.core.evidence import EvidenceRecord
from headway.core.units import Ns
from headway.live.jobs_attempt import Attempt
from headway.live.jobs_table import Tables

log = logging.getLogger(__name__)

_TRIES: Final = 30
_AGAIN_S: Final = 2.0  # after a table that did not answer


class EvidenceKeeper:
    """Told of every attempt whose request is over."""

    def __init__(self, tables: Tables, epoch_ns: Ns) -> None:
        """`epoch_ns`: Unix time of run start."""
        self._tables, self._epoch_ns = tables, epoch_ns
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def keep(self, attempt: Attempt, record: EvidenceRecord) -> None:
        """Write it, before whatever the table is asked from now on."""
        if self._is_closed:
            log.warning("job %s: the evidence of attempt %d came too late to be kept", record.request, attempt.number)
            return
        told = msgspec.structs.replace(moved(record, self._epoch_ns), trace_id=record.trace_id or attempt.trace_id)
        work = partial(self._tables.evidence.keep, record.request, attempt.number, told)
        written = self._tables.ask(work)
        task = asyncio.get_running_loop().create_task(self._see(written, work, f"{record.request}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see(self, written: "asyncio.Future[None]", work: "partial[None]", job: str) -> None:
        for _ in range(_TRIES):
            try:
                await asyncio.shield(written)
                return
            except CapacityError as error:
                log.warning("the evidence of an attempt of job %s is written later: %s", job, error)
            await asyncio.sleep(_AGAIN_S)
            written = self._tables.ask(work)
        log.warning("the evidence of an attempt of job %s is lost: the job table stays away", job)

    async def close(self) -> None:
        """What was asked for is written; nothing more is asked for."""
        self._is_closed = True
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
