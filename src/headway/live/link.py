"""One connection between processes: frames go out in order, as one write for all of a turn of the loop, and are handled
within the turn that reads them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from headway.live.wire import FRAME_BYTES_MAX, LENGTH_BYTES, Frame, WireError, body_length, decode, encode

TURN_BYTES_MAX: Final = 64 << 10  # more than this goes out at once


class FrameCutter:
    """Cuts what a peer sent into frames."""

    def __init__(self) -> None:
        self._held = bytearray()  # of a frame that is not complete
        self._wanted = LENGTH_BYTES  # bytes of it, as far as they are known

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield what is complete. Raises WireError."""
        held: bytes | bytearray = data
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return
            held, self._held = self._held, bytearray()
        whole, at, end = memoryview(held), 0, len(held)
        wanted = LENGTH_BYTES
        while end - at >= LENGTH_BYTES:
            body = at + LENGTH_BYTES
            wanted = LENGTH_BYTES + body_length(whole[at:body])
            if end - at < wanted:
                break
            at += wanted
            wanted = LENGTH_BYTES
            yield decode(whole[body:at])
        if at < end:
            self._held, self._wanted = bytearray(whole[at:]), wanted

    def check_end(self) -> None:
        """Raise WireError when the peer left inside a frame."""
        come = len(self._held)
        if come >= LENGTH_BYTES:
            raise WireError(f"the peer left inside a frame of {self._wanted - LENGTH_BYTES} bytes")
        if come:
            raise WireError(f"the peer left {come} bytes into a frame's length")


class Link(asyncio.Protocol):
    """Frames go out in order; a peer that does not read is dropped instead of buffered without end.

    What one turn of the loop sends, such as a step's tokens and the report behind them, is one write: every write wakes
    the peer, and on a machine whose cores compute, a process that wakes takes a core from the step that runs. For the
    same reason no task stands between what is read and who handles it.
    """

    def __init__(
        self,
        made: Callable[["Link"], Awaitable[None]] | None = None,
        *,
        buffered_bytes_max: int = 4 * FRAME_BYTES_MAX,
    ) -> None:
        """`made` runs once it is connected."""
        self._made, self._buffered_bytes_max = made, buffered_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._task: asyncio.Future[None] | None = None
        self._cutter = FrameCutter()
        self._handle: Callable[[Frame], bool] | None = None
        self._came: deque[Frame] = deque()  # before anybody handles them
        self._is_over = False  # no more is read
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_full, self._drained = False, asyncio.Event()
        self._turn: list[bytes] = []
        self._turn_bytes = 0

    # The transport's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # any stream's is one
        self._transport = transport
        if self._made is not None:
            self._task = asyncio.ensure_future(self._made(self))

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            for frame in self._cutter.feed(data):
                if self._handle is None:
                    self._came.append(frame)
                elif not self._handle(frame):
                    self._end(None)
                    return
        except Exception as error:  # the outer loop of what is read: who awaits its end gets it
            self._end(error)
            return
        if self._came:
            self._transport.pause_reading()
            self._wake()

    def eof_received(self) -> bool:
        if not self._is_over:
            self._lost()
        return True  # what is still to be sent may be

    def connection_lost(self, _: Exception | None) -> None:
        if not self._is_over:
            self._lost()
        self._drained.set()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._drained.set()

    # Sending

    def send(self, frame: Frame) -> None:
        """Queue a frame. A closed link drops it: the loss is reported by the reading side."""
        if self._transport.is_closing():
            return
        raw = encode(frame)
        if not self._turn:
            self._loop.call_soon(self._write)
        self._turn.append(raw)
        self._turn_bytes += len(raw)
        if self._turn_bytes > TURN_BYTES_MAX:
            self._write()

    def _write(self) -> None:
        turn, self._turn, self._turn_bytes = self._turn, [], 0
        transport = self._transport
        if not turn or transport.is_closing():
            return
        transport.write(turn[0] if len(turn) == 1 else b"".join(turn))
        if transport.get_write_buffer_size() > self._buffered_bytes_max:
            transport.abort()

    async def flush(self) -> None:
        """Wait until what was sent left this process, or the peer is gone."""
        self._write()
        if self._transport.is_closing():
            return
        self._drained.clear()
        self._transport.set_write_buffer_limits(0)
        if self._is_full:
            await self._drained.wait()

    def close(self) -> None:
        """Close after what was sent."""
        self._write()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # Receiving

    async def receive(self) -> Frame | None:
        """The next frame, or None at the end. Raises WireError."""
        while not self._came and not self._is_over:
            await self._next()
        if self._came:
            return self._came.popleft()
        self._check()
        return None

    async def each(self, handle: Callable[[Frame], bool]) -> None:
        """Call `handle` with each frame as it comes; return at the end, or when `handle` says False. Raises WireError,
        and what `handle` raises."""
        while self._came:
            if not handle(self._came.popleft()):
                return
        self._handle = handle
        while not self._is_over:
            await self._next()
        self._check()

    async def _next(self) -> None:
        self._waiter = self._loop.create_future()
        self._transport.resume_reading()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lost(self) -> None:
        try:
            self._cutter.check_end()
        except WireError as error:
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        self._is_over, self._error, self._handle = True, error, None
        self._wake()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


async def connect(socket: str) -> Link:
    """Return the link to who listens there."""
    _, link = await asyncio.get_running_loop().create_unix_connection(Link, socket)
    return link


async def serve(socket: Path, made: Callable[[Link], Awaitable[None]]) -> asyncio.Server:
    """Listen; `made` runs for each link."""
    return await asyncio.get_running_loop().create_unix_server(lambda: Link(made), str(socket))
