"""The real scheduler drives the real engine: whatever it decides, each request gets the tokens it gets alone."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

from headway.adapters.models import cache_folder, resolve
from headway.core.blockhash import block_hashes, cache_root
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import StepPlan
from headway.core.request import FinishReason, LlmRequest, SamplingParams
from headway.cost.llm import StepCost, StepCostParams
from headway.engines.llm.engine import TorchLlmEngine
from headway.engines.llm.loading import EngineSettings
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice

BLOCK = 16
OUTPUTS = 14
ROOT = cache_root(model="default")


def request(number: int, prompt: tuple[int, ...]) -> LlmRequest:
    """Half greedy, half drawn with penalties; different urgencies, so that priority has something to preempt."""
    drawn: dict[str, Any] = {"temperature": 0.9, "seed": number, "top_p": 0.9, "repetition_penalty": 1.2}
    return LlmRequest(
        RequestId(f"req-{number}"),
        TenantId("t"),
        ModelId("default"),
        prompt,
        SamplingParams(max_tokens=OUTPUTS, **(drawn if number % 2 else {"temperature": 0.0})),
        arrived_ns=number,
        urgency=number,
        block_hashes=block_hashes(ROOT, prompt, BLOCK),
        cache_root=ROOT,
    )


def mix(seed: int) -> list[LlmRequest]:
    """Prompts of 5 to 120 tokens; two of three continue a common beginning."""
    draw = random.Random(seed)
    beginning = [draw.randrange(100, 40_000) for _ in range(64)]
    return [
        request(
            number,
            tuple(
                beginning[: draw.choice([0, 32, 64])]
                + [draw.randrange(100, 40_000) for _ in range(draw.randrange(5, 60))]
            ),
        )
        for number in range(9)
    ]


@contextmanager
def loaded() -> Iterator[TorchLlmEngine]:
    settings = EngineSettings(
        folder=resolve().folder,
        model="default",
        cache=cache_folder(),
        kv_blocks=28,
        block_size=BLOCK,
        host_slots=32,
        max_model_len=256,
    )
    engine = TorchLlmEngine(settings)
    yield engine
    engine.close()


class Play:
    """One machine over one engine, with as many open plans as its credits allow."""

    def __init__(self, engine: TorchLlmEngine, **params: Any) -> None:
        self.engine = engine
        self.params = LlmParams(**params)
        belief = StepCost(StepCostParams(kv_bytes_per_block=engine.limits.kv_bytes_per_block, learn=False))
        self.machine = LlmMachine(self.params, engine.limits, belief)
        self.flight: list[StepPlan] = []
        self.outputs: dict[int, list[int]] = {}
        self.over: set[int] = set()
        self.seen: Counter[str] = Counter()

    def add(self, wanted: LlmRequest) -> int:
        seq = self.machine.add(wanted, (), wanted.arrived_ns)
        self.outputs[seq] = []
        return seq

    def turn(self) -> bool:
        while len(self.flight) < self.params.async_depth:
            plan = self.machine.plan(0)
            if plan is None:
                break
            self.flight.append(plan)
        if not self.flight:
            return False
        plan = self.flight.pop(0)
        self.seen["preempt"] += len(plan.preempt)
        self.seen["swap"] += len(plan.swap_in)
        self.seen["chunk"] += any(not chunk.samples for chunk in plan.chunks)
        self.seen["mixed"] += bool(plan.chunks and plan.decodes)
        self.seen["hit"] += any(chunk.table and chunk.start for chunk in plan.chunks)
        done = self.engine.run(plan)
        for seq, token in zip(done.seqs, done.tokens, strict=True):
            if seq not in self.over:
                self.outputs[seq].append(token)
        self.over.update(ended.seq for ended in self.machine.step_done(done))
        return True

    def cancel(self, seq: int) -> None:
        if self.machine.stop(seq, FinishReason.CANCELLED, 0) is not None:
            self.over.add(seq)


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """One after the other, without cache, chunks or open plans."""
    whole = PolicyChoice("constant", {"tokens": 256})
    with loaded() as engine:
        play = Play(engine, max_seqs=1, step_tokens=256, chunk=whole, prefix_cache=False, async_depth=1)
        seqs = [play.add(wanted) for wanted in mix(seed=4)]
        while play.turn():
            pass
    return [play.outputs[seq] for seq in seqs]


CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "chunked, cached, asynchronous": (
        {"max_seqs": 4, "step_tokens": 48, "chunk": PolicyChoice("constant", {"tokens": 24})},
        {"chunk", "mixed", "hit"},
    ),
    "short of memory, recompute": (
        {
            "max_seqs": 8,
            "step_tokens": 128,
            "chunk": PolicyChoice("constant", {"tokens": 64}),
            "prefix_cache": False,
            "order": PolicyChoice("priority", {"min_gap": 1}),
        },
        {"preempt", "mixed"},
    ),
    "short of memory, swap": (
        {
            "max_seqs": 8,
            "step_tokens": 128,
            "chunk": PolicyChoice("constant", {"tokens": 64}),
            "prefix_cache": False,
            "order": PolicyChoice("priority", {"min_gap": 1}),
            "swap": True,
            "async_depth": 1,
        },
        {"preempt", "swap"},
    ),
    "three open plans": (
        {"max_seqs": 8, "step_tokens": 96, "chunk": PolicyChoice("constant", {"tokens": 40}), "async_depth": 3},
        {"mixed", "hit"},
    ),
}


# SPEC B7, B6
@pytest.mark.parametrize("case", CASES)
def test_each_request_gets_the_tokens_it_gets_alone(case: str, alone: list[list[int]]) -> None:
    params, must_happen = CASES[case]
    waiting = mix(seed=4)
    draw = random.Random(1)
    seqs: list[int] = []
    with loaded() as engine:
        play = Play(engine, **params)
        while play.turn() or waiting:
            while waiting and draw.random() < 0.5:
                seqs.append(play.add(waiting.pop(0)))
            if len(seqs) > 5:
                play.cancel(seqs[2])
    play.machine.check_invariants()
    assert play.machine.live == 0
    cut = [alone[number][: len(play.outputs[seq])] if number == 2 else alone[number] for number, seq in enumerate(seqs)]
    assert [play.outputs[seq] for seq in seqs] == cut
    assert must_happen <= {name for name, count in play.seen.items() if count}
