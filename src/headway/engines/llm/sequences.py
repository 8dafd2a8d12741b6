"""What the engine remembers of every sequence: tokens, KV length and block table, in arrays indexed by slot."""

import numpy as np
import numpy.typing as npt

from headway.core.errors import InvariantError
from headway.core.plans import NewSequence

Ints = npt.NDArray[np.int32]
FIRST_SLOTS = 16


class SequenceTable:
    """One slot per known sequence, from `add` to `remove`; arrays grow by doubling and keep their addresses else."""

    def __init__(self, max_tokens: int, max_blocks: int, pool_blocks: int, first_slots: int = FIRST_SLOTS) -> None:
        self._pool_blocks = pool_blocks
        self._slots: dict[int, int] = {}
        self._free = list(range(first_slots - 1, -1, -1))
        # One token more than the longest context: a row that runs on after its end samples once in vain.
        self.tokens = np.zeros((first_slots, max_tokens + 2), np.int32)
        self.known = np.zeros(first_slots, np.int32)  # prompt and outputs
        self.prompt = np.zeros(first_slots, np.int32)  # prompt alone; outputs start here, preempted or not
        self.computed = np.zeros(first_slots, np.int32)  # positions whose KV is stored
        self.tables = np.zeros((first_slots, max_blocks), np.int32)
        self.blocks = np.zeros(first_slots, np.int32)
        self.tenancy = np.zeros(first_slots, np.int32)  # counts the sequences a slot has held: late results ask

    @property
    def capacity(self) -> int:
        return len(self.known)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, seq: int) -> bool:
        return seq in self._slots

    def slot(self, seq: int) -> int:
        if seq not in self._slots:
            raise InvariantError(f"the plan names sequence {seq}, which the engine does not know")
        return self._slots[seq]

    def add(self, new: NewSequence) -> int:
        if new.seq in self._slots:
            raise InvariantError(f"sequence {new.seq} is new to the plan but known to the engine")
        if not self._free:
            self._grow()
        slot = self._slots[new.seq] = self._free.pop()
        known = len(new.prompt) + len(new.outputs)
        if known >= self.tokens.shape[1]:
            raise InvariantError(f"{new.request} brings {known} tokens, the engine holds {self.tokens.shape[1] - 2}")
        self.tokens[slot, : len(new.prompt)] = new.prompt
        self.tokens[slot, len(new.prompt) : known] = new.outputs
        self.prompt[slot], self.known[slot] = len(new.prompt), known
        self.computed[slot] = self.blocks[slot] = 0
        self.tenancy[slot] += 1
        return slot

    def remove(self, seq: int) -> int:
        slot = self.slot(seq)
        del self._slots[seq]
        self._free.append(slot)
        return slot

    def set_table(self, slot: int, blocks: tuple[int, ...]) -> None:
        if len(blocks) > self.tables.shape[1]:
            raise InvariantError(f"a table of {len(blocks)} blocks exceeds {self.tables.shape[1]}")
        # The kernels follow tables without looking; a wrong block would be read from foreign memory.
        if outside := [block for block in blocks if not 0 <= block < self._pool_blocks]:
            raise InvariantError(f"block {outside[0]} is outside the pool of {self._pool_blocks} blocks")
        self.tables[slot, : len(blocks)] = blocks
        self.blocks[slot] = len(blocks)

    def append_block(self, slot: int, block: int) -> None:
        held = self.blocks[slot]
        if held == self.tables.shape[1] or not 0 <= block < self._pool_blocks:
            raise InvariantError(f"block {block} cannot follow {held} blocks; the pool has {self._pool_blocks}")
        self.tables[slot, held] = block
        self.blocks[slot] += 1

    def append_tokens(self, slots: npt.NDArray[np.intp], tokens: Ints) -> None:
        """Append one sampled token to each slot."""
        self.tokens[slots, self.known[slots]] = tokens
        self.known[slots] += 1

    def outputs_to(self, slot: int, position: int) -> tuple[int, ...]:
        """Outputs up to the one at `position`."""
        return tuple(self.tokens[slot, self.prompt[slot] : position + 1].tolist())

    def outputs(self, slot: int) -> tuple[int, ...]:
        return self.outputs_to(slot, int(self.known[slot]) - 1)

    def _grow(self) -> None:
        old = self.capacity
        for name in ("tokens", "known", "prompt", "computed", "tables", "blocks", "tenancy"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self._free = list(range(2 * old - 1, old - 1, -1))
