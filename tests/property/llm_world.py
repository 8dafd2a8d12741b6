"""A random world around one LLM machine: arrivals, cancels, freezes, inputs, cache resets; up to four open steps.

Every token that lands is compared with what the model says alone, so each world is a case of SPEC B7.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random

from tests.property.fake_engine import FakeEngine, expected

from headway.core.blockhash import block_hashes, cache_root
from headway.core.errors import RequestError
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import StepPlan
from headway.core.ports import ModelLimits
from headway.core.request import FinishReason, LlmRequest, SamplingParams, Slo
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.llm.sequence import SeqState
from headway.sched.llm.state import Ended
from headway.sched.registry import PolicyChoice

TICK_NS = 1_000_000
MODEL = ModelId("fake")
ROOTS = (cache_root(model="fake"), cache_root(model="fake", salt="other"))


def make_limits(
    *, block_size: int = 4, kv_blocks: int = 32, host_slots: int = 0, max_model_len: int = 100
) -> ModelLimits:
    """Limits of a fake engine."""
    return ModelLimits("fake", 5, max_model_len, block_size, kv_blocks, 1000, host_slots, 1, (0,), "f32", "none")


def make_request(
    number: int,
    prompt: tuple[int, ...],
    max_tokens: int = 16,
    *,
    arrived_ns: int = 0,
    urgency: int = 0,
    tenant: str = "t",
    weight: int = 1,
    seed: int = 0,
    ignore_eos: bool = False,
    slo: Slo | None = None,
    predicted: int | None = None,
    block_size: int = 4,
    root: bytes = ROOTS[0],
    hashes: tuple[bytes, ...] | None = None,
) -> LlmRequest:
    """A request of the fake model."""
    return LlmRequest(
        RequestId(f"req-{number}"),
        TenantId(tenant),
        MODEL,
        prompt,
        SamplingParams(max_tokens=max_tokens, seed=seed, ignore_eos=ignore_eos),
        arrived_ns,
        slo=slo or Slo(),
        urgency=urgency,
        block_hashes=block_hashes(root, prompt, block_size) if hashes is None else hashes,
        cache_root=root,
        output_tokens_predicted=predicted,
        tenant_weight=weight,
    )


@dataclass(frozen=True)
class WorldConfig:
    """One configuration of machine and world."""

    params: LlmParams
    limits: ModelLimits
    kv_bytes_per_block: int
    weak_hashes: bool = False  # five hash values: only tokens and parents keep the cache right
    arrival_rate: float = 0.3
    cancel_rate: float = 0.02
    odd_rate: float = 0.02  # freezes, waits for inputs, cache resets
    turns: int = 60
    burst: int = 1  # arrivals at a time
    urgencies: int = 4
    endless_rate: float = 0.3  # requests that end at their limit only
    picks_by_state: bool = False  # cancels hit those that are swapped out, held or stalled as often as those that run
    lessons: int = 0  # steps that the belief has seen: with few it wants each to teach, and none is told to be alike


ORDERS = ("fcfs", "priority", "shortest_predicted", "shortest_remaining", "least_slack", "lpm", "fair")


def random_order(rng: Random, name: str) -> PolicyChoice:
    """Parameters at which the policy's rules bite within a few events."""
    params: dict[str, dict[str, object]] = {
        "priority": {"age_ms": rng.choice([1, 5, 50, 1000]), "min_gap": rng.choice([1, 2, 3])},
        "shortest_predicted": {"unknown_tokens": rng.choice([1, 20]), "stretch": rng.choice([1, 10])},
        "shortest_remaining": {"unknown_tokens": rng.choice([1, 20]), "stretch": rng.choice([1, 10])},
        "least_slack": {"default_ms": rng.choice([1, 50])},
        "lpm": {"queue_max": rng.choice([2, 4, 64]), "skips_max": rng.choice([0, 1, 4])},
        "fair": {"output_cost": rng.choice([1, 2])},
    }
    return PolicyChoice(name, params.get(name, {}))


