"""Decode steps that are alike are not events: they are predicted, and told in one piece to whoever looks.

Nothing is decided here and nothing changes by it (SPEC J6): a replica whose open steps all only decode, that says how
many more such steps nothing of its own ends (`StepPlan.ahead`), whose engine says the same, is let run. When anything
comes in, the steps that are done by then are told first (`StepsDone`), and fronts get their beats, each with its time.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.core.events import Event, MessageArrived, StepsDone
from headway.core.ids import NodeId
from headway.core.messages import Tokens
from headway.core.plans import StepPlan, StepTiming
from headway.core.units import Ns
from headway.sched.nodes import FrontNode, WorkerNode
from headway.sim.executor import SimExecutor, Timeline
from headway.sim.tokenless import TokenlessEngine

if TYPE_CHECKING:  # the driver owns the runs, and they schedule on the driver
    from headway.sim.driver import Life, Simulation

SPAN: Final = 8  # steps that are predicted at a time: what comes in makes the rest void
LEAST: Final = 2  # steps; fewer are not worth it

Pair = tuple[NodeId, NodeId]


class Run:
    """Steps `base`.. of one replica up to `end`; those up to `told` are done and told."""

    __slots__ = ("base", "depth", "end", "engine", "executor", "life", "line", "node", "plan", "timings", "told")

    def __init__(self, life: "Life", node: WorkerNode, executor: SimExecutor, plan: StepPlan, end: int) -> None:
        self.life, self.node, self.executor, self.plan, self.end = life, node, executor, plan, end
        assert isinstance(executor.engine, TokenlessEngine)
        self.engine = executor.engine
        opened = sorted(executor.open)
        self.depth = len(opened)
        self.base = opened[0]
        self.told = self.base - 1
        self.timings: list[StepTiming] = [executor.open[step][1] for step in opened]
        self.line: Timeline = executor.line.copy()

    @property
    def last(self) -> int:
        """The last step that is predicted."""
        return self.base + len(self.timings) - 1

    def done_ns(self, step: int) -> Ns:
        """When a step that is predicted is done."""
        return self.timings[step - self.base].done_ns

    def at(self, step: int) -> StepPlan:
        """The plan of a step: rows as in `plan`, each with one token more per step."""
        like = self.plan
        kv_tokens = like.kv_tokens + like.decodes * (step - like.step)
        return StepPlan(
            step, 0, "decode", decodes=like.decodes, kv_tokens=kv_tokens, bucket=like.bucket, graph=like.graph, ahead=0
        )

    def predict(self) -> None:
        """Some steps more."""
        timings, base, depth = self.timings, self.base, self.depth
        truth, line = self.executor.truth, self.line
        for step in range(self.last + 1, min(self.last + SPAN, self.end) + 1):
            plan = self.at(step)
            planned_ns = timings[step - depth - base].done_ns
            timings.append(line.step(planned_ns, truth.host_ns(plan), truth.step_ns(plan)))

    def tell(self, now_ns: Ns) -> StepsDone | None:
        """What is done by now and was not told; the executor stands where it would if each had been an event."""
        timings, base, depth, before = self.timings, self.base, self.depth, self.told
        place = begin = before + 1 - base
        most = len(timings) - depth
        while place < most and timings[place].done_ns <= now_ns:
            place += 1
        if place == begin:
            return None
        executor, told = self.executor, timings[begin:place]
        self.told = base + place - 1
        for step in range(before + 1, self.told + 1):
            executor.open.pop(step, None)
        for step in range(self.told + 1, self.told + depth + 1):
            if step not in executor.open:
                executor.open[step] = self.at(step), timings[step - base]
        for timing in timings[begin + depth : place + depth]:
            executor.busy_ns += timing.done_ns - timing.started_ns
        executor.steps += len(told)
        executor.line.stand(timings[place + depth - 1])
        self.engine.skip(len(told))
        planned = [timings[place + i - depth].done_ns if place + i >= depth else 0 for i in range(depth)]
        last_ns = told[-1].done_ns
        return StepsDone(last_ns, "steps", before + 1, tuple(told), tuple(planned), self.engine.beat)


class Runs:
    """All runs, and the beats that fronts have not been told of."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self.open: dict[NodeId, Run] = {}  # by replica
        self.beats: dict[Pair, list[Tokens]] = {}  # (front, replica) -> messages whose times are those of arrival
        self._due_ns: dict[Pair, Ns] = {}  # when a front must hear of beats

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
        for step in range(run.told + 1, run.told + run.depth + 1):
            if step >= run.base + run.depth:  # the first ones were handed over as any other
                executor.end_at(*executor.open[step])

    # Look

    def catch_up(self, run: Run) -> None:
        """Tell the replica what is done by now."""
        event = run.tell(self._sim.now_ns)
        if event is not None:
            self._sim.handle(run.life, event)

    def before(self, life: "Life", event: Event) -> None:
        """A node is about to handle an event: what it reads is brought up to date."""
        node = life.node
        if life.run is not None:
            self.catch_up(life.run)
        elif isinstance(node, FrontNode):
            replicas = node.reads(event)
            if replicas is None:
                self.settle(life)
            else:
                for replica in replicas:
                    self._tell(life, replica)

    def settle(self, front: "Life | None" = None) -> None:
        """Tell one front, or everybody, everything up to now."""
        for run in list(self.open.values()):
            self.catch_up(run)
        for name, replica in list(self.beats):
            if front is None or name == front.node.id:
                self._tell(self._sim.lives[name], replica)

    def _tell(self, front: "Life", replica: NodeId) -> None:
        """Tell a front the beats of a replica that have arrived by now."""
        run = self.open.get(replica)
        if run is not None:
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
                self._sim.handle(front, MessageArrived(message.times[-1], replica, replica, message))
        if late:
            self.beats[front.node.id, replica] = late

    def sent(self, replica: NodeId, front: NodeId, message: Tokens) -> None:
        """Beats of several steps are on their way."""
        arrival = self._sim.network.arrival
        times = tuple([arrival(replica, front, sent_ns) for sent_ns in message.times])
        self.beats.setdefault((front, replica), []).append(replace(message, times=times))

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
        self.catch_up(run)
        self.cut(run)
