"""Decode steps that are alike are not events: they are predicted, and told in one piece to whoever looks.

Nothing is decided here and nothing changes by it (SPEC J6): a replica whose open steps all only decode, that says how
many more such steps nothing of its own ends (`StepPlan.ahead`), whose engine says the same, is let run. When anything
comes in, the steps that are done by then are told first (`StepsDone`), and fronts get their beats, each with its time.
Reports that nobody would act on are owed in the same way: the last one is made when somebody looks at the replica.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.core.events import Event, MessageArrived, RequestArrived, TimerFired
from headway.core.ids import NodeId
from headway.core.messages import Report, Tokens
from headway.core.plans import StepPlan
from headway.core.units import Ns
from headway.sched.nodes import ControlNode, FrontNode, WorkerNode
from headway.sched.reporter import REPORT_TIMER
from headway.sim.run import Run
from headway.sim.tokenless import TokenlessEngine

if TYPE_CHECKING:  # the driver owns the runs, and they schedule on the driver
    from headway.sim.driver import Life, Simulation

LEAST: Final = 2  # steps; fewer are not worth it

Pair = tuple[NodeId, NodeId]


class Runs:
    """All runs, and the beats that fronts have not been told of."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self.open: dict[NodeId, Run] = {}  # by replica
        self.beats: dict[Pair, list[Tokens]] = {}  # (front, replica) -> messages whose times are those of arrival
        self.is_telling = False  # the turns that go on now are about the past
        self._due_ns: dict[Pair, Ns] = {}  # when a front must hear of beats
        self._paid_by_ns: Ns = 0  # the present, while a report of the past is made

    # Begin and end

    def begin(self, life: "Life", plan: StepPlan) -> None:
        """Let a replica run that has just handed over a plan, if nothing stands against it."""
        sim, node, executor = self._sim, life.node, life.executor
        if executor is None or not isinstance(executor.engine, TokenlessEngine) or not sim.params.jumps:
            return
        if sim.network.is_disturbed or sim.clients.counts_tokens or executor.may_fail:
            return
        if not isinstance(node, WorkerNode) or not node.is_plain:
            return
        if any(opened.ahead < 0 for opened, _timing in executor.open.values()):
            return
        quiet = executor.engine.quiet()
        end = plan.step + plan.ahead
        first = min(executor.open)
        if quiet is not None:
            end = min(end, first - 1 + quiet)
        if end - len(executor.open) - first + 1 < LEAST:
            return
        run = Run(life, node, executor, plan, end)
        executor.is_ahead = True
        executor.halt = partial(self.halt, run)
        self.open[node.id] = life.run = run
        self._go_on(run)

    def _go_on(self, run: Run) -> None:
        """Predict some steps, and come back when they are over."""
        run.predict()
        if run.report_ns is not None and not run.is_brisk:
            self._demand(run)
        self._sim.schedule(run.done_ns(run.last - run.depth), self._reached, run)
        self._watch(run.node.id)

    def _reached(self, run: Run) -> None:
        if run.life.run is not run:
            return
        if run.last < run.end:
            self._go_on(run)
            return
        self.halt(run)

    def cut(self, run: Run) -> None:
        """From here on each step is an event of its own."""
        executor = run.executor
        run.life.run = None
        del self.open[run.node.id]
        executor.is_ahead, executor.halt = False, None
        if run.report_ns is not None:
            self._ring(run)
        for step in range(run.told + 1, run.told + run.depth + 1):
            if step >= run.base + run.depth:  # the first ones were handed over as any other
                executor.end_at(*executor.open[step])

    # Look

    def catch_up(self, run: Run, since_ns: Ns | None = None) -> None:
        """Tell the replica what is done by now, when something happens that was arranged at `since_ns`; unset: now."""
        now_ns = self._sim.now_ns
        event = run.tell(now_ns, now_ns if since_ns is None else since_ns)
        if event is not None:
            self._turn(run.life, event)

    def _turn(self, life: "Life", event: Event) -> None:
        was, self.is_telling = self.is_telling, True
        self._sim.turn(life, event)
        self.is_telling = was

    def before(self, life: "Life", event: Event) -> None:
        """A node is about to handle an event: what it reads is brought up to date."""
        node = life.node
        if life.run is not None:
            self._pay(life.run)
            is_timer = type(event) is TimerFired
            self.catch_up(life.run, event.at_ns - life.run.node.worker.reporter.interval_ns if is_timer else None)
        elif isinstance(node, FrontNode):
            replicas = node.reads(event)
            if replicas is None:
                self.settle(life)
                return
            if type(event) is RequestArrived:  # whoever routes looks at every replica's report
                for run in list(self.open.values()):
                    self._pay(run)
            for replica in replicas:
                self._tell(life, replica)

    def settle(self, front: "Life | None" = None) -> None:
        """Tell one front, or everybody, everything up to now."""
        for run in list(self.open.values()):
            self._pay(run)
            self.catch_up(run)
        for name, replica in list(self.beats):
            if front is None or name == front.node.id:
                self._tell(self._sim.lives[name], replica)

    def _tell(self, front: "Life", replica: NodeId) -> None:
        """Tell a front the beats of a replica that have arrived by now."""
        run = self.open.get(replica)
        if run is not None:
            self._pay(run)
            self.catch_up(run)
        waiting = self.beats.pop((front.node.id, replica), None)
        if waiting is None:
            return
        now_ns, late = self._sim.now_ns, []
        for message in waiting:
            times = message.times
            if times[-1] > now_ns:
                early = tuple([time for time in times if time <= now_ns])
                late.append(replace(message, times=times[len(early) :], left=() if early else message.left))
                if not early:
                    continue
                message = replace(message, times=early)
            if front.is_alive:
                self._turn(front, MessageArrived(message.times[-1], replica, replica, message))
        if late:
            self.beats[front.node.id, replica] = late

    def sent(self, replica: NodeId, front: NodeId, message: Tokens) -> None:
        """Beats of several steps are on their way."""
        arrival = self._sim.network.arrival
        times = tuple([arrival(replica, front, sent_ns) for sent_ns in message.times])
        waiting = self.beats.setdefault((front, replica), [])
        if waiting and not message.left:
            waiting[-1] = replace(waiting[-1], times=waiting[-1].times + times, step=message.step)
        else:
            waiting.append(replace(message, times=times))

    # What fronts wait for

    def _watch(self, replica: NodeId) -> None:
        """Each front hears in time of the beat that something there depends on."""
        for name, life in self._sim.lives.items():
            node = life.node
            if not isinstance(node, FrontNode) or (due := node.beats_due(replica)) is None:
                continue
            at_ns = self._arrival(name, replica, due)
            if at_ns is not None and self._due_ns.get((name, replica)) != at_ns:
                self._due_ns[name, replica] = at_ns
                self._sim.schedule(at_ns, self._is_due, (life, replica))

    def _arrival(self, front: NodeId, replica: NodeId, due: int) -> Ns | None:
        """When the beat number `due` from those told arrives; None: not as far as is predicted."""
        for message in self.beats.get((front, replica), ()):
            if due <= len(message.times):
                return message.times[due - 1]
            due -= len(message.times)
        run = self.open.get(replica)
        if run is None or run.told + due > run.last:
            return None
        return run.done_ns(run.told + due) + self._sim.network.params.latency_ns

    def _is_due(self, what: "tuple[Life, NodeId]") -> None:
        life, replica = what
        self._due_ns.pop((life.node.id, replica), None)
        self._tell(life, replica)
        self._watch(replica)

    def stop(self) -> None:
        """The world changes: whatever is not handed over by now is not predicted any more."""
        for run in list(self.open.values()):
            self.halt(run)

    def halt(self, run: Run) -> None:
        """The same for one replica."""
        self._pay(run)
        self.catch_up(run)
        self.cut(run)

    # Reports

    def rang(self, due: "tuple[Life, TimerFired]") -> None:
        """A timer is due that was not replaced. A report that nobody would act on will be made when somebody looks."""
        life, event = due
        if life.moved.get(event.timer, event.at_ns) != event.at_ns:
            return
        run = life.run
        if event.timer != REPORT_TIMER or run is None or not life.is_alive or not run.is_brisk or self._is_wanted():
            self._sim.happen(due)
        else:
            run.report_ns = event.at_ns

    def _is_wanted(self) -> bool:
        nodes = (life.node for life in self._sim.lives.values() if life.hears and life.is_alive)
        return any(isinstance(node, FrontNode | ControlNode) and node.wants_reports for node in nodes)

    def want(self) -> None:
        """From now on somebody acts on reports."""
        for run in self.open.values():
            if run.report_ns is not None:
                self._demand(run)

    def _demand(self, run: Run) -> None:
        self._pay(run)
        self._ring(run)

    def _ring(self, run: Run) -> None:
        """The timer of the next report is an event again."""
        at_ns, run.report_ns = run.report_ns, None
        if at_ns is not None:
            self._sim.schedule(at_ns, self.rang, (run.life, TimerFired(at_ns, REPORT_TIMER, REPORT_TIMER)))

    def _pay(self, run: Run) -> None:
        """Make the last report that is owed by now; and the one before, where that is what has arrived by now."""
        first_ns, now_ns = run.report_ns, self._sim.now_ns
        if first_ns is None or first_ns > now_ns:
            return
        times = tuple(range(first_ns, now_ns + 1, run.node.worker.reporter.interval_ns))
        if len(times) > 1 and times[-1] + self._sim.network.params.latency_ns >= now_ns:
            self._make(run, times[:-1])
            times = times[-1:]
        self._make(run, times)

    def _make(self, run: Run, times: tuple[Ns, ...]) -> None:
        sim, at_ns = self._sim, times[-1]
        run.report_ns, self._paid_by_ns, sim.now_ns = None, sim.now_ns, at_ns
        self.catch_up(run, at_ns - run.node.worker.reporter.interval_ns)
        self._turn(run.life, TimerFired(at_ns, REPORT_TIMER, REPORT_TIMER, times[:-1]))
        sim.now_ns, self._paid_by_ns = self._paid_by_ns, 0

    def takes(self, life: "Life", at_ns: Ns) -> bool:
        """The timer of the report after one that is being made: it is owed too."""
        if not self._paid_by_ns or life.run is None:
            return False
        life.run.report_ns = at_ns
        return True

    def reported(self, replica: NodeId, dst: "Life", message: Report) -> None:
        """A report of the past is on its way, or there."""
        sim = self._sim
        earlier = tuple([sim.network.arrival(replica, dst.node.id, sent_ns) for sent_ns in message.earlier])
        at_ns = sim.network.arrival(replica, dst.node.id, sim.now_ns)
        event = MessageArrived(at_ns, replica, replica, replace(message, earlier=earlier))
        if at_ns >= self._paid_by_ns:
            sim.schedule(at_ns, sim.happen, (dst, event))
        elif dst.is_alive:
            self._turn(dst, event)

    @property
    def is_paying(self) -> bool:
        """A report of the past is being made."""
        return self._paid_by_ns > 0