def random_chunk(rng: Random, step_tokens: int) -> PolicyChoice:
    """A chunk policy that fits the step."""
    name = rng.choice(["constant", "constant", "tpot_budget", "dynamic"])
    tokens = rng.randint(1, min(12, step_tokens))
    if name == "constant":
        return PolicyChoice(name, {"tokens": tokens})
    return PolicyChoice(name, {"tokens": tokens, "tokens_min": rng.randint(1, tokens)})


def random_config(rng: Random, orders: tuple[str, ...] = ORDERS) -> WorldConfig:
    """Small and hostile: few blocks, small steps."""
    order = random_order(rng, rng.choice(orders))
    max_seqs = rng.choice([1, 2, 4, 8])
    step_tokens = max_seqs + rng.randint(0, 20)
    depth = rng.randint(1, 4)
    swap = rng.random() < 0.4
    params = LlmParams(
        max_seqs=max_seqs,
        step_tokens=step_tokens,
        chunk=random_chunk(rng, step_tokens),
        order=order,
        prefix_cache=order.type == "lpm" or rng.random() < 0.8,
        async_depth=depth,
        overlap_prefills=depth == 1 or rng.random() < 0.7,
        watermark=rng.choice([0, 0, 1, 3]),
        preemptions_max=rng.choice([0, 1, 2, 4]),
        swap=swap,
    )
    limits = make_limits(
        block_size=rng.choice([1, 2, 3, 4, 8]),
        kv_blocks=rng.randint(8, 40),
        host_slots=rng.randint(1, 20) if swap else 0,
        max_model_len=rng.choice([30, 60, 100]),
    )
    return WorldConfig(
        params,
        limits,
        kv_bytes_per_block=rng.choice([10**3, 10**9]),
        weak_hashes=rng.random() < 0.2,
        arrival_rate=rng.choice([0.05, 0.3, 0.8]),
        cancel_rate=rng.choice([0.0, 0.02, 0.1]),
        odd_rate=rng.choice([0.0, 0.03, 0.1]),
    )


