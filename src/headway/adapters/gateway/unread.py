"""Drops a connection whose client takes nothing of what waits for it: a close would wait for that for ever."""

import asyncio


class Unread:
    """Of one connection. Told when bytes begin to wait, and when they no longer do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, timeout_s: float) -> None:
        """`timeout_s`: without a byte taken."""
        self._loop, self._transport, self._timeout_s = loop, transport, timeout_s
        self._left = 0  # bytes that waited at the last look
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look from now on whether what waits gets less. Nothing may be added to it meanwhile."""
        self._left = self._transport.get_write_buffer_size()
        if self._left and self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def stop(self) -> None:
        """The client takes again, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        before = self._left
        self.watch()
        if self._left >= before:
            self.stop()
            self._transport.abort()
