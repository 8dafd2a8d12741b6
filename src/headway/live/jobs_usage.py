"""What requests used, metered per tenant and model (SPEC H6): gathered here, and written soon after.

Jobs, and pictures that are kept, are metered in the transaction that stores them.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headway.adapters.gateway.job_ports import Usage
from headway.adapters.gateway.tally import Tally, counts_of
from headway.core.errors import CapacityError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.core.units import Ns
from headway.live.jobs_table import Tables

log = logging.getLogger(__name__)

GATHER_S: Final = 0.25  # what a kill -9 may leave unmetered, beside the commit itself (docs/jobs.md)
RETRY_S: Final = 2.0  # after a table that did not answer


class TokenMeter:
    """What ended, until it is in the table."""

    def __init__(self, tables: Tables, now_ns: Callable[[], Ns]) -> None:
        """`now_ns`: Unix time."""
        self._tables, self._now_ns = tables, now_ns
        self._tally = Tally()
        self._some = asyncio.Event()
        self._metered: set[RequestId] = set()

    def metered(self, request: RequestId) -> None:
        """Its pictures are being kept, and metered with that: what is told of its end counts no more."""
        self._metered.add(request)

    def unmetered(self, request: RequestId) -> None:
        """They could not be kept."""
        self._metered.discard(request)

    def count(self, request: RequestId, used: Usage) -> None:
        """Metered so, whatever is told of its end."""
        self.metered(request)
        self._tally.add((used.day, used.tenant, used.model), counts_of(used))
        self._some.set()

    def observe(self, record: EvidenceRecord) -> None:
        """A request ended."""
        if record.request in self._metered:
            self._metered.remove(record.request)
        elif self._tally.observe(record, self._now_ns()):
            self._some.set()

    async def flush(self) -> bool:
        """Write it. False: the table did not take it, and it stays here to be written with what comes."""
        self._some.clear()
        taken = self._tally.take()
        if not taken:
            return True
        try:
            # A stop that cancels this must not take it from the queue of the thread.
            await asyncio.shield(self._tables.ask(lambda: self._tables.usage.add_all(taken)))
        except CapacityError as error:
            log.warning("tokens of %d tenants and models are metered later: %s", len(taken), error)
            for place, counts in taken.items():
                self._tally.add(place, counts)
            self._some.set()
            return False
        return True

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            if not await self.flush():
                await asyncio.sleep(RETRY_S)
