"""FCFS decisions of the LLM machine against those of vLLM's own Scheduler, where both have the same rules.

Common ground: one plan at a time, chunks as large as the step, blocks for everybody (the two choose other victims), a
prompt shares only what ended before (vLLM also hits what the same step computes). Seats, the token budget, partial
prompts, prefix hits on prompts and outputs, stops and limits are in it.

`HEADWAY_PEER_VLLM_PYTHON`: an interpreter that has vLLM.
"""

import json
import os
import subprocess
from random import Random

import pytest
from tests.property.differential import Mirror
from tests.property.llm_world import make_limits, make_request

from headway.core.events import StepDone, Stopped
from headway.core.plans import StepTiming
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice

BLOCK = 16
WORLDS = 10
STEPS = 120
TIMING = StepTiming(0, 0, 1)


class Ground:
    """One world, played by our machine; `arrivals` and `steps` are what the peer gets and must answer."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.running, self.budget = rng.choice([2, 4, 8]), rng.choice([16, 40, 100])
        params = LlmParams(
            max_seqs=self.running,
            step_tokens=self.budget,
            chunk=PolicyChoice("constant", {"tokens": self.budget}),
            async_depth=1,
        )
        limits = make_limits(block_size=BLOCK, kv_blocks=4000, max_model_len=4096)
        self.machine, self.mirror = LlmMachine(params, limits, None), Mirror()
        self.arrivals: list[tuple[int, str, list[int], int, list[int]]] = []
        self.steps: list[dict[str, int]] = []
        self.names: dict[int, str] = {}
        self.prompts: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}  # what a sequence will sample
        self.got: dict[int, list[int]] = {}
        self.ended: list[list[int]] = [[]]
        for step in range(STEPS):
            while rng.random() < 0.25:
                self.arrive(step)
            self.step()

    def arrive(self, step: int) -> None:
        """A prompt that goes on from one that ended, or from nothing."""
        rng, number = self.rng, len(self.arrivals)
        base = rng.choice(self.ended)
        prompt = base[: rng.randint(0, len(base))] + [1000 + number] * rng.randint(1, 60)
        outputs = rng.randint(1, 50)
        tokens = [0 if rng.random() < 0.03 else rng.randint(1, 900) for _ in range(outputs)]
        seq = self.machine.add(
            make_request(number, tuple(prompt), outputs, arrived_ns=step, block_size=BLOCK), (), step
        )
        self.names[seq], self.prompts[seq], self.tokens[seq], self.got[seq] = f"r{number}", prompt, tokens, []
        self.arrivals.append((step, f"r{number}", prompt, outputs, tokens))

    def step(self) -> None:
        """Plan one, note what it computes, and let it be done."""
        plan = self.machine.plan(0)
        if plan is None:
            self.steps.append({})
            return
        rows = self.mirror.expand(plan)
        self.steps.append({self.names[seq]: count for seq, _start, count, _table in rows})
        partial = {chunk.seq for chunk in plan.chunks if not chunk.samples}
        seqs = [seq for seq, _start, _count, _table in rows if seq not in partial]
        for seq in seqs:
            self.got[seq].append(self.tokens[seq][len(self.got[seq])])
        stopped = [Stopped(seq, tuple(self.got[seq])) for seq in seqs if self.got[seq][-1] == 0]
        done = StepDone(0, "", plan.step, tuple(seqs), tuple(self.got[seq][-1] for seq in seqs), TIMING, tuple(stopped))
        for over in self.machine.step_done(done, lambda seq: self.got[seq]):
            self.ended.append(self.prompts[over.seq] + self.got[over.seq])

    def world(self) -> dict[str, object]:
        """For the peer."""
        return {
            "running": self.running,
            "block": BLOCK,
            "blocks": 4000,
            "budget": self.budget,
            "steps": STEPS,
            "arrivals": self.arrivals,
        }


# SPEC B9, B3
@pytest.mark.peer
def test_each_step_computes_what_it_computes_in_vllm() -> None:
    python = os.environ.get("HEADWAY_PEER_VLLM_PYTHON")
    if python is None:
        pytest.skip("HEADWAY_PEER_VLLM_PYTHON names no interpreter with vLLM")
    grounds = [Ground(Random(seed)) for seed in range(WORLDS)]
    assert sum(ground.machine.counters()["prefix_hit_tokens"] for ground in grounds) > 2_000
    shown = subprocess.run(
        [python, "benchmarks/scheduler_vllm.py", "decide"],
        input=json.dumps([ground.world() for ground in grounds]),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(next(line for line in shown.stdout.splitlines() if line.startswith("[[")))
    for seed, (ground, theirs) in enumerate(zip(grounds, answers, strict=True)):
        for step, (ours, other) in enumerate(zip(ground.steps, theirs, strict=True)):
            assert ours == other, f"world {seed}, step {step}"
