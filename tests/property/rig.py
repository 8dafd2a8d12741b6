"""One LLM machine with the fake engine, driven step by step."""

from collections import deque

from tests.property.fake_engine import FakeEngine, expected
from tests.property.llm_world import make_limits, make_request

from headway.core.decisions import Decision
from headway.core.plans import StepPlan
from headway.core.ports import ModelLimits
from headway.core.request import FinishReason, LlmRequest, Slo
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.llm.sequence import Seq
from headway.sched.llm.state import Ended
from headway.sched.registry import PolicyChoice


class Rig:
    """Checks invariants and outputs on the way; `plans` and `ended` keep what happened."""

    def __init__(
        self,
        *,
        limits: ModelLimits | None = None,
        belief: StepCost | None = None,
        order: str = "fcfs",
        order_params: dict[str, object] | None = None,
        chunk: str = "constant",
        chunk_params: dict[str, object] | None = None,
        **settings: object,
    ) -> None:
        self.limits = limits or make_limits()
        size = settings.get("step_tokens", 64)
        assert isinstance(size, int)
        params = {
            "max_seqs": 8,
            "step_tokens": 64,
            "chunk": PolicyChoice(chunk, chunk_params if chunk_params is not None else {"tokens": size}),
            "order": PolicyChoice(order, order_params or {}),
            "preemptions_max": 2,
            **settings,
        }
        self.belief = belief or StepCost(StepCostParams(kv_bytes_per_block=10**3, learn=False))
        self.machine = LlmMachine(LlmParams(**params), self.limits, self.belief)  # type: ignore[arg-type]
        self.engine = FakeEngine(self.limits.block_size)
        self.open: deque[StepPlan] = deque()
        self.plans: list[StepPlan] = []
        self.ended: dict[int, Ended] = {}
        self.requests: dict[int, LlmRequest] = {}
        self.tokens: dict[int, list[int]] = {}
        self.now = 0

    def add(self, request: LlmRequest, emitted: tuple[int, ...] = ()) -> int:
        """Queue a request."""
        seq = self.machine.add(request, emitted, self.now)
        self.requests[seq], self.tokens[seq] = request, list(emitted)
        return seq

    def new(self, prompt: int, max_tokens: int = 8, **options: object) -> int:
        """Queue a request with a prompt of its own; it generates exactly `max_tokens` unless told otherwise."""
        number = len(self.requests) + 1
        tokens = tuple(1 + (number * 7 + i * i) % 4 for i in range(prompt))
        options = {"ignore_eos": True, "arrived_ns": number, "seed": number, **options}
        options.setdefault("block_size", self.limits.block_size)
        return self.add(make_request(number, tokens, max_tokens, **options))  # type: ignore[arg-type]

    def add_resumed(self, tokens: int, slo: Slo) -> int:
        """Queue a request that had emitted `tokens` elsewhere."""
        number = len(self.requests) + 1
        request = make_request(
            number, (1, 2, 3), tokens + 4, ignore_eos=True, slo=slo, block_size=self.limits.block_size
        )
        return self.add(request, expected(request, tokens))

    def plan(self) -> StepPlan | None:
        """One plan, opened."""
        plan = self.machine.plan(self.now)
        self.machine.check_invariants()
        if plan is not None:
            self.open.append(plan)
            self.plans.append(plan)
        return plan

    def must_plan(self) -> StepPlan:
        """A plan that is there."""
        plan = self.plan()
        assert plan is not None
        return plan

    def done(self) -> list[Ended]:
        """The oldest open step ends."""
        result = self.engine.run(self.open.popleft())
        for seq, token in zip(result.seqs, result.tokens, strict=True):
            if seq not in self.ended:
                self.tokens[seq].append(token)
        ended = self.machine.step_done(result)
        self.machine.check_invariants()
        for one in ended:
            self.ended[one.seq] = one
        return ended

    def step(self) -> StepPlan:
        """Plan one and complete the oldest, keeping the pipeline full."""
        plan = self.plan()
        depth = self.machine.state.params.async_depth
        if plan is None or len(self.open) >= depth:
            self.done()
        return plan or self.plans[-1]

    def stop(self, seq: int, reason: FinishReason = FinishReason.CANCELLED) -> Ended | None:
        """Cancel."""
        ended = self.machine.stop(seq, reason, self.now)
        self.machine.check_invariants()
        if ended is not None:
            self.ended[seq] = ended
        return ended

    def drain(self, limit: int = 3000) -> None:
        """Run to the end; every output is the model's own and every block is back."""
        depth = self.machine.state.params.async_depth
        while True:
            if len(self.open) < depth and self.plan() is not None:
                continue
            if not self.open:
                break
            self.done()
            limit -= 1
            assert limit, "no progress"
        assert not self.machine.live, f"{self.machine.live} never ended"
        pool = self.machine.state.pool
        assert pool.available == pool.size
        for seq, ended in self.ended.items():
            request, got = self.requests[seq], tuple(self.tokens[seq])
            limit_tokens = min(request.sampling.max_tokens, self.limits.max_model_len - len(request.prompt))
            alone = expected(request, limit_tokens)
            assert got == alone[: len(got)]
            assert ended.output_tokens == len(got)
            if ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert got == alone

    def seq(self, number: int) -> Seq:
        """The machine's view of it."""
        return self.machine.state.seqs[number]

    def decisions(self, kind: str) -> list[Decision]:
        """Records of one kind since the last call."""
        return [one for one in self.machine.take_decisions() if one.kind == kind]

    def admitted(self) -> list[int]:
        """Sequences in order of admission so far."""
        return [chunk.seq for plan in self.plans for chunk in plan.chunks if chunk.table]
