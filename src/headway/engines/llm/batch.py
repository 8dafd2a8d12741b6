"""Follows delta plans: keeps the set of decoding sequences and lays out the rows of each step in standing buffers."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from headway.core.errors import InvariantError
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.engines.llm.kv import KvPool
from headway.engines.llm.ops import Rows, Span, Spans
from headway.engines.llm.sequences import SequenceTable

# A linear never sees fewer rows (SPEC B7); a lone row gets one row of padding.
LEAST_ROWS = 2


class StepInputs(msgspec.Struct, frozen=True):
    """One step on the device: its rows, which of them sample, and for which sequences."""

    tokens: torch.Tensor
    rows: Rows
    sampled: torch.Tensor
    seqs: tuple[int, ...]
    slots: npt.NDArray[np.intp]
    padded_rows: int


class Place(Protocol):
    """Puts a host array where the step computes; arrays of one name lie at one address as long as they fit."""

    def __call__(self, name: str, array: npt.NDArray[Any], /) -> torch.Tensor: ...  # int32 and int64


class Swaps(Protocol):
    """Copies blocks to host slots and back, pairwise, in the order of the calls and of the steps between them."""

    def swap_out(self, blocks: Sequence[int], host_slots: Sequence[int]) -> None: ...

    def swap_in(self, blocks: Sequence[int], host_slots: Sequence[int]) -> None: ...


def in_place(_name: str, array: npt.NDArray[Any]) -> torch.Tensor:  # as above
    """The host computes: the array itself."""
    return torch.from_numpy(array)


class BatchLayout(msgspec.Struct, frozen=True):
    rows_max: int
    rows_per_tile: int
    place: Place = in_place

    @property
    def size(self) -> int:
        """Rows that the standing buffers hold; a bucket may pad past rows_max."""
        return 1 << (self.rows_max + LEAST_ROWS).bit_length()


class PersistentBatch:
    """The engine's mirror of the scheduler: what a plan does not name continues."""

    def __init__(self, sequences: SequenceTable, kv: KvPool, layout: BatchLayout) -> None:
        self._sequences, self._kv, self._layout = sequences, kv, layout
        self.swaps: Swaps = kv
        self._decoding: dict[int, int] = {}
        self._decode_slots: npt.NDArray[np.intp] | None = None
        size = layout.size
        self._tokens = np.zeros(size, np.int32)
        self._positions = np.zeros(size, np.int32)
        self._contexts = np.zeros(size, np.int32)
        self._owners = np.zeros(size, np.int32)
        self._slots = np.zeros(size, np.int64)
        self._tiles = np.zeros(size + 1, np.int32)

    @property
    def decoding(self) -> int:
        return len(self._decoding)

    def apply(self, plan: StepPlan, admit: Callable[[int, NewSequence], None]) -> None:
        """Take in what changed, in the order that StepPlan states; `admit(slot, new)` learns of new sequences.

        After a failed step nobody knows how much of it was applied, so every sequence is told to leave and comes again;
        one that is not known here leaves without effect.
        """
        sequences = self._sequences
        for seq in plan.leave:
            self._drop_row(seq)
            if seq in sequences:
                sequences.remove(seq)
        for seq in plan.preempt:
            self._drop_row(seq)
            sequences.blocks[sequences.slot(seq)] = 0
        for seq in plan.pause:
            self._drop_row(seq)
        for swap in plan.swap_out:
            self.swaps.swap_out(swap.device_blocks, swap.host_slots)
        for new in plan.new:
            admit(sequences.add(new), new)
        for swap in plan.swap_in:
            self.swaps.swap_in(swap.device_blocks, swap.host_slots)
            slot = sequences.slot(swap.seq)
            if not sequences.blocks[slot]:
                sequences.set_table(slot, swap.device_blocks)
        for join in plan.join:
            self._join(join)
        for seq, block in plan.grant:
            sequences.append_block(sequences.slot(seq), block)
        for chunk in plan.chunks:
            self._admit_chunk(chunk)

    def inputs(self, plan: StepPlan) -> StepInputs:
        """The rows of the step, decodes first. Raises InvariantError where plan and mirror have drifted apart."""
        decodes = self._slots_of_decodes()
        slots, positions = self._rows(decodes, plan.chunks)
        self._check(plan, decodes, slots, positions)
        count = len(slots)
        padded = max(count, plan.bucket, LEAST_ROWS)
        if padded > len(self._tokens):
            raise InvariantError(f"step {plan.step} has {padded} rows, the engine holds {len(self._tokens)}")
        self._fill(slots, positions, padded)
        tiles = self._tile_starts(len(decodes), plan.chunks, padded)
        last = len(decodes) + np.cumsum([chunk.count for chunk in plan.chunks], dtype=np.int64) - 1
        sampling = [index for index, chunk in enumerate(plan.chunks) if chunk.samples]
        sampled = np.concatenate([np.arange(len(decodes)), last[sampling]])
        place = self._layout.place
        return StepInputs(
            tokens=place("tokens", self._tokens[:padded]),
            rows=Rows(
                positions=place("positions", self._positions[:padded]),
                slots=place("slots", self._slots[:padded]),
                contexts=place("contexts", self._contexts[:padded]),
                owners=place("owners", self._owners[:padded]),
                tables=place("tables", self._sequences.tables),
                tile_starts=place("tiles", self._tiles[:tiles]),
                spans=self._spans(positions[: len(decodes)], plan.chunks),
            ),
            sampled=place("sampled", sampled),
            seqs=(*self._decoding, *(plan.chunks[index].seq for index in sampling)),
            slots=slots[sampled],
            padded_rows=padded - count,
        )

    def touched(self, inputs: StepInputs) -> tuple[set[int], set[int]]:
        """Blocks that the step uses, and those of them that it writes; `inputs` are what was returned last."""
        sequences, count = self._sequences, len(inputs.tokens) - inputs.padded_rows
        owners = np.unique(self._owners[:count])
        tables = sequences.tables[owners]
        held = tables[np.arange(tables.shape[1]) < sequences.blocks[owners, None]]
        return set(held.tolist()), set((self._slots[:count] // self._kv.block_size).tolist())

    def advance(self, plan: StepPlan) -> None:
        """The step has stored its KV: lengths grow."""
        self._sequences.computed[self._slots_of_decodes()] += 1
        for chunk in plan.chunks:
            self._sequences.computed[self._sequences.slot(chunk.seq)] = chunk.start + chunk.count

    def _drop_row(self, seq: int) -> None:
        if self._decoding.pop(seq, None) is not None:
            self._decode_slots = None

    def _join(self, join: Join) -> None:
        sequences = self._sequences
        slot = sequences.slot(join.seq)
        self._decoding[join.seq] = slot
        self._decode_slots = None
        position, known = sequences.computed[slot], sequences.known[slot]
        if join.token >= 0 and position == known:
            sequences.append_tokens(np.array([slot], np.intp), np.array([join.token], np.int32))
        elif position != known - 1:
            raise InvariantError(f"sequence {join.seq} joins with {position} of {known} known tokens computed")
        elif join.token >= 0 and sequences.tokens[slot, position] != join.token:
            raise InvariantError(
                f"sequence {join.seq} joins with token {join.token}, the engine has"
                f" {sequences.tokens[slot, position]} at position {position}"
            )

    def _admit_chunk(self, chunk: Chunk) -> None:
        sequences = self._sequences
        slot = sequences.slot(chunk.seq)
        if chunk.table:
            sequences.set_table(slot, chunk.table)
            sequences.computed[slot] = chunk.start
        if sequences.computed[slot] != chunk.start:
            raise InvariantError(
                f"a chunk of sequence {chunk.seq} starts at {chunk.start}, the engine has"
                f" computed {sequences.computed[slot]}"
            )
        if chunk.samples and chunk.start + chunk.count != sequences.known[slot]:
            raise InvariantError(
                f"sequence {chunk.seq} samples after {chunk.start + chunk.count} of"
                f" {sequences.known[slot]} known tokens"
            )

    def _slots_of_decodes(self) -> npt.NDArray[np.intp]:
        if self._decode_slots is None:
            self._decode_slots = np.fromiter(self._decoding.values(), np.intp, len(self._decoding))
        return self._decode_slots

    def _rows(
        self, decodes: npt.NDArray[np.intp], chunks: tuple[Chunk, ...]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Slot and position of every row."""
        positions = self._sequences.computed[decodes].astype(np.int64)
        if not chunks:
            return decodes, positions
        counts = [chunk.count for chunk in chunks]
        owners = np.repeat(np.array([self._sequences.slot(chunk.seq) for chunk in chunks], np.intp), counts)
        spans = [np.arange(chunk.start, chunk.start + chunk.count) for chunk in chunks]
        return np.concatenate([decodes, owners]), np.concatenate([positions, *spans])

    def _check(
        self,
        plan: StepPlan,
        decodes: npt.NDArray[np.intp],
        slots: npt.NDArray[np.intp],
        positions: npt.NDArray[np.int64],
    ) -> None:
        kv_tokens = int(positions[: len(decodes)].sum()) + len(decodes)
        seen = (len(decodes), kv_tokens, len(slots) - len(decodes))
        if seen != (plan.decodes, plan.kv_tokens, plan.prefill_tokens):
            raise InvariantError(
                f"step {plan.step} plans (decodes, kv_tokens, prefill_tokens) ="
                f" {(plan.decodes, plan.kv_tokens, plan.prefill_tokens)}, the engine counts {seen}"
            )
        homeless = positions // self._kv.block_size >= self._sequences.blocks[slots]
        unknown = positions >= self._sequences.known[slots]
        for wrong, what in ((homeless, "has no block"), (unknown, "has no token")):
            if wrong.any():
                first = int(np.flatnonzero(wrong)[0])
                raise InvariantError(f"step {plan.step}: row {first} {what} for position {positions[first]}")

    def _fill(self, slots: npt.NDArray[np.intp], positions: npt.NDArray[np.int64], padded: int) -> None:
        count, size = len(slots), self._kv.block_size
        sequences = self._sequences
        self._tokens[:count] = sequences.tokens[slots, positions]
        self._positions[:count] = positions
        self._contexts[:count] = positions + 1
        self._owners[:count] = slots
        self._slots[:count] = sequences.tables[slots, positions // size].astype(np.int64) * size + positions % size
        for buffer in (self._tokens, self._positions, self._contexts, self._owners):
            buffer[count:padded] = 0
        self._slots[count:padded] = self._kv.scratch_slot

    def _tile_starts(self, decodes: int, chunks: tuple[Chunk, ...], padded: int) -> int:
        """Write where tiles of attention begin; returns how many entries there are."""
        starts = [np.arange(decodes)]
        at = decodes
        for chunk in chunks:
            starts.append(np.arange(at, at + chunk.count, self._layout.rows_per_tile))
            at += chunk.count
        starts.append(np.arange(at, padded))
        tiles = np.concatenate(starts)
        self._tiles[: len(tiles)] = tiles
        self._tiles[len(tiles)] = padded
        return len(tiles) + 1

    def _spans(self, decodes: npt.NDArray[np.int64], chunks: tuple[Chunk, ...]) -> Spans:
        spans = []
        at = len(decodes)
        for chunk in chunks:
            spans.append(Span(at, chunk.count, self._sequences.slot(chunk.seq), chunk.start + 1))
            at += chunk.count
        longest = int(decodes.max(initial=-1)) + 1
        return Spans(singles=len(decodes), blocks=-(-longest // self._kv.block_size), chunks=tuple(spans))
