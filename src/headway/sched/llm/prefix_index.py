"""Which block holds which content: the prefix index of one pool (SPEC B2)."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec

from headway.sched.llm.kv_log import KvLog

BROKEN: Final = -1  # identity after a hash collision or a lost parent: the chain is cached no further
TOKEN_BYTES: Final = 4
Identity = int | bytes  # of the content before a block: a uid, or the cache root at the start

SHARED_MAX: Final = 4  # contents keep the tokens of their whole chain, if that is at most so many times longer
# The insert that makes a dict of 900,000 hashes grow takes 26 ms, and it grows even at a steady size, because deleted
# entries use it up. Dicts of this size take 0.1 ms at most (of 8,192: 0.5), but fill up together: a step may meet
# several.
HOME_BLOCKS: Final = 1024
_BYTE: Final = 256


class _Run(msgspec.Struct, frozen=True, gc=False):
    """What contents that were offered together have in common."""

    raw: bytes  # their tokens, TOKEN_BYTES each
    start: int  # bytes of the chain before them
    step: int  # writes them; later steps may read


class PrefixIndex:
    """A hash only finds; tokens and the identity of the content before decide, so a chain is exact by induction.

    A uid is never used twice and names its block: `uid % blocks`.
    """

    def __init__(self, blocks: int, block_size: int, log: KvLog) -> None:
        self.width = TOKEN_BYTES * block_size
        self.uid = [0] * blocks  # identity of a block's content; 0: not in the index
        self.key = [b""] * blocks  # hash of its content, if it has one
        self.added = False  # something entered with the last offer
        self.evicted = 0  # and left
        self.orphans: list[int] = []  # blocks that lost their content to a new offer of the same
        self._log = log
        log.follow(self.uid)
        self._parent: list[Identity] = [b""] * blocks
        self._run = [_Run(b"", 0, 0)] * blocks
        self._dicts: list[dict[bytes, int]] = [{} for _ in range(min(blocks // HOME_BLOCKS + 1, _BYTE))]
        self._homes = [self._dicts[first % len(self._dicts)] for first in range(_BYTE)]  # by first byte of the hash
        self._blocks = self._last_uid = blocks

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Hashes and blocks."""
        for home in self._dicts:
            yield from home.items()

    def blocks(self) -> Iterator[int]:
        """Blocks."""
        return chain.from_iterable(home.values() for home in self._dicts)

    def is_alive(self, content: Identity) -> bool:
        """A content that left the index can never be reached again, nor can what hangs on it."""
        return isinstance(content, bytes) or self.uid[content % self._blocks] == content

    def match(self, root: bytes, hashes: Sequence[bytes], raw: bytes, limit: int, step: int) -> list[int]:
        """Return the longest run of leading blocks whose content steps before `step` have written."""
        hits: list[int] = []
        if not limit or hashes[0] not in self._homes[hashes[0][0]]:
            return hits  # most prompts begin like no other
        homes, parents, runs, width = self._homes, self._parent, self._run, self.width
        parent: Identity = root
        at = 0
        for key in hashes[:limit]:
            block = homes[key[0]].get(key)
            if block is None or parents[block] != parent:
                break
            run = runs[block]
            if run.step >= step:
                break
            end = at + width
            if run.raw[at - run.start : end - run.start] != raw[at:end]:
                break
            hits.append(block)
            parent = self.uid[block]
            at = end
        return hits

    def offer_run(
        self, table: Sequence[int], keys: Sequence[bytes], raw: bytes, span: range, parent: Identity, step: int
    ) -> int:
        """Offer the blocks of `span`, written by `step`; return the identity of the last content, or BROKEN."""
        uids, names, parents, runs, homes, size = self.uid, self.key, self._parent, self._run, self._homes, self._blocks
        self.added = False
        if not (isinstance(parent, bytes) or uids[parent % size] == parent):
            return BROKEN  # nothing could ever reach them
        first, begin, length = span.start, span.start * self.width, len(span) * self.width
        if len(raw) <= SHARED_MAX * length:
            run = _Run(raw, 0, step)  # the whole chain: a copy reads cold memory
        else:
            run = _Run(raw[begin : begin + length], begin, step)
        uid = row = last = self._last_uid  # `row`: before the content of place `first`, the first since the last known
        for block, key in zip(table[first : span.stop], keys[first : span.stop], strict=True):
            home = homes[key[0]]
            if key in home or uids[block]:
                if uid != row:
                    end = first + (uid - row) // size
                    self._log.stored(table, keys, first, end)
                    first, row = end, uid
                known = self._settle(block, key, raw, first * self.width, parent)
                if known:
                    parent = known
                    if known == BROKEN:
                        break
                    first += 1
                    continue
            home[key] = block
            uid += size
            parents[block] = parent
            uids[block] = parent = uid + block
            names[block] = key
            runs[block] = run
        if uid != row:
            self._log.stored(table, keys, first, first + (uid - row) // size)
        if uid != last:
            self._last_uid, self.added = uid, True
        return parent if isinstance(parent, int) else BROKEN

    def _settle(self, block: int, key: bytes, raw: bytes, start: int, parent: Identity) -> int:
        """Of a block whose hash is there already, or that stands for something already, return the identity under which
        its content is known; 0 when it may enter after all."""
        other = self._homes[key[0]].get(key)
        if other is not None:
            run, above = self._run[other], self._parent[other]
            end = start + self.width
            if above == parent and run.raw[start - run.start : end - run.start] == raw[start:end]:
                return self.uid[other]
            if self.is_alive(above):
                return BROKEN  # a collision; the one that is there stays
            self.orphans.append(other)  # its parent was evicted before it: no walk finds it
            self.forget((other,))
        return BROKEN if self.uid[block] else 0

    def forget(self, blocks: Sequence[int]) -> None:
        """The contents of `blocks` leave."""
        uids, names, homes, told = self.uid, self.key, self._homes, self._log.told
        gone = []
        for block in blocks:
            key = names[block]
            del homes[key[0]][key]
            if told[block]:
                told[block] = 0
                gone.append(key)
            uids[block] = 0
        self.evicted += len(blocks)
        if gone:
            self._log.removed(gone)

    def clear(self) -> None:
        """Nothing is known any more."""
        for _key, block in self.items():
            self.uid[block] = 0
        for home in self._dicts:
            home.clear()
