"""What entered and left the prefix index of a pool since the last report, for routers (core.reports.KvEvents).

Every stride-th block of a chain only (core.blockhash.known_stride), and bounded: a log that overflows, like a cache
that was emptied, is followed by a snapshot.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from headway.core.blockhash import known_stride
from headway.core.reports import KvEvents

CHANGES_MAX: Final = 8192  # 128 KiB of hashes: a report every 20 ms brings a few hundred
SNAPSHOT_MAX: Final = 8192


class KvLog:
    """Costs one step per block that is told, none for those in between."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.told = bytearray(blocks)  # by block: its content is in the index, and routers know or will know it
        self._stride = known_stride(block_size)
        self._changes: dict[bytes, bool] = {}  # hash -> it is there now; what came and went in between is no news
        self._is_reset = True

    def stored(self, table: Sequence[int], keys: Sequence[bytes], span: range) -> None:
        """The blocks of `span` entered the index."""
        told, stride = self.told, self._stride
        places = slice(span.start + (-span.start - 1) % stride, span.stop, stride)
        for block in table[places]:
            told[block] = 1
        if not self._is_reset:
            self._changes.update(dict.fromkeys(keys[places], True))
            if len(self._changes) > CHANGES_MAX:
                self._forget()

    def removed(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """The contents of `blocks` left the index."""
        told = self.told
        changes = None if self._is_reset else self._changes
        for block in blocks:
            if told[block]:
                told[block] = 0
                if changes is not None:
                    changes[hashes[block]] = False
        if len(self._changes) > CHANGES_MAX:
            self._forget()

    def reset(self) -> None:
        """The index is empty."""
        self.told = bytearray(len(self.told))
        self._forget()

    def _forget(self) -> None:
        self._changes.clear()
        self._is_reset = True

    def take(self, hashes: Sequence[bytes], *, everything: bool) -> KvEvents:
        """Return the changes since the last call, or (asked, or when they are lost) what the index holds."""
        changes, is_reset = self._changes, self._is_reset or everything
        self._changes, self._is_reset = {}, False
        if is_reset:
            held = (hashes[block] for block, told in enumerate(self.told) if told)
            return KvEvents(tuple(islice(held, SNAPSHOT_MAX)), (), True)
        stored = tuple(key for key, is_there in changes.items() if is_there)
        return KvEvents(stored, tuple(key for key, is_there in changes.items() if not is_there))
