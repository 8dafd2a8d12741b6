"""The virtual-clock driver: feeds nodes events in (time, number) order and performs their effects. Decides nothing."""

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec

from headway.core.effects import (
    AbortCopy,
    Admitted,
    Beat,
    Deliver,
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
from headway.core.events import (
    ClientGone,
    Event,
    MessageArrived,
    PeerJoined,
    PeerLost,
    RequestArrived,
    TimerFired,
)
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Report, Tokens
from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.reporter import REPORT_TIMER
from headway.sim.ahead import Runs
from headway.sim.clients import Clients, Sink, Stream
from headway.sim.edge import Edge
from headway.sim.eventlog import EventLog, Turn
from headway.sim.executor import SimExecutor
from headway.sim.groups import Groups
from headway.sim.life import Life as Life
from headway.sim.life import Machine as Machine
from headway.sim.network import Network, NetworkParams
from headway.sim.offers import Offers
from headway.sim.transport import Copies
from headway.workload.offered import Source

Action: TypeAlias = Callable[[Ns], None]
Do: TypeAlias = Callable[[Any], None]  # Any: each action on the heap stands with its own kind of argument


class SimParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`check`: every node's invariants after each of its events. `log`: keep every turn. `jumps`: rows of engines
    without content are counted, not visited; decisions, records and times are the same without."""

    network: NetworkParams = NetworkParams()
    check: bool = False
    log: bool = False
    jumps: bool = True
    flush_ns: Ns = 10_000  # from the last token to the closed stream


class Simulation:
    """Nodes, clients and their world on one heap of (time, number)."""

    def __init__(self, params: SimParams, sink: Sink | None = None) -> None:
        """`sink` takes what is over, and nothing of it is kept; without one `clients` keeps everything."""
        self.now_ns: Ns = 0
        self.params = params
        self.clients, self.network, self.log = Clients(sink), Network(params.network), EventLog()
        self.lives: dict[NodeId, Life] = {}
        self.groups, self.copies, self.offers = Groups(self), Copies(self), Offers(self)
        self.runs = Runs(self)
        self.turns = 0
        self._is_watched = params.check or params.log
        self._machines: dict[NodeId, Machine] = {}
        self._heap: list[tuple[Ns, int, Do, object]] = []
        self._number = 0
        edge = Edge(self)
        self._effects: dict[type, Callable[[Life, Any], None]] = {  # Any: each with its own kind of effect
            Send: self._send,
            RunStep: self._run_step,
            Deliver: edge.deliver,
            Beat: edge.beat,
            Show: lambda _, effect: self.clients.show(effect),
            WakeAt: self._wake,
            Admitted: lambda _, effect: self.clients.admitted(effect),
            End: edge.end,
            Record: edge.record,
            RunDenoise: self._run_denoise,
            Restart: self._renew,
            StartCopy: lambda life, effect: self.copies.start(life, effect.plan),
            AbortCopy: lambda life, effect: self.copies.abort(life, effect.transfer),
            Propose: lambda life, effect: self.groups.propose(life, effect),
        }

    # Time

    def at(self, at_ns: Ns, action: Action) -> None:
        """Run an action at a time; equal times run in the order of this call."""
        self.schedule(at_ns, self._act, action)

    def _act(self, action: Action) -> None:
        action(self.now_ns)

    def schedule(self, at_ns: Ns, do: Do, what: object) -> None:
        """Call `do(what)` at a time; equal times run in the order of this call."""
        self._number += 1
        now_ns = self.now_ns
        heapq.heappush(self._heap, (at_ns if at_ns > now_ns else now_ns, self._number, do, what))

    def run(self, until_ns: Ns | None = None, is_done: Callable[[], bool] | None = None) -> None:
        """Run to the end of all events, to a time, or until `is_done` answers yes after an event."""
        heap, pop = self._heap, heapq.heappop
        while heap:
            if until_ns is not None and heap[0][0] > until_ns:
                self.now_ns = until_ns
                break
            self.now_ns, _, do, what = pop(heap)
            do(what)
            if is_done is not None and is_done():
                break
        self.runs.settle()

    def serve(self, until_ns: Ns | None = None) -> bool:
        """Run until every source is dry and every request has its record; False: `until_ns` came first."""
        if not self.is_served():
            self.run(until_ns, self.is_served)
        return self.is_served()

    def is_served(self) -> bool:
        """Every source is dry, and every request has its record."""
        return not self.offers.waiting and not self.clients.unrecorded

    # Nodes

    def add(self, node: NodeId, machine: Machine) -> None:
        """Start a node; all nodes learn of each other at once."""
        self._machines[node] = machine
        self._start(node, 1)

    def _start(self, node: NodeId, incarnation: int) -> None:
        machine = self._machines[node]
        life = Life(machine.build(incarnation), incarnation)
        if node in self.lives:
            life.follows(self.lives[node])
        self.lives[node] = life
        if machine.truth is not None:
            engine = None if machine.engine is None else machine.engine()
            if engine is not None and not self.params.jumps:
                engine.beat = -1
            life.executor = SimExecutor(machine.truth, engine, partial(self.promise, life))
            life.executor.painter = None if machine.painter is None else machine.painter()
        for peer, other in list(self.lives.items()):
            if peer != node and other.is_alive:
                self._tell(peer, node, lambda at_ns: PeerJoined(at_ns, "start", node, incarnation))
                joined = other.incarnation
                self._tell(node, peer, lambda at_ns, p=peer, i=joined: PeerJoined(at_ns, "start", p, i))  # type: ignore[misc]  # mypy cannot infer lambdas with defaults

    def promise(self, life: Life, at_ns: Ns, make: Callable[[Ns], Event | None]) -> None:
        """Make an event at a time, and let a node handle it if it still lives."""
        self.schedule(at_ns, self._finish, (life, make))

    def _finish(self, due: tuple[Life, Callable[[Ns], Event | None]]) -> None:
        life, make = due
        if life.is_alive and (event := make(self.now_ns)) is not None:
            self.turn(life, event)

    def _tell(self, dst: NodeId, src: NodeId, make: Callable[[Ns], Event]) -> None:
        """Deliver an event that a connection carries, FIFO with its messages."""
        at_ns = self.network.arrival(src, dst, self.now_ns)
        self.schedule(at_ns, self.happen, (self.lives[dst], make(at_ns)))

    def happen(self, due: tuple[Life, Event]) -> None:
        """An event that was due at a node; nothing when the node died meanwhile."""
        life, event = due
        if life.is_alive:
            self.turn(life, event)

    def kill(self, node: NodeId) -> None:
        """The node's process dies: what it has not sent is lost; peers notice after a while."""
        life = self.lives[node]
        if life.run is not None:
            self.runs.halt(life.run)
        life.is_alive = False
        self.copies.forget(node)
        incarnation = life.incarnation

        def notice(_: Ns) -> None:
            for peer, other in list(self.lives.items()):
                if peer != node and other.is_alive:
                    self._tell(peer, node, lambda now_ns: PeerLost(now_ns, "kill", node, incarnation))

        self.at(self.now_ns + self.params.network.detect_ns, notice)

    def restart(self, node: NodeId) -> None:
        """The node comes back empty, with a higher incarnation."""
        self._start(node, self.lives[node].incarnation + 1)

    def feed(self, node: NodeId, event: Event) -> None:
        """Hand an event to a node now."""
        life = self.lives[node]
        if life.is_alive:
            self.turn(life, event)

    def turn(self, life: Life, event: Event) -> None:
        """A node handles an event, and what it answers is done. What ran ahead is told before."""
        runs = self.runs
        is_now = not runs.is_telling
        if is_now and (runs.open or runs.beats):
            runs.before(life, event)
        effects = life.node.handle(event)
        self.turns += 1
        if self._is_watched:
            if self.params.check:
                life.node.check_invariants()
            if self.params.log:
                self.log.write(Turn(life.node.id, life.incarnation, event, effects))
        perform = self._effects
        for effect in effects:
            perform[type(effect)](life, effect)
        if is_now and runs.open:
            if life.hears and life.node.wants_reports:  # type: ignore[attr-defined]  # nodes that hear have it
                runs.want()
            elif life.run is not None and not life.run.node.is_plain:
                runs.cut(life.run)

    # Effects

    def _run_step(self, life: Life, effect: RunStep) -> None:
        assert life.executor is not None
        life.executor.run_step(effect.plan, self.now_ns)
        if effect.plan.ahead > 0:
            self.runs.begin(life, effect.plan)

    def _run_denoise(self, life: Life, effect: RunDenoise) -> None:
        assert life.executor is not None
        life.executor.run_denoise(effect.plan, self.now_ns)

    def _renew(self, life: Life, _: Restart) -> None:
        self.kill(life.node.id)  # a supervisor starts it again when everybody has noticed
        self.at(self.now_ns + self.params.network.detect_ns + 1, lambda _: self.restart(life.node.id))

    def _wake(self, life: Life, effect: WakeAt) -> None:
        at_ns, timer = max(effect.at_ns, self.now_ns), effect.timer
        if effect.replaces:
            life.moved[timer] = at_ns
        if timer != REPORT_TIMER or not self.runs.takes(life, at_ns):
            self.schedule(at_ns, self.runs.rang, (life, TimerFired(at_ns, timer, timer)))

    def _send(self, life: Life, effect: Send) -> None:
        src, dst, message = life.node.id, effect.dst, effect.message
        if type(message) is Tokens and message.times:
            self.runs.sent(src, dst, message)
            return
        if self.runs.is_paying and dst in self.lives and isinstance(message, Report):
            self.runs.reported(src, self.lives[dst], message)
            return
        if dst not in self.lives or (self.network.drop is not None and self.network.drop(src, dst, message)):
            return
        at_ns = self.network.arrival(src, dst, self.now_ns)
        self.schedule(at_ns, self.happen, (self.lives[dst], MessageArrived(at_ns, src, src, message)))

    # Clients

    def arrive(
        self,
        front: NodeId,
        request: Request,
        at_ns: Ns,
        *,
        leave_after: int | None = None,
        stop_after: int | None = None,
    ) -> None:
        """A client sends a request at a time."""

        def send(now_ns: Ns) -> None:
            self.clients.start(request.id, Stream(now_ns, leave_after=leave_after, stop_after=stop_after))
            self.feed(front, RequestArrived(now_ns, request.id, request, now_ns, now_ns))

        self.at(at_ns, send)

    def offer(self, front: NodeId, source: Source) -> None:
        """Let a source's requests arrive at a front, each pulled when the one before it has arrived."""
        self.offers.open(front, source)

    def leave(self, front: NodeId, request: RequestId) -> None:
        """A client disconnects now, wherever its request is."""
        stream = self.clients.streams.get(request)
        if stream is not None and stream.end is None and not stream.has_left:
            stream.has_left = True
            self.feed(front, ClientGone(self.now_ns, "client", request))
