"""A reference model of the block pool, stated with objects and lists, and a driver that plays both."""

from array import array
from collections import Counter
from random import Random

from headway.core.blockhash import block_hashes, cache_root
from headway.sched.llm.pool import BROKEN, BlockPool, Identity

SIZE = 2
ROOTS = (cache_root(model="a"), cache_root(model="a", salt="b"))


class Content:
    """What a cached block holds: its tokens, and the content before it."""

    def __init__(self, block: int, key: bytes, tokens: bytes, parent: "Content | bytes", step: int) -> None:
        self.block, self.key, self.tokens, self.parent, self.step = block, key, tokens, parent, step


class PlainPool:
    """Same rules, no cleverness."""

    def __init__(self, size: int) -> None:
        self.free = list(range(size - 1, -1, -1))
        self.idle: list[int] = []  # cached and unreferenced, the oldest first
        self.refs: Counter[int] = Counter()
        self.fences: dict[int, int] = {}  # block -> step
        self.cached: dict[int, Content] = {}  # block -> content
        self.waiting: dict[int, list[int]] = {}  # step -> blocks, in order of dropping

    def take(self, count: int) -> list[int]:
        """Free ones, then the longest idle."""
        out = []
        for _ in range(count):
            if self.free:
                out.append(self.free.pop())
            else:
                block = self.idle.pop(0)
                del self.cached[block]
                out.append(block)
        for block in out:
            self.refs[block] = 1
        return out

    def share(self, block: int) -> None:
        """One more owner."""
        if block in self.idle:
            self.idle.remove(block)
        self.fences.pop(block, None)
        self.refs[block] += 1

    def drop(self, blocks: list[int], fence: int, done: int) -> None:
        """One owner less, the last block first."""
        for block in reversed(blocks):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.fences[block] = fence
                self.waiting.setdefault(fence, []).append(block)
        if fence <= done:
            self.release(fence)

    def release(self, step: int) -> None:
        """The step is done."""
        for block in self.waiting.pop(step, []):
            if not self.refs[block] and self.fences.get(block) == step:
                del self.fences[block]
                (self.idle if block in self.cached else self.free).append(block)

    def find(self, key: bytes, parent: Content | bytes) -> Content | None:
        """By looking at every block."""
        for content in self.cached.values():
            if content.key == key and (content.parent is parent or content.parent == parent):
                return content
        return None

    def alive(self, content: Content) -> bool:
        """It is in the cache."""
        return self.cached.get(content.block) is content

    def has_parent(self, content: Content) -> bool:
        """What it hangs on is in the cache."""
        return not isinstance(content.parent, Content) or self.alive(content.parent)

    def match(self, root: bytes, keys: list[bytes], tokens: list[bytes], step: int) -> list[int]:
        """Walk from the root."""
        hits: list[int] = []
        parent: Content | bytes = root
        for key, part in zip(keys, tokens, strict=True):
            content = self.find(key, parent)
            if content is None or content.tokens != part or content.step >= step:
                break
            hits.append(content.block)
            parent = content
        return hits

    def register(
        self, block: int, key: bytes, parent: Content | bytes | None, tokens: bytes, step: int
    ) -> Content | None:
        """None: the chain is cached no further."""
        if parent is None or (isinstance(parent, Content) and not self.alive(parent)):
            return None
        other = self.find(key, parent)
        if other is not None:
            return other if other.tokens == tokens else None
        orphans = [one for one in self.cached.values() if one.key == key and not self.has_parent(one)]
        for other in sorted(orphans, key=lambda one: one.block):
            del self.cached[other.block]
            if other.block in self.idle:
                self.idle.remove(other.block)
                self.free.append(other.block)
        if block in self.cached:
            return None
        self.cached[block] = Content(block, key, tokens, parent, step)
        return self.cached[block]

    def forget(self) -> None:
        """Empty the cache."""
        self.cached.clear()
        self.free.extend(self.idle)
        self.idle.clear()