class World:
    """Plays one world to its end and checks everything on the way."""

    def __init__(self, rng: Random, config: WorldConfig) -> None:
        self.rng, self.config = rng, config
        params, limits = config.params, config.limits
        belief = StepCost(StepCostParams(kv_bytes_per_block=config.kv_bytes_per_block, learn=False))
        belief.observed = config.lessons
        self.machine = LlmMachine(params, limits, belief)
        self.engine = FakeEngine(limits.block_size)
        self.engine.knows_output = lambda seq: seq % 2 == 0
        self.flight: list[StepPlan] = []
        self.live: dict[int, LlmRequest] = {}
        self.limit: dict[int, int] = {}
        self.got: dict[int, list[int]] = {}
        self.ended: dict[int, Ended] = {}
        self.frozen: dict[int, int] = {}
        self.history: list[tuple[int, ...]] = [()]
        self.held: list[int] = []
        self.numbers = self.now = 0
        self.stats: Counter[str] = Counter()

    # What happens

    def request(self) -> LlmRequest:
        """A prompt that often continues an older conversation."""
        rng = self.rng
        base = rng.choice(self.history)
        prompt = base[: rng.randint(0, min(len(base), 24))]
        prompt += tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 20)))
        self.numbers += 1
        size, root = self.config.limits.block_size, rng.choice(ROOTS)
        hashes = block_hashes(root, prompt, size)
        if self.config.weak_hashes:
            hashes = tuple(bytes([key[0] % 5]) * 16 for key in hashes)
        slo = Slo(
            ttft_deadline_ns=(self.now + rng.randint(0, 40)) * TICK_NS if rng.random() < 0.5 else None,
            tpot_ns=rng.randint(1, 10) * 1_000_000 if rng.random() < 0.5 else None,
            e2e_deadline_ns=(self.now + rng.randint(0, 100)) * TICK_NS if rng.random() < 0.3 else None,
        )
        return make_request(
            self.numbers,
            prompt,
            rng.randint(1, 30),
            arrived_ns=self.now * TICK_NS,
            urgency=rng.randint(0, self.config.urgencies - 1),
            tenant=f"t{rng.randint(0, 3)}",
            weight=rng.choice([1, 1, 2, 4]),
            seed=rng.randint(0, 1),
            ignore_eos=rng.random() < self.config.endless_rate,
            slo=slo,
            predicted=rng.choice([None, 5, 20]),
            hashes=hashes,
            root=root,
        )

    def arrive(self) -> None:
        """Add one; sometimes a resume with emitted tokens, sometimes one that waits for its input."""
        rng, request = self.rng, self.request()
        limit = min(request.sampling.max_tokens, self.config.limits.max_model_len - len(request.prompt))
        emitted: tuple[int, ...] = ()
        if rng.random() < 0.1 and limit > 1:
            some = expected(request, rng.randint(0, limit - 1))
            emitted = some if len(expected(request, limit)) > len(some) else ()
        try:
            seq = self.add(request, emitted)
        except RequestError:
            self.stats["refused"] += 1
            return
        self.live[seq], self.limit[seq], self.got[seq] = request, limit, list(emitted)
        if rng.random() < self.config.odd_rate * 3:
            self.each("await_input", seq)
            self.held.append(seq)

    def add(self, request: LlmRequest, emitted: tuple[int, ...]) -> int:
        """Hook for the differential world."""
        return self.machine.add(request, emitted, self.now)

    def each(self, method: str, *args: object) -> None:
        """Call a method of the machine; hook for the differential world."""
        getattr(self.machine, method)(*args)

    def cancel(self) -> None:
        """End a random live request."""
        if self.live:
            seq = self.rng.choice(self._candidates())
            self.over(self.stop(seq))
            assert self.machine.stop(seq, FinishReason.CANCELLED, self.now) is None

    def _candidates(self) -> list[int]:
        """Live ones; where states are picked first, those of one of them."""
        if not self.config.picks_by_state:
            return list(self.live)
        by_state: dict[tuple[SeqState, bool], list[int]] = {}
        for seq in self.live:
            found = self.machine.state.seqs[seq]
            by_state.setdefault((found.state, bool(found.slots)), []).append(seq)
        return by_state[self.rng.choice(list(by_state))]

    def stop(self, seq: int) -> Ended:
        """Hook for the differential world."""
        ended = self.machine.stop(seq, FinishReason.CANCELLED, self.now)
        assert ended is not None
        return ended

    def odd(self) -> None:
        """Rare events."""
        rng = self.rng
        kind = rng.choice(["reset", "freeze", "ready"])
        if kind == "reset":
            self.each("reset_prefix_cache")
        elif kind == "ready" and self.held:
            self.each("ready", self.held.pop(0))
        elif kind == "freeze" and self.live:
            seq = rng.choice(list(self.live))
            self.each("freeze", seq)
            if self.machine.state.seqs[seq].state is SeqState.FROZEN:
                self.frozen[seq] = rng.randint(1, 6)
                self.stats["frozen"] += 1

    def thaw(self) -> None:
        """Count down, then let frozen sequences go on."""
        for seq in list(self.frozen):
            self.frozen[seq] -= 1
            if self.frozen[seq] <= 0:
                del self.frozen[seq]
                if seq in self.live:
                    self.each("thaw", seq)

    def over(self, ended: Ended) -> None:
        """Its tokens are exactly those of the model alone."""
        request = self.live.pop(ended.seq)
        self.ended[ended.seq] = ended
        self.stats[ended.reason.value] += 1
        alone, got = expected(request, self.limit[ended.seq]), tuple(self.got[ended.seq])
        assert got == alone[: len(got)], f"{ended}: {got} is not {alone}"
        assert ended.output_tokens == len(got), f"{ended} but {len(got)} tokens landed"
        if ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert got == alone, f"{ended}: {got} is not {alone}"
            stopped = alone[-1] == 0 and not request.sampling.ignore_eos
            assert (ended.reason is FinishReason.STOP) == stopped
            self.history.append(request.prompt + alone)

    # Steps

    def plan(self) -> bool:
        """Ask for a plan; False when there is none."""
        plan = self.machine.plan(self.now * TICK_NS)
        if plan is None:
            return False
        params = self.config.params
        assert plan.tokens <= params.step_tokens, "budget"
        assert plan.decodes + len(plan.chunks) <= params.max_seqs, "seats"
        assert plan.tokens or plan.swap_out, "an empty step"
        if not params.overlap_prefills and self.flight and self.flight[-1].kind == "prefill":
            assert plan.kind != "prefill"
        self._check_fence(plan)
        self.flight.append(plan)
        return True

    def _check_fence(self, plan: StepPlan) -> None:
        """What open steps were handed is not free (SPEC B8, fence before reuse)."""
        idle = {*self.machine.state.pool.free, *self.machine.state.pool.lru}
        for open_plan in [*self.flight, plan]:
            for chunk in open_plan.chunks:
                assert not idle & set(chunk.table), "a block of an open step is free"
            assert not idle & {block for _seq, block in open_plan.grant}, "a granted block of an open step is free"
            for swap in open_plan.swap_out:
                assert not idle & set(swap.device_blocks)

    def complete(self) -> None:
        """The oldest open step is done."""
        done = self.engine.run(self.flight.pop(0))
        for seq, token in zip(done.seqs, done.tokens, strict=True):
            if seq in self.live:
                self.got[seq].append(token)
        for ended in self.step_done(done):
            self.over(ended)

    def step_done(self, done) -> list[Ended]:  # type: ignore[no-untyped-def]
        """Hook for the differential world."""
        return self.machine.step_done(done)

    def turn(self) -> bool:
        """Plan if a credit is there, else complete a step; False when there is nothing to do."""
        if len(self.flight) < self.config.params.async_depth and (not self.flight or self.rng.random() < 0.7):
            if self.plan():
                return True
            if not self.flight:
                return False
        self.complete()
        return True

    def check(self) -> None:
        """After every event."""
        self.machine.check_invariants()
        cap = self.config.params.preemptions_max
        assert all(seq.preemptions <= cap for seq in self.machine.state.seqs.values()), "preempted too often"

    def play(self) -> Counter[str]:
        """Events for a while, then drain; everybody finishes and everything returns."""
        rng, config = self.rng, self.config
        for _ in range(config.turns):
            self.now += rng.randint(0, 5)
            for rate, act in (
                (config.arrival_rate, self.arrive),
                (config.cancel_rate, self.cancel),
                (config.odd_rate, self.odd),
            ):
                if rng.random() < rate:
                    for _ in range(config.burst if act == self.arrive else 1):
                        act()
                        self.check()
            self.thaw()
            self.turn()
            self.check()
        for seq in self.held:
            self.each("ready", seq)
        limit = 2000 + 300 * len(self.live)
        while self.turn() or self.frozen:
            self.now += 1
            self.thaw()
            self.check()
            limit -= 1
            assert limit, "no progress"
        self._check_drained()
        return self.stats

    def _check_drained(self) -> None:
        m = self.machine.state
        assert not self.live, "every request ends"
        assert m.pool.available == m.pool.size, "every block returns"
        assert m.slots.available == m.slots.size, "every host slot returns"
        assert (m.running, m.waiting, m.waiting_tokens, m.decodes, m.kv_base) == (0, 0, 0, 0, 0)
        assert not any(m.wheel)
        assert not m.guided
        assert not self.machine.runnable
        for account in self.machine.accounts():
            assert account.cache or account.used == account.reserved == 0, account
        self.stats.update(self.engine.stats)
        self.stats.update(self.machine.counters())
