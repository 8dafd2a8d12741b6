"""Device time of attempts that their clients cancelled: the evidence of their requests tells it, after their end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headway.adapters.jobs.usage import Spent
from headway.core.errors import CapacityError
from headway.core.evidence import EvidenceRecord
from headway.core.ids import RequestId
from headway.core.units import NS_PER_MS, Ns
from headway.live.jobs_attempt import Attempt
from headway.live.jobs_table import Tables

log = logging.getLogger(__name__)

_LET_GO_S: Final = 10.0
_AGAIN_S: Final = 2.0  # after a table that did not answer


class Spending:
    """Attempts whose requests the front still knows."""

    def __init__(self, tables: Tables, now_ns: Callable[[], Ns]) -> None:
        """`now_ns`: Unix time."""
        self._tables, self._now_ns = tables, now_ns
        self._open: dict[RequestId, Attempt] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def let_go(self, job: RequestId) -> bool:
        """Wait until no earlier attempt of it has a request at the front, which takes an id once at a time. False: its
        replica is still at a step of it, after a while."""
        earlier = self._open.get(job)
        if earlier is None:
            return True
        try:
            async with asyncio.timeout(_LET_GO_S):
                await earlier.is_let_go.wait()
        except TimeoutError:
            return False
        return True

    def submitted(self, attempt: Attempt) -> None:
        """Its request is at the front from now on."""
        self._open[attempt.row.job] = attempt

    def observe(self, record: EvidenceRecord) -> Attempt | None:
        """A request is over, and nobody works on it any more. Returns the attempt that it was; None: it is of no
        job."""
        attempt = self._open.pop(record.request, None)
        if attempt is None:
            return None
        attempt.is_let_go.set()
        device_ns = round((record.device_ms or 0.0) * NS_PER_MS)
        # One that is lost may have come to its end all the same: cancelled while its outputs were stored.
        is_spent = attempt.is_lost or (attempt.is_stopped and attempt.outcome == "interrupted")
        if is_spent and device_ns and record.model is not None:
            spent = Spent(attempt.row, record.model, device_ns, attempt.saved_ns)
            task = asyncio.get_running_loop().create_task(self._meter(spent))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return attempt

    async def _meter(self, spent: Spent) -> None:
        while True:
            try:
                await asyncio.shield(self._tables.ask(lambda: self._tables.usage.spent(spent, self._now_ns())))
                return
            except CapacityError as error:
                log.warning("what job %s took until it was cancelled is metered later: %s", spent.row.job, error)
                await asyncio.sleep(_AGAIN_S)
