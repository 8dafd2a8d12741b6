"""One replica's decode steps while nothing else happens there: predicted some at a time, told in pieces."""

from typing import TYPE_CHECKING, Final

from headway.core.events import StepsDone
from headway.core.plans import StepPlan, StepTiming
from headway.core.units import Ns
from headway.sched.nodes import WorkerNode
from headway.sim.executor import SimExecutor, Timeline
from headway.sim.tokenless import TokenlessEngine

if TYPE_CHECKING:  # a life knows its run
    from headway.sim.life import Life

SPAN: Final = 8  # steps that are predicted at first, then twice as many each time: what comes in makes the rest void
SPAN_MAX: Final = 64


class Run:
    """Steps `base`.. of one replica up to `end`; those up to `told` are done and told."""

    __slots__ = (
        "base",
        "depth",
        "end",
        "engine",
        "executor",
        "is_brisk",
        "life",
        "line",
        "node",
        "plan",
        "report_ns",
        "timings",
        "told",
    )

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
        self.report_ns: Ns | None = None  # since when a report is owed; then one each interval
        self.is_brisk = True  # no step takes longer than that interval

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
        span = max(SPAN, min(SPAN_MAX, len(timings)))
        for step in range(self.last + 1, min(self.last + span, self.end) + 1):
            plan = self.at(step)
            planned_ns = timings[step - depth - base].done_ns
            timing = line.step(planned_ns, truth.host_ns(plan), truth.step_ns(plan))
            if timing.done_ns - planned_ns >= self.node.worker.reporter.interval_ns:
                self.is_brisk = False
            timings.append(timing)

    def _planned_ns(self, place: int) -> Ns:
        if place >= self.depth:
            return self.timings[place - self.depth].done_ns
        return self.timings[place].launched_ns - self.timings[place].plan_ns

    def tell(self, now_ns: Ns, since_ns: Ns) -> StepsDone | None:
        """What is done by now and was not told. A step that ends just now is, if it was planned before `since_ns`, when
        what happens now was arranged: equal times run in the order in which they were arranged.
        The executor stands where it would if each had been an event."""
        timings, base, depth, before = self.timings, self.base, self.depth, self.told
        place = begin = before + 1 - base
        most = len(timings) - depth
        while place < most and timings[place].done_ns < now_ns:
            place += 1
        if place < most and timings[place].done_ns == now_ns and self._planned_ns(place) < since_ns:
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
