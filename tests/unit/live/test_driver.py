import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from headway.core.effects import Effect, End, Restart, Send, WakeAt
from headway.core.errors import EngineError, InvariantError
from headway.core.events import Event, MessageArrived, TimerFired
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.messages import Drain, Message
from headway.core.request import FinishReason
from headway.core.units import NS_PER_MS, Ns
from headway.live.clock import Clock
from headway.live.driver import Driver, MissingPort, Ports
from headway.live.eventlog import EventLog, LogError, read_log, replay

A, B = NodeId("a"), NodeId("b")


class Scripted:
    """A node whose answer to each event is given by a function."""

    def __init__(self, answer: Callable[[Event], list[Effect]]) -> None:
        self.id = A
        self.answer = answer
        self.seen: list[Event] = []

    def handle(self, event: Event) -> list[Effect]:
        self.seen.append(event)
        return self.answer(event)

    def check_invariants(self) -> None:
        pass


def test_a_timer_that_is_replaced_does_not_fire() -> None:
    # SPEC E1: a report that goes out with a step leaves no wake-up behind
    async def main() -> None:
        asked = [WakeAt(0, TimerId("report"), replaces=True), WakeAt(1, TimerId("report"), replaces=True)]
        asked.append(WakeAt(NS_PER_MS, TimerId("last")))
        fired: list[TimerId] = []
        over = asyncio.Event()

        def answer(event: Event) -> list[Effect]:
            if not isinstance(event, TimerFired):
                return list(asked)
            fired.append(event.timer)
            if event.timer == "last":
                over.set()
            return []

        Driver(Scripted(answer), Clock(), Ports(Outbox())).feed(arrived("go"))
        await over.wait()
        assert fired == ["report", "last"]

    run(main())


class Outbox:
    def __init__(self, then: Callable[[Message], None] = lambda message: None) -> None:
        self.sent: list[tuple[NodeId, NodeId, Message]] = []
        self.then = then

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None:
        self.sent.append((src, dst, message))
        self.then(message)


def arrived(reason: str) -> Callable[[Ns], Event]:
    return lambda at_ns: MessageArrived(at_ns, "test", B, Drain(reason))


def reason_of(event: Event) -> str:
    assert isinstance(event, MessageArrived)
    assert isinstance(event.message, Drain)
    return event.message.reason


def run(coroutine: Coroutine[None, None, None]) -> None:
    asyncio.run(coroutine)


def test_sends_go_out_in_order_under_the_nodes_name() -> None:
    async def main() -> None:
        outbox = Outbox()
        node = Scripted(lambda event: [Send(B, Drain("1")), Send(B, Drain("2"))])
        Driver(node, Clock(), Ports(outbox)).feed(arrived("x"))
        assert outbox.sent == [(A, B, Drain("1")), (A, B, Drain("2"))]

    run(main())


def test_an_event_born_inside_an_effect_waits_until_the_turn_is_over() -> None:
    async def main() -> None:
        order: list[str] = []
        outbox = Outbox(lambda message: driver.feed(arrived("inner")) if message == Drain("first") else None)

        def answer(event: Event) -> list[Effect]:
            order.append(reason_of(event))
            return [Send(B, Drain("first")), Send(B, Drain("second"))] if reason_of(event) == "outer" else []

        driver = Driver(Scripted(answer), Clock(), Ports(outbox))
        driver.feed(arrived("outer"))
        assert order == ["outer", "inner"]
        assert [message for _, _, message in outbox.sent] == [Drain("first"), Drain("second")]

    run(main())


class Still(Clock):
    """Stands where it is put, and counts who looks."""

    now, looks = 0, 0

    def now_ns(self) -> Ns:
        self.looks += 1
        return self.now


def test_a_timer_that_was_called_early_is_replaced_all_the_same() -> None:
    async def main() -> None:
        clock, fired, over = Still(), list[TimerId](), asyncio.Event()

        def answer(event: Event) -> list[Effect]:
            if isinstance(event, TimerFired):
                fired.append(event.timer)
                if event.timer == "last":
                    over.set()
                return []
            asked = WakeAt(1000 if reason_of(event) == "first" else 2000, TimerId("report"), replaces=True)
            return [asked] if reason_of(event) == "first" else [asked, WakeAt(NS_PER_MS, TimerId("last"))]

        driver = Driver(Scripted(answer), clock, Ports(Outbox()))
        driver.feed(arrived("first"))
        looked = clock.looks
        while clock.looks == looked:  # until the loop calls it: its clock goes on, ours does not
            await asyncio.sleep(0)
        driver.feed(arrived("second"))
        clock.now = 2 * NS_PER_MS
        await over.wait()
        assert fired == ["report", "last"]

    run(main())


