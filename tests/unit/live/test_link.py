import asyncio
import socket

import pytest

from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.messages import Tokens
from headway.live.link import TURN_BYTES_MAX, FrameReader, Link
from headway.live.wire import FRAME_BYTES_MAX, Beat, Blocks, Envelope, Frame, Hello, WireError, encode

TOKENS = Envelope(NodeId("rep-1"), NodeId("front"), Tokens((RequestId("req-1"),), (1,), (0,), (9,), 3))
FRAMES: list[Frame] = [Hello(NodeId("rep-1"), 2), TOKENS, Beat(7)]


def blocks(size: int) -> Blocks:
    return Blocks(NodeId("a"), NodeId("b"), TransferId("x"), 0, -1, (1,), bytes(size), last=True)


class CountedReader(asyncio.StreamReader):
    reads = 0

    async def read(self, n: int = -1) -> bytes:
        self.reads += 1
        return await super().read(n)


def read_all(*pieces: bytes) -> tuple[list[Frame], int]:
    """The frames, and how often more was asked for; a piece comes some turns of the loop after the one before."""

    async def run() -> tuple[list[Frame], int]:
        reader, frames = CountedReader(), []

        async def feed() -> None:
            for piece in pieces:
                reader.feed_data(piece)
                for _ in range(3):  # turns in which what came is read
                    await asyncio.sleep(0)
            reader.feed_eof()

        feeding = asyncio.create_task(feed())
        cut = FrameReader(reader)
        while (frame := await cut.next()) is not None:
            frames.append(frame)
        await feeding
        return frames, reader.reads

    return asyncio.run(run())


def test_frames_arrive_as_sent_and_in_order() -> None:
    raw = b"".join(encode(frame) for frame in FRAMES)
    assert read_all(raw)[0] == FRAMES
    assert read_all(*(raw[at : at + 1] for at in range(len(raw))))[0] == FRAMES


def test_frames_that_come_together_are_read_at_once() -> None:
    # SPEC E1: a step's tokens and its reports wake the gateway once
    frames, reads = read_all(b"".join(encode(frame) for frame in FRAMES * 3))
    assert frames == FRAMES * 3
    assert reads == 2  # all of them, and the end


def test_a_long_frame_is_put_together_once() -> None:
    raw = encode(Beat(1)) + encode(blocks(1 << 20)) + encode(Beat(2))
    frames, reads = read_all(*(raw[at : at + 5000] for at in range(0, len(raw), 5000)))
    assert frames == [Beat(1), blocks(1 << 20), Beat(2)]
    assert reads < 20  # its length, its last bytes with what follows, and the end


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_frame_that_is_cut_off_is_the_peers_fault(cut: int) -> None:
    with pytest.raises(WireError, match="into a frame's length" if cut < 4 else "inside a frame of"):
        read_all(encode(FRAMES[0])[:cut])


def test_a_long_frame_that_is_cut_off_is_the_peers_fault() -> None:
    raw = encode(blocks(1 << 20))
    with pytest.raises(WireError, match=f"inside a frame of {len(raw) - 4} bytes"):
        read_all(raw[:1000], raw[1000:2000])


def test_bytes_that_are_no_frame_are_the_peers_fault() -> None:
    with pytest.raises(WireError, match="none of ours"):
        read_all((3).to_bytes(4, "big") + b"abc")


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="announces"):
        read_all((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


class Spy:
    """A transport whose writes are counted."""

    def __init__(self, real: asyncio.WriteTransport, writes: list[int]) -> None:
        self._real, self._writes = real, writes

    def write(self, raw: bytes) -> None:
        self._writes.append(len(raw))
        self._real.write(raw)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


async def pair() -> tuple[Link, Link, list[int]]:
    """Two ends, and the sizes of what the first one writes."""
    ours, theirs = socket.socketpair()
    (reader, writer), (there_reader, there_writer) = [await asyncio.open_connection(sock=end) for end in (ours, theirs)]
    writes: list[int] = []
    writer._transport = Spy(writer.transport, writes)  # type: ignore[attr-defined]  # forwards the rest
    return Link(reader, writer), Link(there_reader, there_writer), writes


def test_what_a_turn_of_the_loop_sends_is_one_write() -> None:
    # SPEC E1: three writes for a step's tokens and two reports woke the gateway three times, each time from a core
    # on which the next step computes.
    async def run() -> None:
        link, there, writes = await pair()
        for frame in FRAMES:
            link.send(frame)
        assert [await there.receive() for _ in FRAMES] == FRAMES
        assert len(writes) == 1
        link.send(Beat(8))
        assert await there.receive() == Beat(8)
        assert len(writes) == 2
        link.close()
        assert await there.receive() is None
        there.close()

    asyncio.run(run())


def test_a_turn_does_not_hold_more_than_its_limit() -> None:
    async def run() -> None:
        link, there, writes = await pair()
        link.send(blocks(TURN_BYTES_MAX))
        assert len(writes) == 1
        assert await there.receive() == blocks(TURN_BYTES_MAX)
        link.close()
        there.close()

    asyncio.run(run())


def test_what_was_sent_goes_out_before_a_flush_or_a_close_ends() -> None:
    async def run() -> None:
        link, there, writes = await pair()
        link.send(Beat(1))
        await link.flush()
        assert len(writes) == 1
        link.send(Beat(2))
        link.close()
        assert [await there.receive() for _ in range(3)] == [Beat(1), Beat(2), None]
        there.close()

    asyncio.run(run())


def test_a_peer_that_does_not_read_is_dropped() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        link = Link(reader, writer, buffered_bytes_max=1 << 20)
        for _ in range(8):
            link.send(blocks(1 << 20))
        assert writer.transport.is_closing()
        theirs.close()

    asyncio.run(run())
