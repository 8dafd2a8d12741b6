"""What a gateway process does not answer itself, byte for byte between the client and the process that does.

From its first such request a connection stays spliced to its end. Limits and timeouts are those of the other side.
"""

import asyncio

from uvicorn.server import ServerState

from headway.adapters.gateway.errors import shutting_down
from headway.adapters.gateway.relay.exchange import error_answer
from headway.adapters.gateway.unread import Unread


class Splice:
    """One client's connection (`server.Foreign`)."""

    is_idle = False  # it is not told where an answer ends

    def __init__(self, door: str, state: ServerState, loop: asyncio.AbstractEventLoop, stall_timeout_s: float) -> None:
        """`door`: the Unix socket of the other process."""
        self._door, self._state, self._loop, self._stall_timeout_s = door, state, loop, stall_timeout_s
        self._client: asyncio.Transport
        self._far: asyncio.Transport | None = None
        self._held: list[bytes] = []  # until the door is open
        self._opening: asyncio.Task[None] | None = None
        self._is_over = False

    # Of the client's connection

    def connection_made(self, transport: asyncio.Transport) -> None:
        """From here on, what comes is the other side's."""
        self._client = transport
        self._unread = Unread(self._loop, transport, self._stall_timeout_s)
        self._state.connections.add(self)  # type: ignore[arg-type]  # uvicorn calls its `shutdown`, nothing else
        self._opening = self._loop.create_task(self._open())

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self._far is not None:
            self._far.write(data)
        else:
            self._held.append(data)
            self._client.pause_reading()

    def pause_writing(self) -> None:
        """The client is slow."""
        self._unread.watch()
        if self._far is not None and not self._far.is_closing():
            self._far.pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._unread.stop()
        if self._far is not None and not self._far.is_closing():
            self._far.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        """The client is gone."""
        self._is_over = True
        self._unread.stop()
        self._state.connections.discard(self)
        if self._opening is not None:
            self._opening.cancel()
        if self._far is not None:
            self._far.abort()

    def leave(self) -> None:
        """Never: it is never idle."""
        raise AssertionError("a splice is not taken back")

    def shutdown(self) -> None:
        """The other side ends its answers in order, and closes."""

    # Of the other side

    async def _open(self) -> None:
        try:
            far, _ = await self._loop.create_unix_connection(lambda: _FarSide(self), self._door)
        except OSError:
            self._client.write(error_answer(shutting_down(), b"", keep_alive=False))
            self._client.close()
            return
        self._far = far
        for part in self._held:
            far.write(part)
        self._held.clear()
        self.far_resumed()

    def answer(self, data: bytes) -> None:
        """A part of an answer."""
        self._client.write(data)

    def far_paused(self) -> None:
        """The other side is slow."""
        self._client.pause_reading()

    def far_resumed(self) -> None:
        """The other side has caught up."""
        if not self._is_over and not self._client.is_closing():
            self._client.resume_reading()

    def far_lost(self) -> None:
        """The other side has closed."""
        self._client.close()
        self._unread.watch()


class _FarSide(asyncio.Protocol):
    def __init__(self, splice: Splice) -> None:
        self._splice = splice
        self.data_received = splice.answer  # type: ignore[method-assign]  # a call less for every part
        self.pause_writing = splice.far_paused  # type: ignore[method-assign]  # as above
        self.resume_writing = splice.far_resumed  # type: ignore[method-assign]  # as above

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        self._splice.far_lost()
