"""Feeds one node and performs its effects. It stamps every event once, on the way in, and decides nothing."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar, assert_never

import msgspec

from headway.core.effects import (
    AbortCopy,
    Admitted,
    Beat,
    Deliver,
    Effect,
    End,
    Propose,
    Record,
    Restart,
    RunDenoise,
    RunStep,
    Send,
    Show,
    StartCopy,
    WakeAt,
)
from headway.core.errors import EngineError, InvariantError
from headway.core.events import Event, TimerFired
from headway.core.ids import NodeId, TimerId
from headway.core.messages import Message
from headway.core.plans import CopyPlan, DenoisePlan, StepPlan
from headway.core.ports import Node
from headway.core.units import Ns, s_from_ns
from headway.live.clock import Clock
from headway.live.eventlog import EventLog

Fault = Callable[[Event, Exception], None]
P = TypeVar("P")


class Outlet(Protocol):
    """Carries a message to another node, FIFO per pair."""

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None: ...


class Edge(Protocol):
    """What a front tells its clients and the telemetry."""

    def deliver(self, effect: Deliver) -> None: ...

    def admitted(self, effect: Admitted) -> None: ...

    def show(self, effect: Show) -> None: ...

    def end(self, effect: End) -> None: ...

    def record(self, effect: Record) -> None: ...


class StepExecutor(Protocol):
    """Runs LLM steps in order. `event` is the one that led to the plan, `planned_ns` when planning began."""

    def run_step(self, plan: StepPlan, event: Event, planned_ns: Ns) -> None: ...


class DenoiseExecutor(Protocol):
    """Runs denoise batches in order."""

    def run_denoise(self, plan: DenoisePlan, event: Event, planned_ns: Ns) -> None: ...


class Transport(Protocol):
    """Copies blocks between replicas."""

    def start_copy(self, plan: CopyPlan) -> None: ...

    def abort_copy(self, effect: AbortCopy) -> None: ...


class Group(Protocol):
    """All-gathers proposals."""

    def propose(self, effect: Propose) -> None: ...


class Ports(msgspec.Struct, frozen=True):
    """Who performs what. A node whose role never asks for a port leaves it out."""

    outlet: Outlet
    edge: Edge | None = None
    steps: StepExecutor | None = None
    denoise: DenoiseExecutor | None = None
    transport: Transport | None = None
    group: Group | None = None


class MissingPort(Exception):
    """The wiring lacks what a node asked for."""


def _needed(port: P | None, effect: Effect) -> P:
    if port is None:
        raise MissingPort(f"nobody performs {type(effect).__name__} here")
    return port


class Driver:
    """One node on the wall clock. Single-threaded: everything happens on the loop that made it."""

    def __init__(
        self, node: Node, clock: Clock, ports: Ports, *, event_log: EventLog | None = None, fault: Fault | None = None
    ) -> None:
        self.node = node
        self._clock, self._ports, self._log, self._fault = clock, ports, event_log, fault
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Callable[[Ns], Event]] = deque()
        self._is_feeding = False
        self._timers: dict[TimerId, asyncio.TimerHandle] = {}  # that may be replaced
        self._last_ns: Ns = 0
        self.handle_ns: Ns = 0  # host time inside the node since the start
        self.turns = 0

    def feed(self, make: Callable[[Ns], Event]) -> None:
        """Hand an event to the node; `make` gets its stamp. Called from within an effect, it waits for its turn."""
        self._inbox.append(make)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._inbox:
                self._turn(self._inbox.popleft())
        finally:
            self._is_feeding = False

    def _turn(self, make: Callable[[Ns], Event]) -> None:
        started_ns = max(self._clock.now_ns(), self._last_ns)
        self._last_ns = started_ns
        event = make(started_ns)
        try:
            effects = self.node.handle(event)
        except Exception as error:  # the outer loop: the wiring says whether the process goes on
            if self._fault is None:
                raise
            self._fault(event, error)
            return
        self.handle_ns += self._clock.now_ns() - started_ns
        self.turns += 1
        if self._log is not None:
            self._log.write(event, effects)
        for effect in effects:
            self._perform(effect, event, started_ns)

    def _perform(self, effect: Effect, event: Event, started_ns: Ns) -> None:
        ports = self._ports
        match effect:  # the cases are tried in turn: those of every request and step come first
            case Send():
                ports.outlet.send(self.node.id, effect.dst, effect.message)
            case Deliver():
                _needed(ports.edge, effect).deliver(effect)
            case RunStep():
                _needed(ports.steps, effect).run_step(effect.plan, event, started_ns)
            case Record():
                _needed(ports.edge, effect).record(effect)
            case End():
                _needed(ports.edge, effect).end(effect)
            case WakeAt():
                self._wake(effect)
            case Restart():
                raise EngineError(effect.reason)  # it ends the process, which its supervisor starts again
            case RunDenoise():
                _needed(ports.denoise, effect).run_denoise(effect.plan, event, started_ns)
            case StartCopy():
                _needed(ports.transport, effect).start_copy(effect.plan)
            case AbortCopy():
                _needed(ports.transport, effect).abort_copy(effect)
            case Propose():
                _needed(ports.group, effect).propose(effect)
            case Admitted():
                _needed(ports.edge, effect).admitted(effect)
            case Show():
                _needed(ports.edge, effect).show(effect)
            case Beat():
                raise InvariantError(f"{effect.replica} answered without content: only simulated engines do")
            case _:
                assert_never(effect)

    def _wake(self, effect: WakeAt) -> None:
        delay_s = max(0.0, s_from_ns(effect.at_ns - self._clock.now_ns()))
        handle = self._loop.call_later(delay_s, self._fire, effect.at_ns, effect.timer)
        if effect.replaces:
            if (before := self._timers.get(effect.timer)) is not None:
                before.cancel()
            self._timers[effect.timer] = handle

    def _fire(self, due_ns: Ns, timer: TimerId) -> None:
        # The loop's clock is coarser than ours and may call a little early; a timer never fires before its time.
        if (early_ns := due_ns - self._clock.now_ns()) > 0:
            handle = self._loop.call_later(s_from_ns(early_ns), self._fire, due_ns, timer)
            if timer in self._timers:
                self._timers[timer] = handle
            return
        self.feed(lambda at_ns: TimerFired(at_ns, timer, timer))

    def check(self) -> None:
        """Raise InvariantError unless the node's accounts add up."""
        self.node.check_invariants()

    def close(self) -> None:
        """End the event log."""
        if self._log is not None:
            self._log.close()


class LateFeed:
    """The driver's `feed`, for parts that are built before the driver is."""

    target: Callable[[Callable[[Ns], Event]], None]

    def __call__(self, make: Callable[[Ns], Event]) -> None:
        self.target(make)
