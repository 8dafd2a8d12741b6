"""Paged KV blocks: reference counts, step fences, reservations and the prefix index.

A block is in exactly one place: referenced (state > 0), fenced (state < 0, an open step may still touch it), cached
(state 0, its content can be hit, in LRU order) or free. Per-block facts are arrays, which the garbage collector does
not walk.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, compress

from headway.core.errors import InvariantError
from headway.sched.llm.idle import IdleBlocks
from headway.sched.llm.kv_log import KvLog
from headway.sched.llm.prefix_index import BROKEN, PrefixIndex
from headway.sched.llm.prefix_runs import Identity

__all__ = ["BROKEN", "BlockPool", "Identity"]


class BlockPool:
    """The blocks of one replica (and, without its index, the host slots of swap)."""

    def __init__(self, size: int, block_size: int = 1) -> None:
        self.size = size
        self.free = list(range(size - 1, -1, -1))
        self.lru = IdleBlocks(size)
        self.state = [0] * size  # references; or, negative, the step that may still touch it
        self.fences: dict[int, list[int]] = {}  # step -> blocks that it may touch
        self.fenced = 0
        self.reserved = 0
        self.epoch = 0  # grows whenever an admission that failed might succeed
        self.log = KvLog(size, block_size)
        self.index = PrefixIndex(size, block_size, self.log)
        self.runs, self.width = self.index.runs, self.index.width
        self.last_registered = 0

    @property
    def available(self) -> int:
        """Blocks that may be handed out now, beyond what is reserved."""
        return len(self.free) + self.lru.size - self.reserved

    @property
    def cached(self) -> int:
        return self.lru.size

    @property
    def used(self) -> int:
        """Referenced or fenced."""
        return self.size - len(self.free) - self.lru.size

    @property
    def evicted(self) -> int:
        """Contents that left the index."""
        return self.index.evicted

    def take(self, count: int) -> list[int]:
        """Return `count` blocks with one reference each; the caller checked that they exist."""
        free, state = self.free, self.state
        left = len(free) - count
        if left >= 0:
            taken = free[left:]
            taken.reverse()
            del free[left:]
        else:
            evicted = self.lru.pop(-left)
            self.index.forget(evicted)
            taken = [*reversed(free), *evicted] if free else evicted
            free.clear()
        for block in taken:
            state[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add a reference to a block that is referenced, fenced or cached."""
        references = self.state[block]
        if references < 0:
            self.fenced -= 1
            references = 0
        elif not references:
            if self.runs[block] is None:
                raise InvariantError(f"block {block} is free and cannot be shared")
            self.lru.remove(block)
        self.state[block] = references + 1

    def drop(self, blocks: Sequence[int], fence: int, done: int) -> None:
        """Give references back; a block without any waits until step `fence` is done.

        Tail first, so that the LRU meets a child before its parent.
        """
        state = self.state
        behind = -fence if fence > done else 0
        for block in blocks:
            if state[block] != 1:
                gone = self._drop_shared(blocks, blocks.index(block), behind)
                break
            state[block] = behind
        else:
            gone = [*reversed(blocks)]
        self.epoch += 1
        if not gone:
            return
        if not behind:
            self._free(gone)
            return
        self.fenced += len(gone)
        waiting = self.fences.get(fence)
        if waiting is None:
            self.fences[fence] = gone
        else:
            waiting += gone

    def _drop_shared(self, blocks: Sequence[int], at: int, behind: int) -> list[int]:
        """Give back what lies from `at` on, some of it with more than one reference; return all that have none."""
        state, gone = self.state, [*blocks[:at]]
        for block in blocks[at:]:
            left = state[block] - 1
            if left > 0:
                state[block] = left
                continue
            if left < 0:
                raise InvariantError(f"block {block} is freed twice")
            state[block] = behind
            gone.append(block)
        gone.reverse()
        return gone

    def release(self, step: int) -> None:
        """Step `step` is done: its blocks return."""
        blocks = self.fences.pop(step, None)
        if blocks is None:
            return
        self.epoch += 1
        state, runs, back = self.state, self.runs, -step
        cached, blank = [], []
        for block in blocks:
            if state[block] == back:  # else it is shared again, or in the list twice because it was for a while
                state[block] = 0
                if runs[block] is None:
                    blank.append(block)
                else:
                    cached.append(block)
        self.fenced -= len(cached) + len(blank)
        self.lru.extend(cached)
        self.free += blank

    def _free(self, blocks: list[int]) -> None:
        runs = self.runs
        cached = [block for block in blocks if runs[block] is not None]
        self.lru.extend(cached)
        if len(cached) < len(blocks):
            self.free += [block for block in blocks if runs[block] is None]

    def set_reserve(self, change: int) -> None:
        """Add to (or return from) what is set aside for requests that may not be preempted again."""
        self.reserved += change
        self.epoch += 1

    def match(self, root: bytes, hashes: Sequence[bytes], raw: bytes, limit: int, step: int) -> list[int]:
        """Blocks that hold the beginning of a prompt (`PrefixIndex.match`); `raw`: its tokens."""
        return self.index.match(root, hashes, raw, limit, step)

    def register_run(
        self, table: Sequence[int], keys: Sequence[bytes], raw: bytes, span: range, parent: Identity, step: int
    ) -> int:
        """Offer the blocks of `span` in a row; return the identity of the last content, or BROKEN."""
        index = self.index
        content = index.offer_run(table, keys, raw, span, parent, step)
        if index.orphans:
            self._free_orphans()
        if index.added:
            self.last_registered = step
            self.epoch += 1
        return content

    def _free_orphans(self) -> None:
        """They lost their content; nobody's go back to the free ones."""
        orphans, self.index.orphans = self.index.orphans, []
        for block in orphans:
            if not self.state[block]:
                self.lru.remove(block)
                self.free.append(block)

    def forget_cached(self) -> None:
        """Empty the index; cached blocks become free. Blocks in use lose their identity only."""
        self.index.clear()
        self.free.extend(self.lru)
        self.lru.clear()
        self.log.reset()
        self.epoch += 1

    def audit(self, owned: Iterable[Sequence[int]], reserved: int) -> None:
        """Raise InvariantError unless every block is in exactly one place with the right count.

        O(blocks), and little Python code per block while all is well: simulations call this after every event.
        """
        refs = Counter(chain.from_iterable(owned))
        cached = self.lru.blocks()
        fenced = (
            [block for block, state in enumerate(self.state) if state < 0] if min(self.state, default=0) < 0 else []
        )
        places = [*self.free, *cached, *fenced, *refs]
        if len(places) != self.size or not set(places).issuperset(range(self.size)):
            raise InvariantError("a block is lost or in two places")
        counts = [0] * self.size
        for block, count in refs.items():
            counts[block] = count
        for block in fenced:
            counts[block] = self.state[block]
        if counts != self.state:
            wrong = [block for block in range(self.size) if counts[block] != self.state[block]]
            raise InvariantError(f"blocks {wrong[:8]} have a reference count that no table explains")
        if self.fenced != len(fenced) or self.reserved != reserved or self.available < 0:
            raise InvariantError(
                f"fenced {self.fenced} for {len(fenced)}, reserved {self.reserved} for {reserved}, "
                f"available {self.available}"
            )
        known = set(compress(range(self.size), self.runs))
        if not self.index.is_whole():
            raise InvariantError("the prefix index does not agree with the blocks")
        if not known.isdisjoint(self.free) or not known.issuperset(cached):
            raise InvariantError("a free block is in the index, or a cached one is not")
        if not known.issuperset(compress(range(self.size), self.log.told)):
            raise InvariantError("a block that left the index is still told as cached")
