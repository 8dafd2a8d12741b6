import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from headway.core.errors import EngineError
from headway.core.events import Event, StepDone, StepFailed, TimerFired
from headway.core.ids import TimerId
from headway.core.plans import StepPlan, StepTiming
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.engine_thread import EngineThread
from headway.live.wire import StepSpan

WOKE = TimerFired(0, "test", TimerId("t"))


class Device:
    """Steps end when the test lets them; `broken` steps fail, at launch or when awaited."""

    def __init__(self, broken_launch: int | None = None, broken_wait: int | None = None) -> None:
        self.launched: list[int] = []
        self.gates: dict[int, threading.Event] = {}
        self.broken_launch, self.broken_wait = broken_launch, broken_wait

    def gate(self, step: int) -> threading.Event:
        return self.gates.setdefault(step, threading.Event())

    def launch(self, plan: StepPlan) -> Callable[[], StepDone]:
        self.launched.append(plan.step)
        if plan.step == self.broken_launch:
            raise EngineError("launch")

        def wait() -> StepDone:
            assert self.gate(plan.step).wait(10)
            if plan.step == self.broken_wait:
                raise EngineError("wait")
            began_ns = plan.step * 10
            return StepDone(0, "device", plan.step, (7,), (8,), StepTiming(began_ns, began_ns, began_ns + 10))

        return wait


class World:
    def __init__(self, device: Device, *, is_asynchronous: bool = True) -> None:
        self.device = device
        self.events: list[Event] = []
        self.spans: list[StepSpan] = []
        self._changed = asyncio.Event()
        self.thread = EngineThread(device, Clock(), self._feed, self.spans.append, is_asynchronous=is_asynchronous)

    def _feed(self, make: Callable[[Ns], Event]) -> None:
        self.events.append(make(99))
        self._changed.set()

    def run(self, *steps: int) -> None:
        for step in steps:
            self.thread.run_step(StepPlan(step, step - 1, "decode", decodes=1), WOKE, 0)

    async def until(self, count: int) -> list[Event]:
        while len(self.events) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)
        return self.events


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 20)

    asyncio.run(bounded())


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_results_come_in_order_with_the_receivers_stamp(is_asynchronous: bool) -> None:
    async def test() -> None:
        device = Device()
        world = World(device, is_asynchronous=is_asynchronous)
        for step in (1, 2, 3):
            device.gate(step).set()
        world.run(1, 2, 3)
        done = await world.until(3)
        assert [event.step for event in done if isinstance(event, StepDone)] == [1, 2, 3]
        assert {event.at_ns for event in done} == {99}
        assert [span.step for span in world.spans] == [1, 2, 3]
        world.thread.close()

    run(test)


def test_an_asynchronous_device_gets_the_next_step_while_one_runs() -> None:
    # SPEC B6, E2
    async def test() -> None:
        device = Device()
        world = World(device)
        world.run(1, 2)
        await asyncio.wait_for(asyncio.to_thread(_until, lambda: device.launched == [1, 2]), 10)
        assert world.events == []
        device.gate(1).set()
        device.gate(2).set()
        await world.until(2)
        world.thread.close()

    run(test)


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_what_a_function_began_is_fetched(is_asynchronous: bool) -> None:
    async def test() -> None:
        world = World(Device(), is_asynchronous=is_asynchronous)
        assert await world.thread.fetch(lambda: lambda: b"kv") == b"kv"
        for broken in (_fail, lambda: _fail):
            with pytest.raises(EngineError, match="kv"):
                await world.thread.fetch(broken)
        world.thread.close()

    run(test)


def _fail() -> bytes:
    raise EngineError("kv")


def test_steps_go_on_while_a_function_is_fetched() -> None:
    # SPEC E2
    async def test() -> None:
        device, over = Device(), threading.Event()
        world = World(device)
        fetched = world.thread.fetch(lambda: lambda: over.wait(10))
        device.gate(1).set()
        world.run(1)
        assert [event.cause for event in await world.until(1)] == ["step-1"]
        assert not fetched.done()
        over.set()
        assert await fetched
        world.thread.close()

    run(test)


def test_what_was_begun_is_waited_for_when_nobody_asks_any_more() -> None:
    # SPEC E2
    async def test() -> None:
        may_begin, over = threading.Event(), threading.Event()
        world = World(Device())

        def begin() -> Callable[[], None]:
            assert may_begin.wait(10)
            return over.set

        fetched = world.thread.fetch(begin)
        await asyncio.sleep(0)
        fetched.cancel()
        may_begin.set()
        assert await asyncio.to_thread(over.wait, 10)
        world.thread.close()

    run(test)


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_what_is_brought_is_handed_over_in_the_order_of_the_calls(is_asynchronous: bool) -> None:
    # SPEC E2
    async def test() -> None:
        world, order = World(Device(), is_asynchronous=is_asynchronous), list[str]()
        may_end = threading.Event()

        def slow() -> Callable[[], None]:
            assert may_end.wait(10)
            return lambda: order.append(f"slow in {threading.current_thread().name}")

        first = world.thread.bring(slow)
        broken = world.thread.bring(lambda: _fail)
        second = world.thread.bring(lambda: lambda: order.append("quick"))
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(first, second)
        with pytest.raises(EngineError, match="kv"):
            await broken
        assert order == ["slow in engine", "quick"]
        world.thread.close()

    run(test)


def _until(claim: Callable[[], bool]) -> None:
    while not claim():
        threading.Event().wait(0.001)


@pytest.mark.parametrize(("device", "words"), [(Device(broken_launch=2), "launch"), (Device(broken_wait=2), "wait")])
def test_a_failed_step_voids_those_behind_it(device: Device, words: str) -> None:
    async def test() -> None:
        world = World(device)
        world.run(1, 2, 3)
        for step in (1, 2, 3, 4):
            device.gate(step).set()
        first, failed = await world.until(2)
        assert isinstance(first, StepDone)
        assert isinstance(failed, StepFailed)
        assert (failed.step, failed.error) == (2, f"EngineError: {words}")
        world.run(4)
        assert [event.step for event in await world.until(3) if isinstance(event, StepDone)] == [1, 4]
        world.thread.close()

    run(test)


def test_a_call_runs_after_the_plans_before_it_and_an_error_comes_back() -> None:
    async def test() -> None:
        device = Device()
        world = World(device, is_asynchronous=False)
        device.gate(1).set()
        world.run(1)
        assert await world.thread.call(lambda: list(device.launched)) == [1]

        def broken() -> None:
            raise EngineError("no such block")

        with pytest.raises(EngineError, match="no such block"):
            await world.thread.call(broken)
        world.thread.close()

    run(test)
