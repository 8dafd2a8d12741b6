"""The default model under random plans: however it is chunked, batched, preempted, swapped, tokens are the same."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.unit.engines.llm.planner import Planner

from headway.adapters.models import cache_folder, resolve
from headway.core.plans import Swap
from headway.engines.llm.engine import TorchLlmEngine
from headway.engines.llm.loading import EngineSettings

OUTPUTS = 10
SEQUENCES = 8


@pytest.fixture(scope="module")
def engine() -> Iterator[TorchLlmEngine]:
    folder: Path = resolve().folder
    settings = EngineSettings(
        folder=folder, model="default", cache=cache_folder(), kv_blocks=256, host_slots=64, max_model_len=1024
    )
    built = TorchLlmEngine(settings)
    yield built
    built.close()


def sampling(seq: int) -> dict[str, float]:
    """Half greedy, half drawn, some with penalties, which read the prompt's boundary."""
    if seq % 2 == 0:
        return {"temperature": 0.0, "repetition_penalty": 1.1 if seq % 4 == 0 else 1.0}
    return {"temperature": 1.0, "seed": seq, "top_p": 0.95, "frequency_penalty": 0.3}


class Storm:
    """Random decisions of a scheduler that is never in a hurry to be sensible."""

    def __init__(self, planner: Planner, draw: random.Random, prompts: list[list[int]]) -> None:
        self.planner, self.draw, self.prompts = planner, draw, prompts
        self.slots: dict[int, tuple[int, ...]] = {}  # swapped out
        self.counts = dict.fromkeys(("chunk", "preempt", "swap", "shared", "bucket"), 0)

    def outputs(self, seq: int) -> list[int]:
        return self.planner.tokens[seq][len(self.prompts[seq]) :]

    def run(self) -> None:
        waiting, started, prefilling = list(range(len(self.prompts))), set[int](), set[int]()
        ready: list[int] = []
        while len(started) < len(self.prompts) or prefilling or ready or self.planner.decoding or waiting:
            outs = self._preempt(waiting)  # before the joins, which the engine would apply after it
            self._joins(ready)
            ins = self._admit(waiting, started, prefilling)
            for seq in sorted(prefilling):
                left = len(self.planner.tokens[seq]) - self.planner.lengths.get(seq, 0)
                count = self.draw.randint(1, left)
                self.counts["chunk"] += count < left
                self.planner.chunk(seq, count)
                if count == left:
                    prefilling.discard(seq)
                    ready.append(seq)
            rows = len(self.planner.decoding) + sum(chunk.count for chunk in self.planner.pending.get("chunks", []))
            bucket = rows + self.draw.randint(0, 6)
            self.counts["bucket"] += bucket > max(rows, 2)
            self.planner.run(bucket=bucket, swap_out=outs, swap_in=ins)
            for seq in [*self.planner.decoding, *ready]:
                if len(self.outputs(seq)) >= OUTPUTS:
                    self.planner.drop(seq, "leave")
                    ready = [other for other in ready if other != seq]
        self.planner.run()  # the last leaves

    def _joins(self, ready: list[int]) -> None:
        for seq in ready:
            self.planner.join(seq)
        ready.clear()

    def _preempt(self, waiting: list[int]) -> tuple[Swap, ...]:
        if not self.planner.decoding or self.draw.random() > 0.25:
            return ()
        seq = self.draw.choice(self.planner.decoding)
        waiting.append(seq)
        self.counts["preempt"] += 1
        stored = self.planner.blocks_for(self.planner.lengths[seq])
        table = tuple(self.planner.tables[seq][:stored])
        self.planner.drop(seq, "preempt")
        if self.slots or self.draw.random() < 0.5:
            return ()
        self.counts["swap"] += 1
        self.slots[seq] = tuple(range(stored))
        return (Swap(seq=seq, device_blocks=table, host_slots=self.slots[seq]),)

    def _admit(self, waiting: list[int], started: set[int], prefilling: set[int]) -> tuple[Swap, ...]:
        if not waiting or self.draw.random() < 0.3:
            return ()
        seq = waiting.pop(self.draw.randrange(len(waiting)))
        if seq not in started:
            started.add(seq)
            self.planner.new(seq, self.prompts[seq], **sampling(seq))
        prefilling.add(seq)
        if seq not in self.slots:
            self.planner.admit(seq, *self._shared(seq))
            return ()
        slots = self.slots.pop(seq)
        kept = self.planner.lengths[seq]
        table = self.planner.admit(seq, computed=kept)
        return (Swap(seq=seq, device_blocks=table[: len(slots)], host_slots=slots),)

    def _shared(self, seq: int) -> tuple[int, list[int]]:
        """Full blocks of another sequence with the same beginning, as a prefix hit finds them; and their tokens."""
        size = self.planner.engine.limits.block_size
        tokens = self.planner.tokens[seq]
        for other in self.planner.decoding:
            held = self.planner.tokens[other][: self.planner.lengths[other]]
            pairs = enumerate(zip(tokens[:-1], held, strict=False))
            full = next((at for at, (a, b) in pairs if a != b), min(len(tokens) - 1, len(held))) // size
            if full:
                self.counts["shared"] += 1
                return full * size, self.planner.tables[other][:full]
        return 0, []


# SPEC B7
def test_random_plans_give_the_tokens_of_each_sequence_alone(engine: TorchLlmEngine) -> None:
    counts: Counter[str] = Counter()
    for seed in range(2):
        draw = random.Random(seed)
        beginning = [draw.randrange(100, 40_000) for _ in range(40)]
        prompts = [
            beginning[: draw.choice([0, 40])] + [draw.randrange(100, 40_000) for _ in range(draw.randrange(3, 50))]
            for _ in range(SEQUENCES)
        ]
        planner = Planner(engine)
        alone = [planner.alone(prompt, OUTPUTS, **sampling(seq)) for seq, prompt in enumerate(prompts)]
        storm = Storm(planner, draw, prompts)
        storm.run()
        assert [storm.outputs(seq) for seq in range(SEQUENCES)] == alone
        counts.update(storm.counts)
    assert min(counts.values()) > 0
