"""Idempotency keys of synchronous requests: whoever sends one again waits for the first, at any gateway."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, NamedTuple

from headway.adapters.gateway.job_ports import Held, IdempotencyKey
from headway.adapters.jobs.answers import InUse, conflict
from headway.core.errors import CapacityError
from headway.core.ids import TenantId
from headway.core.units import Ns, ns_from_s
from headway.live.jobs_table import Tables

log = logging.getLogger(__name__)

HELD_S: Final = 60.0  # by a request that runs, from its last renewal: a process that dies frees its keys then
RENEW_S: Final = HELD_S / 4
LOOK_S: Final = 0.5  # between looks for the answer of another gateway


class _Open(NamedTuple):
    """A key of ours: the body that it stands for, and the end of its request."""

    digest: bytes
    over: asyncio.Future[None]


class AnswerDesk:
    """`Answers`."""

    def __init__(
        self,
        tables: Tables,
        now_ns: Callable[[], Ns],
        keep_ns: Ns,
        sleep: Callable[[float], Coroutine[None, None, None]] = asyncio.sleep,
    ) -> None:
        self._tables, self._now_ns, self._keep_ns, self._sleep = tables, now_ns, keep_ns, sleep
        self._open: dict[tuple[TenantId, str], _Open] = {}  # keys that requests of ours run under
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self, tenant: TenantId, key: IdempotencyKey) -> Held:
        """See the port."""
        place = (tenant, key.key)
        while True:
            if (ours := self._open.get(place)) is not None:  # whether or not the table still says so
                if ours.digest != key.digest:
                    raise conflict(key)
                await asyncio.shield(ours.over)
                continue
            taking = asyncio.ensure_future(self._take(tenant, key))
            try:
                found = await asyncio.shield(taking)
            except asyncio.CancelledError:
                taking.add_done_callback(lambda done: self._left(tenant, key, done))
                raise
            if isinstance(found, Held):
                return found
            if place not in self._open:
                await self._sleep(LOOK_S)

    async def _take(self, tenant: TenantId, key: IdempotencyKey) -> Held | InUse:
        now_ns = self._now_ns()
        answers, until_ns = self._tables.answers, now_ns + ns_from_s(HELD_S)
        found = await self._tables.ask(lambda: answers.begin(tenant, key, now_ns, until_ns))
        if isinstance(found, Held) and found.answer is None:
            self._open[tenant, key.key] = _Open(key.digest, asyncio.get_running_loop().create_future())
            if self._renewing is None or self._renewing.done():
                self._renewing = self._begin(self._renew())
        return found

    async def _renew(self) -> None:
        """Keep the keys of what runs here, until nothing does."""
        while self._open:
            await self._sleep(RENEW_S)
            until_ns, keys = self._now_ns() + ns_from_s(HELD_S), tuple(self._open)
            try:
                await self._tables.ask(partial(self._tables.answers.renew, keys, until_ns), is_beat=True)
            except CapacityError as error:
                log.warning("%d idempotency keys are not renewed: %s", len(keys), error)

    def _begin(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _left(self, tenant: TenantId, key: IdempotencyKey, taken: "asyncio.Task[Held | InUse]") -> None:
        """Its client left while the key was taken: nobody runs under it."""
        if taken.cancelled() or taken.exception() is not None:
            return
        if taken.result() == Held():
            self._begin(self.abandon(tenant, key))

    def _close(self, tenant: TenantId, key: IdempotencyKey) -> None:
        ours = self._open.pop((tenant, key.key), None)
        if ours is not None:
            ours.over.set_result(None)

    async def finish(self, tenant: TenantId, key: IdempotencyKey, answer: bytes) -> None:
        """See the port."""
        expires_ns = self._now_ns() + self._keep_ns
        with contextlib.ExitStack() as over:
            over.callback(self._close, tenant, key)
            await self._tables.ask(lambda: self._tables.answers.finish(tenant, key, answer, expires_ns))

    async def abandon(self, tenant: TenantId, key: IdempotencyKey) -> None:
        """See the port."""
        with contextlib.ExitStack() as over:
            over.callback(self._close, tenant, key)
            await self._tables.ask(lambda: self._tables.answers.abandon(tenant, key))

    async def close(self) -> None:
        """Renew nothing more."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
