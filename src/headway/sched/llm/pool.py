"""Paged KV blocks: reference counts, step fences, reservations and the prefix index.

A block is in exactly one place: referenced (ref > 0), fenced (ref 0, an open step may still touch it), cached (ref 0,
its content can be hit, in LRU order) or free. Per-block facts are flat lists of ints and bytes, which the garbage
collector does not walk.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from headway.core.errors import InvariantError
from headway.sched.llm.kv_log import KvLog

BROKEN: Final = -1  # identity after a hash collision or a lost parent: the chain is cached no further
TOKEN_BYTES: Final = 4
Identity = int | bytes  # of the content before a block: a uid, or the cache root at the start


class BlockPool:
    """The blocks of one replica (and, without its index, the host slots of swap)."""

    def __init__(self, size: int, block_size: int = 1) -> None:
        self.size = size
        self.width = TOKEN_BYTES * block_size
        self.free = list(range(size - 1, -1, -1))
        self.ref = [0] * size
        self.fence = [0] * size
        self.fences: dict[int, list[int]] = {}  # step -> blocks that it may touch
        self.fenced = 0
        self.reserved = 0
        self.lru: OrderedDict[int, None] = OrderedDict()
        self.epoch = 0  # grows whenever an admission that failed might succeed
        self.index: dict[bytes, int] = {}  # hash -> block
        self.home: dict[int, int] = {}  # uid -> block
        self.uid = [0] * size  # identity of its content; 0: not in the index
        self.parent: list[Identity] = [0] * size
        self.hash = [b""] * size
        self.tokens = [b""] * size
        self.written = [0] * size  # the step that writes it; later steps may read it
        self.last_registered = 0
        self.evicted = 0  # contents that left the index
        self.log = KvLog(size, block_size)
        self._last_uid = 0

    @property
    def available(self) -> int:
        """Blocks that may be handed out now, beyond what is reserved."""
        return len(self.free) + len(self.lru) - self.reserved

    @property
    def cached(self) -> int:
        return len(self.lru)

    @property
    def used(self) -> int:
        """Referenced or fenced."""
        return self.size - len(self.free) - len(self.lru)

    def take(self, count: int) -> list[int]:
        """Return `count` blocks with one reference each; the caller checked that they exist."""
        free = self.free
        short = count - len(free)
        if short > 0:
            taken = free[::-1]
            free.clear()
            popitem, index, home, uid, keys = self.lru.popitem, self.index, self.home, self.uid, self.hash
            for _ in range(short):
                block, _none = popitem(last=False)
                del index[keys[block]], home[uid[block]]
                uid[block] = 0
                taken.append(block)
            self.evicted += short
            self.log.removed(taken[-short:], keys)
        else:
            taken = free[: -count - 1 : -1]
            del free[len(free) - count :]
        ref = self.ref
        for block in taken:
            ref[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a block that is referenced, fenced or cached."""
        if not self.ref[block]:
            if block in self.lru:
                del self.lru[block]
            elif self.fence[block]:
                self.fenced -= 1
                self.fence[block] = 0
            else:
                raise InvariantError(f"block {block} is free and cannot be shared")
        self.ref[block] += 1

    def drop(self, blocks: Sequence[int], fence: int, done: int) -> None:
        """Give references back; a block without any waits until step `fence` is done.

        Tail first, so that the LRU meets a child before its parent.
        """
        ref, fences, gone = self.ref, self.fence, []
        for block in reversed(blocks):
            left = ref[block] = ref[block] - 1
            if not left:
                fences[block] = fence
                gone.append(block)
            elif left < 0:
                raise InvariantError(f"block {block} is freed twice")
        self.epoch += 1
        if not gone:
            return
        self.fenced += len(gone)
        if fence <= done:
            self._free(gone, fence)
        else:
            self.fences.setdefault(fence, []).extend(gone)

    def release(self, step: int) -> None:
        """Step `step` is done: its blocks return."""
        blocks = self.fences.pop(step, None)
        if blocks is not None:
            self.epoch += 1
            self._free(blocks, step)

    def _free(self, blocks: list[int], step: int) -> None:
        ref, fence, uid, free, lru = self.ref, self.fence, self.uid, self.free, self.lru
        for block in blocks:
            if ref[block] or fence[block] != step:
                continue  # shared again meanwhile
            fence[block] = 0
            self.fenced -= 1
            if uid[block]:
                lru[block] = None
            else:
                free.append(block)

    def set_reserve(self, change: int) -> None:
        """Add to (or return from) what is set aside for requests that may not be preempted again."""
        self.reserved += change
        self.epoch += 1

    def match(self, root: bytes, hashes: Sequence[bytes], raw: bytes, limit: int, step: int) -> list[int]:
        """Return the longest run of leading blocks whose content steps before `step` have written.

        `raw` holds the tokens, `TOKEN_BYTES` each. A hash only finds; tokens and the identity of the
        content before decide, so a chain is exact by induction.
        """
        hits: list[int] = []
        index, width = self.index, self.width
        parent: Identity = root
        at = 0
        for i in range(min(limit, len(hashes))):
            block = index.get(hashes[i])
            if block is None or self.parent[block] != parent or self.written[block] >= step:
                break
            if self.tokens[block] != raw[at : at + width]:
                break
            hits.append(block)
            parent = self.uid[block]
            at += width
        return hits

    def register(self, block: int, key: bytes, parent: Identity, tokens: bytes, step: int) -> int:
        """Offer a full block, written by `step`, to the index; return the identity of its content, or BROKEN."""
        if isinstance(parent, int) and parent not in self.home:
            return BROKEN  # nothing could ever reach it
        other = self.index.get(key)
        if other is not None:
            if self.parent[other] == parent and self.tokens[other] == tokens:
                return self.uid[other]
            above = self.parent[other]
            if not isinstance(above, int) or above in self.home:
                return BROKEN  # a collision; the one that is there stays
            self._orphan(other)
        if self.uid[block]:
            return BROKEN  # it already stands for other content
        self._last_uid += 1
        uid = self._last_uid
        self.uid[block], self.parent[block] = uid, parent
        self.hash[block], self.tokens[block] = key, tokens
        self.written[block] = self.last_registered = step
        self.index[key] = block
        self.home[uid] = block
        self.epoch += 1
        return uid

    def register_run(
        self, table: Sequence[int], keys: Sequence[bytes], raw: bytes, span: range, parent: Identity, step: int
    ) -> int:
        """Offer the blocks of `span` in a row; return the identity of the last content, or BROKEN."""
        index, uids, width = self.index, self.uid, self.width
        alive = not isinstance(parent, int) or parent in self.home
        uid, before = (parent if isinstance(parent, int) else BROKEN), self._last_uid
        for i in span:
            block, key, tokens = table[i], keys[i], raw[i * width : (i + 1) * width]
            if not alive or key in index or uids[block]:
                uid = self.register(block, key, parent, tokens, step)
                if uid == BROKEN:
                    break
            else:
                self._last_uid += 1
                uid = uids[block] = self._last_uid
                self.parent[block], self.hash[block], self.tokens[block] = parent, key, tokens
                self.written[block] = step
                index[key] = block
                self.home[uid] = block
            parent, alive = uid, True
        if self._last_uid != before:
            self.log.stored(table, keys, span, uids, self.hash)
            self.last_registered = step
            self.epoch += self._last_uid - before
        return uid

    def forget_cached(self) -> None:
        """Empty the index; cached blocks become free. Blocks in use lose their identity only."""
        for block in self.home.values():
            self.uid[block] = 0
        self.index.clear()
        self.home.clear()
        self.free.extend(self.lru)
        self.lru.clear()
        self.log.reset()
        self.epoch += 1

    def _forget(self, block: int) -> None:
        del self.index[self.hash[block]]
        del self.home[self.uid[block]]
        self.uid[block] = 0
        self.evicted += 1
        self.log.removed((block,), self.hash)

    def _orphan(self, block: int) -> None:
        """Its parent was evicted before it (the parent was a twin of a block its users own): no walk finds it."""
        self._forget(block)
        if block in self.lru:
            del self.lru[block]
            self.free.append(block)

    def audit(self, owned: Iterable[Sequence[int]], reserved: int) -> None:
        """Raise InvariantError unless every block is in exactly one place with the right count. O(blocks)."""
        refs = Counter(block for table in owned if table for block in table)
        if self.ref != [refs[block] for block in range(self.size)]:
            wrong = [block for block in range(self.size) if self.ref[block] != refs[block]]
            raise InvariantError(f"blocks {wrong[:8]} have a reference count that no table explains")
        fenced = [block for block in range(self.size) if not self.ref[block] and self.fence[block]]
        places = [*self.free, *self.lru, *fenced, *refs]
        if sorted(places) != list(range(self.size)):
            raise InvariantError("a block is lost or in two places")
        if self.fenced != len(fenced) or self.reserved != reserved or self.available < 0:
            raise InvariantError(
                f"fenced {self.fenced} for {len(fenced)}, reserved {self.reserved} for {reserved}, "
                f"available {self.available}"
            )
        known = {self.hash[block]: block for block in range(self.size) if self.uid[block]}
        if known != self.index or {self.uid[block]: block for block in known.values()} != self.home:
            raise InvariantError("the prefix index does not agree with the blocks")
        if any(self.uid[block] for block in self.free) or not all(self.uid[block] for block in self.lru):
            raise InvariantError("a free block is in the index, or a cached one is not")
        if any(self.log.told[block] and not self.uid[block] for block in range(self.size)):
            raise InvariantError("a block that left the index is still told as cached")