class PoolDriver:
    """Requests that come and go, on both pools; every answer must agree."""

    def __init__(self, rng: Random, blocks: int, *, weak: bool) -> None:
        self.rng, self.weak = rng, weak
        self.pool, self.plain = BlockPool(blocks, SIZE), PlainPool(blocks)
        self.tables: list[list[int]] = []
        self.step, self.done, self.operations = 1, 0, 0
        self.reserved = self.hits = 0

    def arrive(self) -> None:
        """Match, share, take, register: one request's prompt."""
        rng, pool, plain = self.rng, self.pool, self.plain
        parts = [rng.choice((1, 1, 2, 3)) for _ in range(rng.randint(1, 7))]
        tokens = tuple(part for part in parts for _ in range(SIZE))
        root = rng.choice(ROOTS)
        keys = list(block_hashes(root, tokens, SIZE))
        if self.weak:
            keys = [bytes([key[0] % 3]) * 16 for key in keys]
        raw = array("I", tokens).tobytes()
        pieces = [raw[i * pool.width : (i + 1) * pool.width] for i in range(len(parts))]
        hits = pool.match(root, keys, raw, len(keys), self.step)
        assert hits == plain.match(root, keys, pieces, self.step), "hits differ"
        self.operations += 1
        revived = sum(1 for block in hits if not pool.state[block])
        if len(parts) - len(hits) + revived > pool.available:
            return
        for block in hits:
            pool.share(block)
            plain.share(block)
        fresh = pool.take(len(parts) - len(hits))
        assert fresh == plain.take(len(fresh)), "blocks handed out differ"
        table = hits + fresh
        self.tables.append(table)
        self.hits += len(hits)
        parent: Identity = pool.index.identity(hits[-1]) if hits else root
        above: Content | bytes | None = plain.cached[hits[-1]] if hits else root
        at = len(hits)
        while at < len(parts):
            run = range(at, rng.randint(at + 1, len(parts)))
            parent = pool.register_run(table, keys, raw, run, parent, self.step)
            for i in run:
                above = plain.register(table[i], keys[i], above, pieces[i], self.step)
            assert (parent == BROKEN) == (above is None), "caching differs"
            at = run.stop
        self.operations += len(hits) + 1 + len(fresh)

    def leave(self) -> None:
        """A request ends; open steps may still touch its blocks."""
        if self.tables:
            table = self.tables.pop(self.rng.randrange(len(self.tables)))
            fence = self.rng.randint(self.done, self.step)
            self.pool.drop(table, fence, self.done)
            self.plain.drop(table, fence, self.done)
            self.operations += 1

    def advance(self) -> None:
        """A step is planned or done."""
        if self.step - self.done < 4 and self.rng.random() < 0.5:
            self.step += 1
        elif self.done < self.step - 1:
            self.done += 1
            self.pool.release(self.done)
            self.plain.release(self.done)
            self.operations += 1

    def odd(self) -> None:
        """Reservations, and now and then a reset."""
        if self.rng.random() < 0.05:
            self.pool.forget_cached()
            self.plain.forget()
        elif self.reserved and self.rng.random() < 0.6:
            self.pool.set_reserve(-self.reserved)
            self.reserved = 0
        elif self.pool.available > 0:
            more = self.rng.randint(0, min(3, self.pool.available))
            self.pool.set_reserve(more)
            self.reserved += more
        self.operations += 1

    def turn(self) -> None:
        """One event."""
        draw = self.rng.random()
        if draw < 0.35:
            self.arrive()
        elif draw < 0.65:
            self.leave()
        elif draw < 0.98:
            self.advance()
        else:
            self.odd()

    def compare(self) -> None:
        """Whole states agree, and the pool's own audit holds."""
        pool, plain = self.pool, self.plain
        pool.audit(self.tables, self.reserved)
        assert list(pool.free) == plain.free
        assert list(pool.lru) == plain.idle
        assert [max(place, 0) for place in pool.state] == [plain.refs[block] for block in range(pool.size)]
        assert {block: -place for block, place in enumerate(pool.state) if place < 0} == plain.fences
        assert {block for block in range(pool.size) if pool.runs[block] is not None} == set(plain.cached)

    def drain(self) -> None:
        """Everybody leaves: nothing leaks."""
        while self.tables:
            self.leave()
        while self.done < self.step:
            self.done += 1
            self.pool.release(self.done)
            self.plain.release(self.done)
        self.pool.set_reserve(-self.reserved)
        self.reserved = 0
        self.compare()
        assert self.pool.available == self.pool.size
        assert self.pool.fenced == self.pool.used == 0
