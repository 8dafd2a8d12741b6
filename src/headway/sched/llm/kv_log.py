"""What entered and left the prefix index of a pool since the last report, for routers (core.reports.KvEvents).

Every stride-th block of a chain only (core.blockhash.known_stride), and bounded: a log that overflows, like a cache
that was emptied, is followed by a snapshot.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

from headway.core.blockhash import known_stride
from headway.core.reports import KvEvents
from headway.sched.llm.prefix_runs import Run

CHANGES_MAX: Final = 8192  # 128 KiB of hashes: a report every 20 ms brings a few hundred
SNAPSHOT_MAX: Final = 8192


class KvLog:
    """Costs one step per block that is told, none for those in between; what became of each is found out when it is
    asked for."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._marks = bytearray(blocks)
        # By block, true: its content is in the index, and routers know or will know it.
        self.told: Sequence[object] = self._marks
        self._stride = known_stride(block_size)
        self._entries: list[tuple[Sequence[bytes], bool]] = []  # hashes that entered, or left, in order
        self._counted = 0  # hashes in them
        self._is_reset = True

    def follow(self, runs: Sequence[object]) -> None:
        """Where routers know every block, those are told that are in the index: `runs` has something for them."""
        if self._stride == 1:
            self.told = runs

    def stored(self, table: Sequence[int], keys: Sequence[bytes], start: int, stop: int) -> None:
        """The blocks from place `start` to before `stop` of a chain entered the index."""
        stride = self._stride
        if stride > 1:
            told, start = self._marks, start + (-start - 1) % stride
            for block in table[start:stop:stride]:
                told[block] = 1
        if not self._is_reset:
            keys = keys[start:stop:stride]
            self._entries.append((keys, True))
            self._counted += len(keys)
            if self._counted > 2 * CHANGES_MAX:
                self._shorten()

    def untell(self, run: Run, begin: int, stop: int, gone: list[bytes]) -> None:
        """Contents of `run` left the index: the hashes of those that were told to `gone`, the last first."""
        stride, keys = self._stride, run.keys
        if stride == 1:
            gone += keys[begin:stop][::-1]
            return
        told, blocks = self._marks, run.blocks
        for place in range(stop - 1 - (run.first + stop) % stride, begin - 1, -stride):
            block = blocks[place]
            if told[block]:
                told[block] = 0
                gone.append(keys[place])

    def removed(self, keys: Sequence[bytes]) -> None:
        """These left, and their blocks are not `told` any more."""
        if not self._is_reset:
            self._entries.append((keys, False))
            self._counted += len(keys)
            if self._counted > 2 * CHANGES_MAX:
                self._shorten()

    def reset(self) -> None:
        """The index is empty."""
        if self._stride > 1:
            self._marks = self.told = bytearray(len(self.told))
        self._forget()

    def _shorten(self) -> None:
        changes = self._changes()
        if len(changes) > CHANGES_MAX:
            self._forget()
            return
        entered, left = _sides(changes)
        self._entries, self._counted = [(entered, True), (left, False)], len(changes)

    def _changes(self) -> dict[bytes, bool]:
        """By hash, whether it is there now; what came and went in between is no news."""
        changes: dict[bytes, bool] = {}
        for keys, is_there in self._entries:
            changes.update(dict.fromkeys(keys, is_there))
        return changes

    def _forget(self) -> None:
        self._entries, self._counted = [], 0
        self._is_reset = True

    def take(self, hash_of: Callable[[int], bytes], *, everything: bool) -> KvEvents:
        """Return the changes since the last call, or (asked, or when they are lost) what the index holds."""
        changes = self._changes()
        is_reset = everything or self._is_reset or len(changes) > CHANGES_MAX
        self._entries, self._counted, self._is_reset = [], 0, False
        if is_reset:
            held = (hash_of(block) for block, told in enumerate(self.told) if told)
            return KvEvents(tuple(islice(held, SNAPSHOT_MAX)), (), True)
        return KvEvents(*_sides(changes))


def _sides(changes: Mapping[bytes, bool]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Hashes that are there, and those that are not."""
    there = tuple(key for key, is_there in changes.items() if is_there)
    return there, tuple(key for key, is_there in changes.items() if not is_there)
