"""An engine without a model: applies plans to a fake paged KV and samples fake tokens, on a fixed clock if asked."""

import time
from array import array
from collections.abc import Callable, Sequence

import msgspec

from headway.core.errors import EngineError
from headway.core.events import StepDone, Stopped
from headway.core.plans import Chunk, Join, NewSequence, StepPlan, StepTiming, Swap
from headway.core.ports import ModelLimits
from headway.core.units import Ns, ns_from_s
from headway.engines.synthetic.tokens import EMPTY, is_stop, mix, sample


class SyntheticParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`step_s`: wall time of a step plus `token_s` per token; 0: as fast as it can. `check`: verify every slot read."""

    model: str = "synthetic"
    vocab_size: int = 32_000
    max_model_len: int = 8192
    block_size: int = 16
    kv_blocks: int = 4096
    host_slots: int = 0
    eos_token_ids: tuple[int, ...] = (2,)
    step_s: float = 0.0
    token_s: float = 0.0
    check: bool = False


class _Sequence:
    def __init__(self, new: NewSequence) -> None:
        self.request, self.sampling = new.request, new.sampling
        self.tokens = [*new.prompt, *new.outputs]
        self.prompt_length = len(new.prompt)
        self.table: list[int] = []
        self.sampled_at: dict[int, int] = {}  # step -> token, the last two


class SyntheticEngine:
    """Implements `core.ports.LlmEngine`. Raises EngineError for a plan that does not fit what it holds."""

    beat = -1  # every row has a token of its own

    def __init__(self, params: SyntheticParams, clock: Callable[[], Ns] = time.monotonic_ns) -> None:
        self._params, self._clock = params, clock
        self._slots = array("Q", bytes(8 * params.kv_blocks * params.block_size))
        self._host = array("Q", bytes(8 * params.host_slots * params.block_size))
        self._sequences: dict[int, _Sequence] = {}
        self._decoding: dict[int, None] = {}
        self._device_free_ns = 0
        self._limits = ModelLimits(
            model=params.model,
            vocab_size=params.vocab_size,
            max_model_len=params.max_model_len,
            block_size=params.block_size,
            kv_blocks=params.kv_blocks,
            kv_bytes_per_block=8 * params.block_size,
            host_slots=params.host_slots,
            layers=1,
            eos_token_ids=params.eos_token_ids,
            dtype="uint64",
            device="none",
        )

    @property
    def limits(self) -> ModelLimits:
        """What it can hold."""
        return self._limits

    # Steps

    def run(self, plan: StepPlan) -> StepDone:
        """Run one step to its end."""
        return self.launch(plan)()

    def launch(self, plan: StepPlan) -> Callable[[], StepDone]:
        """Start a step on the fake device; the returned call waits for its end."""
        launched_ns = self._clock()
        seqs, tokens, stopped = self.apply(plan)
        prepared_ns = self._clock()
        began_ns = max(prepared_ns, self._device_free_ns)
        idle_ns = began_ns - self._device_free_ns if self._device_free_ns else 0
        rows = max(plan.tokens, plan.bucket)
        took_s = self._params.step_s + self._params.token_s * rows
        self._device_free_ns = began_ns + ns_from_s(took_s)
        done_ns = self._device_free_ns

        def wait() -> StepDone:
            while (left_ns := done_ns - self._clock()) > 0:
                time.sleep(left_ns / 1e9)
            at_ns = self._clock()
            host_ns = prepared_ns - launched_ns
            timing = StepTiming(
                launched_ns,
                began_ns,
                at_ns,
                host_ns=host_ns,
                idle_gap_ns=min(idle_ns, host_ns),
                padded_rows=rows - plan.tokens,
            )
            return StepDone(at_ns, f"step {plan.step}", plan.step, seqs, tokens, timing, stopped)

        return wait

    def apply(self, plan: StepPlan) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Stopped, ...]]:
        """Apply a plan in its order and return sampled sequences, their tokens, and who stopped."""
        for seq in plan.leave:
            self._forget_row(seq)
            self._sequences.pop(seq, None)
        for seq in plan.preempt:
            self._forget_row(seq)
            self._held(seq, plan).table = []
        for seq in plan.pause:
            self._forget_row(seq)
        for swap in plan.swap_out:
            self._swap(swap, self._slots, swap.device_blocks, self._host, swap.host_slots)
        for new in plan.new:
            if new.seq in self._sequences:
                raise EngineError(f"step {plan.step}: sequence {new.seq} is new twice")
            self._sequences[new.seq] = _Sequence(new)
        for swap in plan.swap_in:
            self._swap_in(swap, plan)
        for join in plan.join:
            self._join(join, plan)
        for seq, block in plan.grant:
            self._held(seq, plan).table.append(block)
        if plan.decodes != len(self._decoding):
            raise EngineError(f"step {plan.step}: plan decodes {plan.decodes}, {len(self._decoding)} have joined")
        sampled = [(seq, self._decode(seq, plan)) for seq in self._decoding]
        for chunk in plan.chunks:
            if self._prefill(chunk, plan):
                sampled.append((chunk.seq, self._sample(self._held(chunk.seq, plan), plan)))
        return self._results(sampled)

    def _results(
        self, sampled: Sequence[tuple[int, int]]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Stopped, ...]]:
        stopped: list[Stopped] = []
        for seq, token in sampled:
            held = self._sequences[seq]
            count = len(held.tokens) - held.prompt_length
            if is_stop(token, count, held.sampling, self._params.eos_token_ids):
                stopped.append(Stopped(seq, tuple(held.tokens[held.prompt_length :])))
        return tuple(seq for seq, _ in sampled), tuple(token for _, token in sampled), tuple(stopped)

    def _held(self, seq: int, plan: StepPlan) -> _Sequence:
        held = self._sequences.get(seq)
        if held is None:
            raise EngineError(f"step {plan.step}: sequence {seq} is not known; it left or never came")
        return held

    def _forget_row(self, seq: int) -> None:
        self._decoding.pop(seq, None)

    def _join(self, join: Join, plan: StepPlan) -> None:
        held = self._held(join.seq, plan)
        last = join.token if join.step < 0 else held.sampled_at.get(join.step, -1)
        if not held.tokens or held.tokens[-1] != last:
            raise EngineError(f"step {plan.step}: {join.seq} joins with token {last}, its last is {held.tokens[-1:]}")
        self._decoding[join.seq] = None

    # Fake KV

    def _slot(self, held: _Sequence, position: int, plan: StepPlan) -> int:
        size = self._params.block_size
        place = position // size
        if place >= len(held.table):
            raise EngineError(
                f"step {plan.step}: request {held.request} writes position {position}, its table has "
                f"{len(held.table)} blocks of {size}"
            )
        return held.table[place] * size + position % size

    def _write(self, held: _Sequence, position: int, plan: StepPlan) -> None:
        before = EMPTY if position == 0 else self._slots[self._slot(held, position - 1, plan)]
        self._slots[self._slot(held, position, plan)] = mix(before, held.tokens[position])

    def _decode(self, seq: int, plan: StepPlan) -> int:
        held = self._sequences[seq]
        self._write(held, len(held.tokens) - 1, plan)
        return self._sample(held, plan)

    def _prefill(self, chunk: Chunk, plan: StepPlan) -> bool:
        held = self._held(chunk.seq, plan)
        if chunk.table:
            held.table = list(chunk.table)
        end = chunk.start + chunk.count
        if end > len(held.tokens) or chunk.samples != (end == len(held.tokens)):
            raise EngineError(
                f"step {plan.step}: chunk {chunk.start}+{chunk.count} of {chunk.seq} (samples: {chunk.samples}) does "
                f"not match its {len(held.tokens)} tokens"
            )
        for position in range(chunk.start, end):
            self._write(held, position, plan)
        return chunk.samples

    def _sample(self, held: _Sequence, plan: StepPlan) -> int:
        if self._params.check:
            self._verify(held, plan)
        position = len(held.tokens)
        token = sample(
            self._slots[self._slot(held, position - 1, plan)], position, held.sampling, self._limits.vocab_size
        )
        held.tokens.append(token)
        held.sampled_at[plan.step] = token
        while len(held.sampled_at) > 4:
            del held.sampled_at[next(iter(held.sampled_at))]
        return token

    def _verify(self, held: _Sequence, plan: StepPlan) -> None:
        history = EMPTY
        for position, token in enumerate(held.tokens):
            history = mix(history, token)
            if self._slots[self._slot(held, position, plan)] != history:
                raise EngineError(f"step {plan.step}: request {held.request} reads foreign KV at position {position}")

    def _swap_in(self, swap: Swap, plan: StepPlan) -> None:
        held = self._held(swap.seq, plan)
        self._swap(swap, self._host, swap.host_slots, self._slots, swap.device_blocks)
        held.table = list(swap.device_blocks)

    def _swap(
        self, swap: Swap, source: "array[int]", froms: Sequence[int], target: "array[int]", tos: Sequence[int]
    ) -> None:
        size = self._params.block_size
        if len(froms) != len(tos):
            raise EngineError(f"sequence {swap.seq} swaps {len(froms)} blocks into {len(tos)}")
        for a, b in zip(froms, tos, strict=True):
            target[b * size : (b + 1) * size] = source[a * size : (a + 1) * size]

    def read_blocks(self, blocks: Sequence[int]) -> bytes:
        """Content of these blocks."""
        size = self._params.block_size
        return b"".join(self._slots[block * size : (block + 1) * size].tobytes() for block in blocks)

    def launch_read(self, blocks: Sequence[int]) -> Callable[[], bytes]:
        """Read at once."""
        found = self.read_blocks(blocks)
        return lambda: found

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]:
        """Nothing to do before."""
        return lambda: self.write_blocks(blocks, payload)

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None:
        """Write what `read_blocks` returned elsewhere."""
        size, values = self._params.block_size, array("Q", payload)
        if len(values) != size * len(blocks):
            raise EngineError(f"{len(payload)} bytes do not fill {len(blocks)} blocks of {size} slots")
        for place, block in enumerate(blocks):
            self._slots[block * size : (block + 1) * size] = values[place * size : (place + 1) * size]

    def lose_kv(self) -> None:
        """What a crash of the device leaves behind: every slot holds something, none what it should."""
        self._slots = array("Q", [EMPTY ^ 1]) * len(self._slots)

    def close(self) -> None:
        """Nothing to free."""
