"""A world that plays the LLM machine and the naive scheduler side by side and demands identical plans."""

from collections import Counter
from random import Random

from tests.property.llm_world import TICK_NS, World, WorldConfig
from tests.property.naive import NaiveScheduler, Row

from headway.core.events import StepDone
from headway.core.plans import StepPlan
from headway.core.request import LlmRequest
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.state import Ended


class Mirror:
    """What an executor keeps to follow delta plans, and the rows they mean."""

    def __init__(self) -> None:
        self.tables: dict[int, list[int]] = {}
        self.position: dict[int, int] = {}
        self.decoding: dict[int, None] = {}

    def expand(self, plan: StepPlan) -> list[Row]:
        """Apply `plan` and spell out every row."""
        for seq in (*plan.leave, *plan.preempt):
            self.decoding.pop(seq, None)
            self.tables.pop(seq, None)
        for seq in plan.pause:
            del self.decoding[seq]
        for join in plan.join:
            self.decoding[join.seq] = None
        for seq, block in plan.grant:
            self.tables[seq].append(block)
        rows: list[Row] = []
        for chunk in plan.chunks:
            if chunk.table:
                self.tables[chunk.seq] = list(chunk.table)
            self.position[chunk.seq] = chunk.start + chunk.count
            rows.append((chunk.seq, chunk.start, chunk.count, tuple(self.tables[chunk.seq])))
        for seq in self.decoding:
            rows.append((seq, self.position[seq], 1, tuple(self.tables[seq])))
            self.position[seq] += 1
        return rows


class DifferentialWorld(World):
    """Every event goes to both; every answer must agree."""

    def __init__(self, rng: Random, config: WorldConfig) -> None:
        super().__init__(rng, config)
        costs = StepCostParams(kv_bytes_per_block=config.kv_bytes_per_block, learn=False)
        self.naive = NaiveScheduler(config.params, config.limits, StepCost(costs))
        self.mirror = Mirror()

    def add(self, request: LlmRequest, emitted: tuple[int, ...]) -> int:
        seq = super().add(request, emitted)
        while self.naive.last_seq < seq - 1:
            self.naive.last_seq += 1  # numbers of refused requests are not reused
        assert self.naive.add(request, emitted, self.now) == seq
        return seq

    def each(self, method: str, *args: object) -> None:
        super().each(method, *args)
        getattr(self.naive, method)(*args)

    def stop(self, seq: int) -> Ended:
        ended = super().stop(seq)
        assert self.naive.stop(seq) == (ended.seq, ended.output_tokens)
        return ended

    def step_done(self, done: StepDone) -> list[Ended]:
        ended = super().step_done(done)
        assert [(e.seq, e.reason, e.output_tokens) for e in ended] == self.naive.step_done(done)
        return ended

    def plan(self) -> bool:
        planned = super().plan()
        rows = self.naive.plan(self.now * TICK_NS)
        if not planned:
            assert rows is None, f"the oracle runs {rows}"
            return False
        plan = self.flight[-1]
        assert rows is not None, f"the oracle waits, the machine plans {plan}"
        assert sorted(self.mirror.expand(plan)) == sorted(rows)
        assert [swap.seq for swap in plan.swap_out] == [seq.id for seq in self.naive.swapped]
        return True

    def check(self) -> None:
        super().check()
        m, naive = self.machine.state, self.naive
        assert m.pool.free == naive.pool.free
        assert list(m.pool.lru) == list(naive.pool.lru)
        assert dict(m.pool.index.items()) == dict(naive.pool.index.items())
        assert m.slots.free == naive.slots.free
        assert m.waiting_tokens == sum(s.target - s.computed for s in naive.waiting)

    def play(self) -> Counter[str]:
        stats = super().play()
        stats["visits"] += self.machine.state.visits
        stats["naive_visits"] += self.naive.visits
        return stats
