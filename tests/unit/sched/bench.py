"""A WorkerNode alone: its plans run on a fake engine by hand, step by step."""

from typing import TypeVar

from headway.core.effects import Effect, RunStep, Send, WakeAt
from headway.core.events import Event, MessageArrived, PeerJoined, StepDone, StepFailed, TimerFired
from headway.core.ids import NodeId, TimerId
from headway.core.messages import Message, Submit
from headway.core.plans import StepPlan, StepTiming
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS, Ns
from headway.cost.llm import StepCost, StepCostParams
from headway.engines.synthetic.engine import SyntheticEngine, SyntheticParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import Membership, WorkerConfig, WorkerNode

M = TypeVar("M")
FRONT, CONTROL, REPLICA = NodeId("front-0"), NodeId("control-0"), NodeId("rep-a")
STEP_NS: Ns = 10 * NS_PER_MS


class Bench:
    """Feeds events, checks invariants, keeps plans until `step` runs the oldest."""

    def __init__(self, credits: int = 2, kv_blocks: int = 64, config: WorkerConfig | None = None) -> None:
        self.engine = SyntheticEngine(SyntheticParams(kv_blocks=kv_blocks, check=True))
        limits = self.engine.limits
        machine = LlmMachine(LlmParams(async_depth=credits), limits, StepCost(StepCostParams()), REPLICA)
        member = Membership(REPLICA, 1, (FRONT,), CONTROL)
        self.node = WorkerNode(member, machine, limits, config or WorkerConfig(credits=credits))
        self.now_ns: Ns = 0
        self.plans: list[StepPlan] = []
        self.last: list[Effect] = []
        self.event(PeerJoined(0, "t", FRONT, 1))

    def event(self, event: Event) -> list[Effect]:
        self.last = self.node.handle(event)
        self.node.check_invariants()
        self.plans += [effect.plan for effect in self.last if isinstance(effect, RunStep)]
        return self.last

    def message(self, message: Message, src: NodeId = FRONT) -> list[Effect]:
        return self.event(MessageArrived(self.now_ns, "t", src, message))

    def submit(
        self, request: LlmRequest, epoch: int = 1, emitted: tuple[int, ...] = (), number: int = 1
    ) -> list[Effect]:
        return self.message(Submit(request, epoch, emitted, number=number))

    def step(self, **timing: Ns) -> list[Effect]:
        """Run the oldest plan for STEP_NS."""
        plan = self.plans.pop(0)
        started_ns = self.now_ns
        self.now_ns += STEP_NS
        seqs, tokens, stopped = self.engine.apply(plan)
        times = StepTiming(started_ns, started_ns, self.now_ns, **timing)
        return self.event(StepDone(self.now_ns, "t", plan.step, seqs, tokens, times, stopped))

    def fail(self) -> list[Effect]:
        plan, self.plans = self.plans[0], []
        self.now_ns += STEP_NS
        return self.event(StepFailed(self.now_ns, "t", plan.step, "broken"))

    def fire(self, timer: str, at_ns: Ns) -> list[Effect]:
        self.now_ns = at_ns
        return self.event(TimerFired(at_ns, "t", TimerId(timer)))

    def sent(self, kind: type[M]) -> list[M]:
        return [e.message for e in self.last if isinstance(e, Send) and isinstance(e.message, kind)]

    def timers(self) -> list[tuple[str, Ns]]:
        return [(e.timer, e.at_ns) for e in self.last if isinstance(e, WakeAt)]

    def finish(self, most: int = 200) -> list[Effect]:
        """Step until nothing is planned; return every effect."""
        everything: list[Effect] = []
        for _ in range(most):
            if not self.plans:
                return everything
            everything += self.step()
        raise AssertionError(f"still busy after {most} steps")
