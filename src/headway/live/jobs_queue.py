"""The gateway's port to the queue (`adapters/gateway/job_ports.Queue`) over the job table."""

import asyncio
from collections.abc import Callable

from headway.adapters.gateway.queue_ports import QueueView, Running
from headway.adapters.jobs.holds import ALL
from headway.core.ids import ModelId, RequestId
from headway.core.jobs import JobEvent, RowLost, SaveAsked
from headway.core.units import Ns
from headway.live.jobs_table import Feed, Tables


class QueueDesk:
    """`Queue`."""

    def __init__(self, tables: Tables, feed: Feed, now_ns: Callable[[], Ns]) -> None:
        self._tables, self._feed, self._now_ns = tables, feed, now_ns

    async def hold(self, model: str | None, running: Running) -> QueueView:
        """See the port."""
        return await asyncio.shield(self._hold(ALL if model is None else model, running))

    async def _hold(self, model: str, running: Running) -> QueueView:
        """Write, and tell the node of this process at once; others learn by their next look at their rows."""
        taken = await self._tables.ask(lambda: self._tables.queue.hold(model, running, self._now_ns()))
        for job, attempt in taken:
            self._feed(_lost(job, attempt))
        if running == "checkpoint":
            asked = None if model == ALL else ModelId(model)
            self._feed(lambda at_ns: SaveAsked(at_ns, "queue", asked))
        return await self.view()

    async def release(self, model: str | None) -> QueueView:
        """See the port."""
        await self._tables.ask(lambda: self._tables.queue.release(ALL if model is None else model))
        return await self.view()

    async def view(self) -> QueueView:
        """See the port."""
        return await self._tables.ask(self._tables.queue.view)


def _lost(job: RequestId, attempt: int) -> Callable[[Ns], JobEvent]:
    return lambda at_ns: RowLost(at_ns, "queue", job, attempt)
