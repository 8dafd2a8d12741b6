"""A model executor on fake KV memory: every cell holds the exact token prefix, so a wrong block, table, position or
token is noticed the moment it is read. Tokens are a hash of everything before them (SPEC B7)."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from headway.core.events import StepDone, Stopped
from headway.core.plans import NewSequence, StepPlan, StepTiming
from headway.core.request import LlmRequest

VOCABULARY = 5
EOS = 0


def next_token(tokens: tuple[int, ...], seed: int) -> int:
    """The model: greedy, and dependent on the whole history."""
    raw = ",".join(map(str, tokens)) + f"|{seed}"
    value = hashlib.blake2b(raw.encode(), digest_size=4).digest()
    number = int.from_bytes(value, "big")
    return EOS if number % 13 == 0 else 1 + number % (VOCABULARY - 1)


def expected(request: LlmRequest, limit: int) -> tuple[int, ...]:
    """What the model says alone, without batch, cache or scheduler."""
    out: list[int] = []
    while len(out) < limit:
        out.append(next_token((*request.prompt, *out), request.sampling.seed))
        if out[-1] == EOS and not request.sampling.ignore_eos:
            break
    return tuple(out)


@dataclass
class Book:
    """What the executor keeps of one sequence."""

    prompt: tuple[int, ...]
    seed: int
    ignore_eos: bool
    outputs: list[int]
    sampled_at: list[int]  # step of each output; 0: given
    table: list[int] = field(default_factory=list)
    position: int = 0
    ended: bool = False


Row = tuple[int, int, int, tuple[int, ...]]  # seq, start, count, table


class FakeEngine:
    """Runs plans in order."""

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.kv: dict[tuple[int, int], int] = {}
        self.host: dict[tuple[int, int], int] = {}
        self.books: dict[int, Book] = {}
        self.rows: dict[int, None] = {}
        self.step = 0
        self.stats: Counter[str] = Counter()
        self.knows_output = lambda seq: True

    def run(self, plan: StepPlan) -> StepDone:
        """Apply the delta, check it, compute."""
        self.step = plan.step
        self._apply(plan)
        rows, samplers = self._rows(plan)
        self._compute(rows)
        stopped, seqs, tokens = [], [], []
        for seq in samplers:
            book = self.books[seq]
            token = next_token((*book.prompt, *book.outputs), book.seed)
            book.outputs.append(token)
            book.sampled_at.append(plan.step)
            seqs.append(seq)
            tokens.append(token)
            if token == EOS and not book.ignore_eos and not book.ended:
                book.ended = True
                stopped.append(Stopped(seq, tuple(book.outputs) if self.knows_output(seq) else None))
        timing = StepTiming(0, 0, 0)
        return StepDone(plan.step, "engine", plan.step, tuple(seqs), tuple(tokens), timing, tuple(stopped))

    def _apply(self, plan: StepPlan) -> None:
        for seq in plan.leave:
            self.books.pop(seq)
            self.rows.pop(seq, None)
        for seq in plan.preempt:
            self.rows.pop(seq, None)
            self.books[seq].table = []
        for seq in plan.pause:
            del self.rows[seq]
        for swap in plan.swap_out:
            assert len(swap.device_blocks) == len(swap.host_slots)
            for block, slot in zip(swap.device_blocks, swap.host_slots, strict=True):
                self._copy(self.kv, block, self.host, slot)
            self.stats["swap_out"] += 1
        for new in plan.new:
            self._add(new)
        for swap in plan.swap_in:
            for block, slot in zip(swap.device_blocks, swap.host_slots, strict=True):
                self._copy(self.host, slot, self.kv, block)
            self.stats["swap_in"] += 1
        for join in plan.join:
            book = self.books[join.seq]
            assert join.token == -1
            assert book.sampled_at[-1] == join.step, f"{join} but {book}"
            assert join.seq not in self.rows
            self.rows[join.seq] = None
        for seq, block in plan.grant:
            assert seq in self.rows
            self.books[seq].table.append(block)
        self.stats["preempt"] += len(plan.preempt)
        self.stats["pause"] += len(plan.pause)

    def _add(self, new: NewSequence) -> None:
        assert new.seq not in self.books, "a sequence is introduced twice"
        outputs = list(new.outputs)
        self.books[new.seq] = Book(new.prompt, new.sampling.seed, new.sampling.ignore_eos, outputs, [0] * len(outputs))

    def _copy(self, source: dict[tuple[int, int], int], a: int, target: dict[tuple[int, int], int], b: int) -> None:
        for offset in range(self.size):
            if (a, offset) in source:
                target[b, offset] = source[a, offset]
            else:
                target.pop((b, offset), None)

    def _rows(self, plan: StepPlan) -> tuple[list[Row], list[int]]:
        rows: list[Row] = []
        samplers: list[int] = []
        for chunk in plan.chunks:
            book = self.books[chunk.seq]
            if chunk.table:
                book.table = list(chunk.table)
                self.stats["hit_tokens"] += chunk.start
            assert chunk.count > 0
            known = len(book.prompt) + len(book.outputs)
            book.position = chunk.start + chunk.count
            assert book.position <= known, "a chunk needs a token that nobody has sampled"
            assert chunk.samples == (book.position == known)
            assert chunk.seq not in self.rows
            rows.append((chunk.seq, chunk.start, chunk.count, tuple(book.table)))
            if chunk.samples:
                samplers.append(chunk.seq)
        contexts = 0
        for seq in self.rows:
            book = self.books[seq]
            assert book.position == len(book.prompt) + len(book.outputs) - 1
            rows.append((seq, book.position, 1, tuple(book.table)))
            book.position += 1
            contexts += book.position
            samplers.append(seq)
        assert plan.decodes == len(self.rows), "digest: decodes"
        assert plan.kv_tokens == contexts, "digest: context"
        assert plan.tokens == sum(row[2] for row in rows), "digest: tokens"
        for seq, step in plan.after:
            assert self.books[seq].sampled_at[-1] == step
            assert seq in self.rows
        return rows, samplers

    def _compute(self, rows: list[Row]) -> None:
        writes: list[tuple[tuple[int, int], int]] = []
        for seq, start, count, table in rows:
            book = self.books[seq]
            tokens = (*book.prompt, *book.outputs)
            prefix = 0
            for at in range(start + count):
                prefix = hash((prefix, tokens[at]))
                spot = (table[at // self.size], at % self.size)
                if at < start:
                    assert self.kv.get(spot) == prefix, f"sequence {seq} attends to foreign KV at {at}"
                else:
                    writes.append((spot, prefix))
        spots = [spot for spot, _ in writes]
        assert len(set(spots)) == len(spots), "two rows write one cell"
        self.kv.update(writes)
