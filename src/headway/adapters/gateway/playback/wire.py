"""The event stream of a session: what is said, pings in silence, and a client that takes nothing is cut off."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from headway.adapters.gateway.exchange import ClientLeft, Exchange
from headway.adapters.gateway.render import PING
from headway.adapters.gateway.settings import StreamSettings

HURRIED_S: Final = 5.0  # for a client to take what is left, once its session was ended


class Wire:
    """`close` belongs into a `finally`."""

    def __init__(self, exchange: Exchange, settings: StreamSettings, on_gone: Callable[[], None]) -> None:
        """`on_gone`: nobody reads any more."""
        self._exchange, self._settings, self._on_gone = exchange, settings, on_gone
        self._limit_s = settings.stall_timeout_s
        self._sending: list[asyncio.Timeout] = []
        self._tasks = [asyncio.ensure_future(self._watch())]

    async def write(self, event: bytes) -> None:
        """Send an event, the first one with the response's start. Raises ClientLeft."""
        await self._timely(self._exchange.write(event))
        if len(self._tasks) == 1:
            self._tasks.append(asyncio.ensure_future(self._ping()))

    async def finish(self, last: bytes) -> None:
        """Send the last event. Raises ClientLeft."""
        await self._timely(self._exchange.finish(last))

    def hurry(self) -> None:
        """The session was ended: what it has is given back soon, also where its client takes nothing."""
        self._limit_s = min(self._limit_s, HURRIED_S)
        at = asyncio.get_running_loop().time() + self._limit_s
        for limit in self._sending:
            if not limit.expired():
                limit.reschedule(min(at, limit.when() or at))

    async def _timely(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                self._sending.append(limit)
                try:
                    await sending
                finally:
                    self._sending.remove(limit)
        except TimeoutError:
            self._on_gone()
            await self._exchange.abort()
            raise ClientLeft from None

    async def _watch(self) -> None:
        await self._exchange.left()
        self._on_gone()

    async def _ping(self) -> None:
        loop, every_s = asyncio.get_running_loop(), self._settings.ping_s
        while not self._exchange.finished:  # then a write does nothing
            silent_s = loop.time() - (self._exchange.sent_at or 0.0)
            if silent_s < every_s:
                await asyncio.sleep(every_s - silent_s)
                continue
            try:
                await self.write(PING)
            except ClientLeft:
                return

    def close(self) -> None:
        """Nothing follows."""
        for task in self._tasks:
            task.cancel()
