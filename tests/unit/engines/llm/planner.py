"""A planner that drives a real engine by hand: what a test asks for becomes the next StepPlan."""

from typing import Any

import msgspec

from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.ports import LlmEngine
from headway.core.request import SamplingParams


class Planner:
    """Writes plans for one engine, step by step, as a test says; `run` checks nothing but what the engine checks."""

    def __init__(self, engine: LlmEngine) -> None:
        self.engine = engine
        self.step = 0
        self.free = list(range(engine.limits.kv_blocks - 1, -1, -1))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}  # positions stored
        self.decoding: list[int] = []
        self.tokens: dict[int, list[int]] = {}
        self.pending: dict[str, list[Any]] = {}
        self.kept = set[int]()  # blocks that were shared: they are not given out again
        self.admitted = set[int]()  # tables that the engine has not been told

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.engine.limits.block_size)

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(self.free.pop() for _ in range(count))

    def new(self, seq: int, prompt: list[int], outputs: tuple[int, ...] = (), **sampling: Any) -> None:
        params = SamplingParams(**{"max_tokens": 1000, "temperature": 0.0, **sampling})
        self.pending.setdefault("new", []).append(
            NewSequence(
                seq=seq, request=RequestId(f"req-{seq}"), prompt=tuple(prompt), outputs=outputs, sampling=params
            )
        )
        self.tokens[seq] = [*prompt, *outputs]

    def admit(self, seq: int, computed: int = 0, shared: list[int] | None = None) -> tuple[int, ...]:
        """Give `seq` a table for all its tokens, its first blocks `shared`; prefill will start at `computed`."""
        own = self.take(self.blocks_for(len(self.tokens[seq])) - len(shared or []))
        self.tables[seq] = [*(shared or []), *own]
        self.kept.update(shared or [])
        self.lengths[seq] = computed
        self.admitted.add(seq)
        return tuple(self.tables[seq])

    def chunk(self, seq: int, count: int) -> None:
        """Prefill `count` more tokens; the first one after `new` or `preempt` brings the table."""
        if seq not in self.tables:
            self.admit(seq)
        table = tuple(self.tables[seq]) if seq in self.admitted else ()
        self.admitted.discard(seq)
        start = self.lengths[seq]
        samples = start + count == len(self.tokens[seq])
        self.pending.setdefault("chunks", []).append(
            Chunk(seq=seq, start=start, count=count, samples=samples, table=table)
        )
        self.lengths[seq] = start + count

    def join(self, seq: int, token: int = -1) -> None:
        self.pending.setdefault("join", []).append(Join(seq=seq, token=token, step=self.step))
        self.decoding.append(seq)

    def drop(self, seq: int, how: str) -> None:
        """`how`: leave, preempt or pause."""
        self.pending.setdefault(how, []).append(seq)
        if seq in self.decoding:
            self.decoding.remove(seq)
        if how != "pause":
            self.free += [block for block in self.tables.pop(seq) if block not in self.kept]

    def run(self, **more: Any) -> dict[int, int]:
        """Run the step that was prepared; returns what it sampled."""
        self.step += 1
        grants = []
        for seq in self.decoding:
            if self.blocks_for(self.lengths[seq] + 1) > len(self.tables[seq]):
                block = self.take(1)[0]
                self.tables[seq].append(block)
                grants.append((seq, block))
            self.lengths[seq] += 1
        chunks = self.pending.get("chunks", [])
        parts = {key: tuple(value) for key, value in self.pending.items()}
        plan = StepPlan(
            step=self.step,
            basis_step=self.step - 1,
            kind="mixed",
            grant=tuple(grants),
            decodes=len(self.decoding),
            kv_tokens=sum(self.lengths[seq] for seq in self.decoding),
            prefill_tokens=sum(chunk.count for chunk in chunks),
            **parts,
        )
        plan = msgspec.structs.replace(plan, **more)
        self.pending = {}
        self.done = self.engine.run(plan)
        self.scores = self.done.scores
        sampled = dict(zip(self.done.seqs, self.done.tokens, strict=True))
        for seq, token in sampled.items():
            self.tokens[seq].append(token)
        return sampled

    def alone(self, prompt: list[int], outputs: int, **sampling: Any) -> list[int]:
        """The outputs of a fresh sequence, prefilled whole, decoded with no neighbour."""
        seq = 100_000 + self.step
        self.new(seq, prompt, **sampling)
        self.chunk(seq, len(prompt))
        self.run()
        self.join(seq)
        for _ in range(outputs - 1):
            self.run()
        self.drop(seq, "leave")
        return self.tokens[seq][len(prompt) :]
