"""The LLM machine, or the naive scheduler of its tests, without an engine; `benchmarks/scheduler.py` drives it.

    PYTHONPATH=src:. python benchmarks/scheduler_ours.py ours|naive steady|churn RUNNING BLOCK TOKENS [ORDER [SHARE]]

Each number of steps on standard input is answered by a JSON array: CPU nanoseconds per step, `step_done` and `plan`.
TOKENS: what there is KV room for, per running sequence and an eighth more of them. SHARE of those blocks: pressure.
"""

import sys
import time
from random import Random

from benchmarks.scheduler_serve import serve
from tests.property.naive import NaiveScheduler

from headway.core.blockhash import block_hashes, cache_root
from headway.core.events import StepDone, Stopped
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import StepTiming
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest, SamplingParams
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice

PROMPT, OUTPUT = 1000, 200
ROOT = cache_root(model="bench")
TIMING = StepTiming(0, 0, 10_000_000)
clock = time.process_time_ns


def limits(running: int, block: int, tokens: int, share: float = 1.0) -> ModelLimits:
    """Room for `running` sequences of `tokens`, times `share`."""
    blocks = int((running + running // 8 + 64) * (-(-tokens // block) + 1) * share)
    return ModelLimits("bench", 50_000, 1 << 20, block, blocks, 1 << 16, 4096, 1, (0,), "f32", "none")


def request(number: int, prompt: int, output: int, block: int, *, cache: bool, tenants: int = 16) -> LlmRequest:
    """A prompt that nobody shares: the worst case for the cache."""
    tokens = tuple(range(number * 4000, number * 4000 + prompt))
    hashes = block_hashes(ROOT, tokens, block) if cache else ()
    return LlmRequest(
        RequestId(f"req-{number}"),
        TenantId(f"t{number % tenants}"),
        ModelId("bench"),
        tokens,
        SamplingParams(max_tokens=output),
        number,
        urgency=number % 3,
        block_hashes=hashes,
        cache_root=ROOT if cache else b"",
    )


def done(step: int, stopped: tuple[Stopped, ...] = ()) -> StepDone:
    """What an engine would report."""
    return StepDone(0, "bench", step, (), (), TIMING, stopped)


class System:
    """Machine or oracle, everything on: swap, decisions, a belief that learns, a log of the cache."""

    def __init__(self, name: str, running: int, room: ModelLimits, *, cache: bool, order: str) -> None:
        params = LlmParams(
            max_seqs=running, step_tokens=11 * running + 512, order=PolicyChoice(order), prefix_cache=cache, swap=True
        )
        belief = StepCost(StepCostParams(kv_bytes_per_block=1 << 16))
        self.naive = NaiveScheduler(params, room, belief) if name == "naive" else None
        self.machine = LlmMachine(params, room, belief) if name == "ours" else None
        self.seqs = self.machine.state.seqs if self.machine else self.naive.seqs if self.naive else {}

    def add(self, one: LlmRequest, at_ns: int) -> None:
        """Queue a request."""
        if self.machine:
            self.machine.add(one, (), at_ns)
        elif self.naive:
            self.naive.add(one, (), at_ns)

    def step(self, event: StepDone | None, at_ns: int) -> tuple[int, list[int]]:
        """Fold in one step and plan one; CPU time of that, and whose prompts begin."""
        system = self.machine or self.naive
        assert system is not None
        start = clock()
        if event is not None:
            system.step_done(event)
        plan = system.plan(at_ns)
        spent = clock() - start
        if plan is None:
            return spent, []
        if isinstance(plan, list):
            return spent, [row[0] for row in plan if row[1] == 0]
        return spent, [chunk.seq for chunk in plan.chunks if chunk.start == 0]

    def report(self) -> None:
        """What a worker sends along every now and then."""
        if self.machine:
            self.machine.take_decisions()
            self.machine.take_kv_events(everything=False)

    @property
    def decodes(self) -> int:
        return self.machine.state.decodes if self.machine else len(self.naive.decoding) if self.naive else 0


class Steady:
    """Everybody decodes and nobody leaves; block phases are random."""

    def __init__(self, name: str, running: int, block: int, tokens: int, order: str, share: float) -> None:
        cache = order == "lpm"
        self.system = System(name, running, limits(running, block, tokens, share), cache=cache, order=order)
        self.folded = 0
        rng = Random(1)
        for number in range(running):
            self.system.add(request(number, rng.randint(1, 300), tokens - 310, block, cache=cache), 0)
        self.system.step(None, 0)
        while self.system.decodes < running:
            self.step()
        for _ in range(128):  # the belief learns from each of its first steps
            self.step()
        self.system.report()

    def step(self) -> int:
        """CPU time of one."""
        self.folded += 1
        return self.system.step(done(self.folded), 0)[0]


class Churn:
    """Closed loop: each end brings an arrival; output lengths are geometric with mean OUTPUT.

    Requests are kept until they end, as the worker around the machine keeps them: freeing a prompt is no part of it.
    """

    def __init__(self, name: str, running: int, block: int, tokens: int, order: str, share: float) -> None:
        self.live, self.block, self.cache = running + 8, block, share == 1.0
        self.system = System(name, running, limits(running, block, tokens, share), cache=self.cache, order=order)
        self.rng, self.number, self.now = Random(2), 0, 0
        self.ends: dict[int, list[int]] = {}
        self.begun: set[int] = set()
        self.requests: dict[int, LlmRequest] = {}
        self.arrive()
        self.draw(self.system.step(None, 0)[1])
        for _ in range(3 * OUTPUT):
            self.step()

    def arrive(self) -> None:
        """As many as ended."""
        while len(self.system.seqs) < self.live:
            self.number += 1
            self.requests[self.number] = one = request(self.number, PROMPT, 2048, self.block, cache=self.cache)
            self.system.add(one, self.number)

    def draw(self, begun: list[int]) -> None:
        """Lengths of those whose prompts begin with the step that was just planned."""
        for seq in begun:
            if seq not in self.begun:
                self.begun.add(seq)
                length = 2 + min(2000, int(self.rng.expovariate(1 / OUTPUT)))
                self.ends.setdefault(self.now + 2 + length, []).append(seq)

    def step(self) -> int:
        """CPU time of one, arrivals excluded."""
        self.now += 1
        stopped = tuple(Stopped(seq) for seq in self.ends.pop(self.now, ()) if seq in self.system.seqs)
        system = self.system.machine or self.system.naive
        assert system is not None
        event = done(self.now, stopped)
        start = clock()
        system.step_done(event)
        spent = clock() - start
        self.arrive()
        more, begun = self.system.step(None, self.now)
        for ended in stopped:
            del self.requests[ended.seq]
        self.draw(begun)
        if self.now % 2 == 0:
            self.system.report()
        return spent + more


def main() -> None:
    """Serve windows of steps until standard input ends."""
    name, kind, running, block, tokens = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    order = sys.argv[6] if len(sys.argv) > 6 else "fcfs"
    share = float(sys.argv[7]) if len(sys.argv) > 7 else 1.0
    load = (Churn if kind == "churn" else Steady)(name, running, block, tokens, order, share)
    serve(load.step)


if __name__ == "__main__":
    main()
