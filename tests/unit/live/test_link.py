import asyncio
import socket

import pytest

from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.messages import Tokens
from headway.live.link import TURN_BYTES_MAX, FrameCutter, Link
from headway.live.wire import FRAME_BYTES_MAX, Beat, Blocks, Envelope, Frame, Hello, WireError, body_length, encode

TOKENS = Envelope(NodeId("rep-1"), NodeId("front"), Tokens((RequestId("req-1"),), (1,), (0,), (9,), 3))
FRAMES: list[Frame] = [Hello(NodeId("rep-1"), 2), TOKENS, Beat(7)]


def blocks(size: int) -> Blocks:
    return Blocks(NodeId("a"), NodeId("b"), TransferId("x"), 0, -1, (1,), bytes(size), last=True)


def read_all(*pieces: bytes) -> list[Frame]:
    """The frames that come in these pieces; the peer leaves behind the last."""
    cutter = FrameCutter()
    frames = [frame for piece in pieces for frame in cutter.feed(piece)]
    cutter.check_end()
    return frames


def test_frames_arrive_as_sent_and_in_order() -> None:
    raw = b"".join(encode(frame) for frame in FRAMES)
    assert read_all(raw) == FRAMES
    assert read_all(*(raw[at : at + 1] for at in range(len(raw)))) == FRAMES


def test_a_long_frame_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def look(head: bytes | memoryview) -> int:
        looks.append(body_length(head))
        return looks[-1]

    monkeypatch.setattr("headway.live.link.body_length", look)
    raw = encode(Beat(1)) + encode(blocks(1 << 20)) + encode(Beat(2))
    assert read_all(*(raw[at : at + 5000] for at in range(0, len(raw), 5000))) == [Beat(1), blocks(1 << 20), Beat(2)]
    assert len(looks) == 4  # the long one: when it begins, and when it is there


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

    def __init__(self, real: asyncio.Transport, writes: list[int]) -> None:
        self._real, self._writes = real, writes

    def write(self, raw: bytes) -> None:
        self._writes.append(len(raw))
        self._real.write(raw)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


async def pair() -> tuple[Link, Link, list[int]]:
    """Two ends, and the sizes of what the first one writes."""
    loop = asyncio.get_running_loop()
    (_, link), (_, there) = [await loop.create_connection(Link, sock=end) for end in socket.socketpair()]
    writes: list[int] = []
    link._transport = Spy(link._transport, writes)  # type: ignore[assignment]  # forwards the rest
    return link, there, writes


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
        transport, link = await asyncio.get_running_loop().create_connection(
            lambda: Link(buffered_bytes_max=1 << 20), sock=ours
        )
        for _ in range(8):
            link.send(blocks(1 << 20))
        assert transport.is_closing()
        theirs.close()

    asyncio.run(run())


def test_what_a_turn_brings_is_handled_in_that_turn() -> None:
    # SPEC E1: a task between the socket and the node was one turn of the loop more for every step
    async def run() -> None:
        link, there, _ = await pair()
        turns, handled, loop = 0, [], asyncio.get_running_loop()

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        def handle(frame: Frame) -> bool:
            handled.append((frame, turns))
            return frame != Beat(9)

        reading = asyncio.ensure_future(there.each(handle))
        received, there_data = [], there.data_received

        def data_received(data: bytes) -> None:
            received.append(turns)
            there_data(data)

        there.data_received = data_received  # type: ignore[method-assign]  # says when it was called
        await asyncio.sleep(0)
        turn()
        for frame in (*FRAMES, Beat(9), Beat(10)):
            link.send(frame)
        await reading
        assert [frame for frame, _ in handled] == [*FRAMES, Beat(9)]
        assert {at for _, at in handled} == set(received)
        link.close()
        there.close()

    asyncio.run(run())


def test_what_came_before_somebody_handles_it_is_kept() -> None:
    async def run() -> None:
        link, there, _ = await pair()
        link.send(FRAMES[0])
        assert await there.receive() == FRAMES[0]
        for _ in range(3):  # more than what a transport reads at once
            link.send(blocks(1 << 20))
        link.close()
        frames: list[Frame] = []

        def handle(frame: Frame) -> bool:
            frames.append(frame)
            return True

        await there.each(handle)
        assert frames == [blocks(1 << 20)] * 3
        there.close()

    asyncio.run(run())


def test_who_awaits_the_frames_gets_what_their_handling_raised() -> None:
    async def run() -> None:
        link, there, _ = await pair()
        reading = asyncio.ensure_future(there.each(lambda frame: bool(1 // 0)))
        link.send(Beat(1))
        with pytest.raises(ZeroDivisionError):
            await reading
        link.close()
        there.close()

    asyncio.run(run())