def test_a_timer_fires_once_and_never_early() -> None:
    async def main() -> None:
        clock = Clock()
        due_ns = clock.now_ns() + 3 * NS_PER_MS
        fired = asyncio.Event()

        def answer(event: Event) -> list[Effect]:
            if isinstance(event, TimerFired):
                fired.set()
                return []
            return [WakeAt(due_ns, TimerId("t"))]

        node = Scripted(answer)
        Driver(node, clock, Ports(Outbox())).feed(arrived("x"))
        await fired.wait()
        timers = [event for event in node.seen if isinstance(event, TimerFired)]
        assert [event.timer for event in timers] == ["t"]
        assert timers[0].at_ns >= due_ns

    run(main())


def test_stamps_never_go_back() -> None:
    async def main() -> None:
        node = Scripted(lambda event: [])
        driver = Driver(node, Clock(), Ports(Outbox()))
        for number in range(100):
            driver.feed(arrived(str(number)))
        stamps = [event.at_ns for event in node.seen]
        assert stamps == sorted(stamps)

    run(main())


def test_an_effect_without_port_is_a_wiring_fault() -> None:
    async def main() -> None:
        node = Scripted(lambda event: [End(RequestId("req-1"), FinishReason.STOP)])
        with pytest.raises(MissingPort, match="End"):
            Driver(node, Clock(), Ports(Outbox())).feed(arrived("x"))

    run(main())


def test_a_node_that_asks_for_it_is_started_anew() -> None:  # ComfyUI#3670
    async def main() -> None:
        node = Scripted(lambda event: [Restart("its engine is stuck")])
        with pytest.raises(EngineError, match="its engine is stuck"):
            Driver(node, Clock(), Ports(Outbox())).feed(arrived("x"))

    run(main())


def broken(event: Event) -> list[Effect]:
    raise InvariantError("broken")


def test_a_broken_node_ends_the_process_unless_the_wiring_says_otherwise() -> None:
    async def main() -> None:
        with pytest.raises(InvariantError):
            Driver(Scripted(broken), Clock(), Ports(Outbox())).feed(arrived("x"))
        told: list[tuple[str, str]] = []
        driver = Driver(
            Scripted(broken),
            Clock(),
            Ports(Outbox()),
            fault=lambda event, error: told.append((reason_of(event), str(error))),
        )
        driver.feed(arrived("y"))
        assert told == [("y", "broken")]

    run(main())


def recorded(path: Path, answer: Callable[[Event], list[Effect]]) -> None:
    async def main() -> None:
        driver = Driver(Scripted(answer), Clock(), Ports(Outbox()), event_log=EventLog(path))
        driver.feed(arrived("1"))
        driver.feed(arrived("2"))
        driver.close()

    run(main())


def echo(event: Event) -> list[Effect]:
    return [Send(B, Drain(reason_of(event)))]


def test_a_recorded_run_replays_to_equal_effects(tmp_path: Path) -> None:
    recorded(tmp_path / "log", echo)
    assert [reason_of(entry.event) for entry in read_log(tmp_path / "log")] == ["1", "2"]
    assert replay(Scripted(echo), tmp_path / "log") == (2, [])


def test_a_node_that_behaves_otherwise_is_found_by_replay(tmp_path: Path) -> None:
    recorded(tmp_path / "log", echo)
    other = Scripted(lambda event: echo(event) if reason_of(event) == "1" else [])
    turns, differences = replay(other, tmp_path / "log")
    assert turns == 2
    assert [(found.turn, found.recorded, found.replayed) for found in differences] == [(1, [Send(B, Drain("2"))], [])]


def test_a_log_cut_off_by_a_crash_is_read_up_to_there(tmp_path: Path) -> None:
    recorded(tmp_path / "log", echo)
    raw = (tmp_path / "log").read_bytes()
    (tmp_path / "cut").write_bytes(raw[:-3])
    assert len(list(read_log(tmp_path / "cut"))) == 1


def test_a_log_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes((3).to_bytes(4, "big") + b"abc")
    with pytest.raises(LogError, match="turn 0"):
        list(read_log(tmp_path / "log"))
