import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from headway.core.effects import AbortCopy
from headway.core.errors import EngineError
from headway.core.events import CopyArrived, CopyDone, Event
from headway.core.ids import NodeId, TransferId
from headway.core.plans import CopyPlan
from headway.core.units import Ns
from headway.live.transport import BlockTransport
from headway.live.wire import FRAME_BYTES_MAX, Blocks, Frame

A, B, X = NodeId("rep-a"), NodeId("rep-b"), TransferId("x")
T = TypeVar("T")


class Store:
    def __init__(self) -> None:
        self.written: list[tuple[tuple[int, ...], bytes]] = []
        self.is_broken = False

    def launch_read(self, blocks: Sequence[int]) -> Callable[[], bytes]:
        if self.is_broken:
            raise EngineError("broken")
        return lambda: bytes(blocks)

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]:
        if self.is_broken:
            raise EngineError("broken")
        return lambda: self.written.append((tuple(blocks), payload))


class Calls:
    """Runs each call in a later turn of the loop, as the engine's thread would."""

    def call(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                future.set_result(function())
            except EngineError as error:
                future.set_exception(error)

        loop.call_soon(work)
        return future

    def fetch(self, function: Callable[[], Callable[[], T]]) -> "asyncio.Future[T]":
        return self.call(lambda: function()())

    def bring(self, function: Callable[[], Callable[[], T]]) -> "asyncio.Future[T]":
        return self.call(lambda: function()())


class World:
    def __init__(self, block_bytes: int = 1) -> None:
        self.store, self.frames, self.events = Store(), list[Frame](), list[Event]()
        self.transport = BlockTransport(A, self.store, Calls(), self.frames.append, self._feed, block_bytes)

    def _feed(self, make: Callable[[Ns], Event]) -> None:
        self.events.append(make(5))

    async def until(self, count: int) -> list[Event]:
        for _ in range(1000):
            if len(self.events) >= count:
                break
            await asyncio.sleep(0)
        return self.events


def plan(stage: int = 0) -> CopyPlan:
    return CopyPlan(X, stage, B, (1, 2, 3), (7, 8, 9))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_a_copy_names_the_peers_blocks_and_carries_ours() -> None:
    # SPEC C2
    async def test() -> None:
        world = World()
        world.transport.start_copy(plan())
        (done,) = await world.until(1)
        assert world.frames == [Blocks(A, B, X, 0, -1, (7, 8, 9), b"\x01\x02\x03", last=True)]
        assert done == CopyDone(5, "copy-x", X, 0, -1, ok=True)

    run(test)


def test_a_large_copy_goes_out_in_parts_of_which_one_is_the_last() -> None:
    async def test() -> None:
        world = World(block_bytes=FRAME_BYTES_MAX // 2)
        world.transport.start_copy(plan())
        await world.until(1)
        assert [frame.last for frame in world.frames if isinstance(frame, Blocks)] == [False, False, True]

    run(test)


def test_an_arrived_stage_is_told_after_its_last_part_was_written() -> None:
    async def test() -> None:
        world = World()
        world.transport.arrived(Blocks(B, A, X, 2, -1, (1,), b"a", last=False))
        world.transport.arrived(Blocks(B, A, X, 2, -1, (2,), b"b", last=True))
        assert await world.until(1) == [CopyArrived(5, "blocks-rep-b", X, 2, -1)]
        assert world.store.written == [((1,), b"a"), ((2,), b"b")]

    run(test)


def test_an_abort_is_answered_once_and_nothing_is_sent_after_it() -> None:
    # SPEC C4
    async def test() -> None:
        world = World()
        world.transport.start_copy(plan())
        world.transport.abort_copy(AbortCopy(X))
        events = await world.until(1)
        assert [event.ok for event in events if isinstance(event, CopyDone)] == [False]
        assert world.frames == []

    run(test)


def test_an_abort_of_nothing_under_way_is_answered_at_once() -> None:
    world = World()
    world.transport.abort_copy(AbortCopy(X))
    assert [event.ok for event in world.events if isinstance(event, CopyDone)] == [False]


def test_a_copy_that_cannot_be_read_is_not_ok() -> None:
    async def test() -> None:
        world = World()
        world.store.is_broken = True
        world.transport.start_copy(plan())
        events = await world.until(1)
        assert [event.ok for event in events if isinstance(event, CopyDone)] == [False]

    run(test)


def test_a_stage_whose_first_frame_cannot_be_written_is_never_acknowledged() -> None:
    async def test() -> None:
        world = World()
        world.store.is_broken = True
        world.transport.arrived(Blocks(B, A, X, 0, -1, (1,), b"a", last=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.store.is_broken = False
        world.transport.arrived(Blocks(B, A, X, 0, -1, (2,), b"b", last=True))
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.events == []
        world.transport.arrived(Blocks(B, A, X, 1, -1, (3,), b"c", last=True))
        assert [type(event) for event in await world.until(1)] == [CopyArrived]

    run(test)


def test_a_stage_that_cannot_be_written_is_never_acknowledged() -> None:
    async def test() -> None:
        world = World()
        world.store.is_broken = True
        world.transport.arrived(Blocks(B, A, X, 0, -1, (1,), b"a", last=True))
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.events == []

    run(test)
