"""One connection between processes: frames go out in order, as one write for all of a turn of the loop."""

import asyncio
from typing import Final

from headway.live.wire import FRAME_BYTES_MAX, LENGTH_BYTES, Frame, WireError, body_length, decode, encode

TURN_BYTES_MAX: Final = 64 << 10  # more than this goes out at once
_READ_BYTES: Final = 64 << 10


class FrameReader:
    """Cuts what a peer sent into frames: as many as came together cost one wake-up."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._held = memoryview(b"")
        self._missing = 0  # bytes of the frame that has begun, as far as they are known

    async def next(self) -> Frame | None:
        """The next frame, or None when the peer closed between frames. Raises WireError."""
        while (body := self._body()) is None:
            if not await self._more():
                return None
        return decode(body)

    def _body(self) -> memoryview | None:
        held = self._held
        if len(held) < LENGTH_BYTES:
            self._missing = LENGTH_BYTES - len(held)
            return None
        end = LENGTH_BYTES + body_length(held[:LENGTH_BYTES])
        if len(held) < end:
            self._missing = end - len(held)
            return None
        self._held = held[end:]
        return held[LENGTH_BYTES:end]

    async def _more(self) -> bool:
        """Read on; False at the end."""
        try:
            if self._missing > _READ_BYTES:  # a long frame is put together once
                part = await self._reader.readexactly(self._missing)
            else:
                part = await self._reader.read(_READ_BYTES)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if not self._held:
                return False
            raise WireError(self._left_inside()) from error
        if not part and self._held:
            raise WireError(self._left_inside())
        self._held = memoryview(b"".join((self._held, part)) if self._held else part)
        return bool(part)

    def _left_inside(self) -> str:
        come = len(self._held)
        if come < LENGTH_BYTES:
            return f"the peer left {come} bytes into a frame's length"
        return f"the peer left inside a frame of {come + self._missing - LENGTH_BYTES} bytes"


class Link:
    """Frames go out in order; a peer that does not read is dropped instead of buffered without end.

    What one turn of the loop sends, such as a step's tokens and the report behind them, is one write: every write wakes
    the peer, and on a machine whose cores compute, a process that wakes takes a core from the step that runs.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, buffered_bytes_max: int = 4 * FRAME_BYTES_MAX
    ) -> None:
        self._frames, self._writer = FrameReader(reader), writer
        self._buffered_bytes_max = buffered_bytes_max
        self._loop = asyncio.get_running_loop()
        self._turn: list[bytes] = []
        self._turn_bytes = 0

    def send(self, frame: Frame) -> None:
        """Queue a frame. A closed link drops it: the loss is reported by the reading side."""
        if self._writer.transport.is_closing():
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
        transport = self._writer.transport
        if not turn or transport.is_closing():
            return
        transport.write(turn[0] if len(turn) == 1 else b"".join(turn))
        if transport.get_write_buffer_size() > self._buffered_bytes_max:
            transport.abort()

    async def receive(self) -> Frame | None:
        """The next frame, or None at the end. Raises WireError."""
        return await self._frames.next()

    async def flush(self) -> None:
        """Wait until what was sent left this process, or the peer is gone."""
        self._write()
        try:
            self._writer.transport.set_write_buffer_limits(0)
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        """Close after what was sent."""
        self._write()
        self._writer.close()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()
