"""Which block holds which content: the prefix index of one pool (SPEC B2).

Blocks that were offered together form a run. Only what cannot be reached from the content before it is in a dict: the
first of each run, and what lost the content before it. So most blocks come and go without one access to a table of
hashes, of which each costs 0.3 to 0.5 us at 900,000 blocks: it is memory that no cache holds.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from headway.sched.llm.kv_log import KvLog
from headway.sched.llm.prefix_runs import Heads, Identity, Run, alike, starts

BROKEN: Final = -1  # identity after a hash collision or a lost parent: the chain is cached no further
TOKEN_BYTES: Final = 4
SHARED_MAX: Final = 4  # contents keep the tokens of their whole chain, if that is at most so many times longer
RUN_MAX: Final = 64  # blocks; to find one in its run takes up to 0.5 us


class PrefixIndex:
    """A hash only finds; tokens and the identity of the content before decide, so a chain is exact by induction.

    An identity is never used twice and names its block: `identity % blocks`.
    """

    def __init__(self, blocks: int, block_size: int, log: KvLog) -> None:
        self.width = TOKEN_BYTES * block_size
        self.runs: list[Run | None] = [None] * blocks  # by block, of what it holds; None: nothing in the index
        self.added = False  # something entered with the last offer
        self.evicted = 0  # and left
        self.orphans: list[int] = []  # blocks that lost their content to a new offer of the same
        self._log = log
        log.follow(self.runs)
        self._heads = Heads(blocks)  # the first of each run, and what lost the content before it
        self._homes = self._heads.homes
        self._lost = 0  # contents whose parent left
        self._last = 0  # serial of the content that entered last
        self._blocks = blocks

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Hashes and blocks. O(blocks)."""
        return ((self.key_of(block), block) for block, run in enumerate(self.runs) if run is not None)

    def key_of(self, block: int) -> bytes:
        """Hash of what `block` holds, which must be in the index."""
        run = self.runs[block]
        assert run is not None
        return run.keys[run.blocks.index(block)]

    def identity(self, block: int) -> int:
        """Of what `block` holds, which must be in the index."""
        run = self.runs[block]
        assert run is not None
        return (run.serial + run.blocks.index(block)) * self._blocks + block

    def is_alive(self, content: Identity) -> bool:
        """A content that left the index can never be reached again, nor can what hangs on it."""
        if isinstance(content, bytes):
            return True
        serial, block = divmod(content, self._blocks)
        run = self.runs[block]
        return run is not None and 0 <= serial - run.serial < len(run.blocks)

    def match(self, root: bytes, hashes: Sequence[bytes], raw: bytes, limit: int, step: int) -> list[int]:
        """Return the longest run of leading blocks whose content steps before `step` have written."""
        hits: list[int] = []
        parent: Identity = root
        if not limit or hashes[0] not in self._homes[hashes[0][0]]:
            return hits  # most prompts begin like no other
        asked = tuple(hashes[:limit])
        while len(hits) < len(asked):
            at = len(hits)
            block = self._child(parent, asked[at])
            if block < 0:
                break
            run = self.runs[block]
            assert run is not None
            place = run.blocks.index(block)
            if run.step >= step:
                break
            count = alike(run, place, asked[at:])
            begin, end = at * self.width, (at + count) * self.width
            while run.raw[begin - run.start : end - run.start] != raw[begin:end]:
                count -= 1
                end -= self.width
            if not count:
                break
            hits += run.blocks[place : place + count]
            parent = self.identity(hits[-1])
        return hits

    def _child(self, parent: Identity, key: bytes) -> int:
        """The block that holds what has this hash and this parent, which is alive; -1 if none does."""
        if isinstance(parent, int):
            serial, block = divmod(parent, self._blocks)
            run = self.runs[block]
            place = 0 if run is None else serial - run.serial + 1
            if run is not None and 0 < place < len(run.keys) and run.keys[place] == key:
                after = run.blocks[place]
                if self.runs[after] is run:
                    return after
        for block in self._heads.blocks(key):
            if self._above(block) == parent:
                return block
        return -1

    def _above(self, block: int) -> Identity:
        """Identity of the content before that of `block`."""
        run = self.runs[block]
        assert run is not None
        place = run.blocks.index(block)
        return (run.serial + place - 1) * self._blocks + run.blocks[place - 1] if place else run.parent

    def offer_run(
        self, table: Sequence[int], keys: Sequence[bytes], raw: bytes, span: range, parent: Identity, step: int
    ) -> int:
        """Offer the blocks of `span`, written by `step`; return the identity of the last content, or BROKEN."""
        self.added = False
        if not self.is_alive(parent):
            return BROKEN  # nothing could ever reach them
        place, stop, runs, homes = span.start, span.stop, self.runs, self._homes
        while place < stop:
            key, end = keys[place], stop
            if key in homes[key[0]] or self._lost or runs[table[place]] is not None or self._is_followed(parent):
                known = self._settle(table[place], key, raw, place * self.width, parent)
                if known == BROKEN:
                    return BROKEN
                if known:
                    parent = known
                    place += 1
                    continue
                if not self.is_alive(parent):
                    end = place + 1  # it was displaced just now, and the next may displace this one
            end = self._enter_until(table, keys, place, end)
            parent = self._enter(table, keys, raw, range(place, end), parent, step)
            place = end
        return parent if isinstance(parent, int) else BROKEN

    def _is_followed(self, parent: Identity) -> bool:
        """It is not the last of its run, so that what comes after it may be known."""
        if isinstance(parent, bytes):
            return False
        run = self.runs[parent % self._blocks]
        return run is not None and parent // self._blocks - run.serial + 1 < len(run.blocks)

    def _enter_until(self, table: Sequence[int], keys: Sequence[bytes], place: int, stop: int) -> int:
        """Where those end that enter together with the one at `place`: nothing can hang on a new parent."""
        runs = self.runs
        if stop > place + RUN_MAX:
            stop = place + RUN_MAX
        for block in table[place + 1 : stop]:
            if runs[block] is not None:
                stop = next(at for at in range(place + 1, stop) if runs[table[at]] is not None)
                break
        if self._lost:
            return next((at for at in range(place + 1, stop) if self._orphans(keys[at])), stop)
        return stop

    def _enter(
        self, table: Sequence[int], keys: Sequence[bytes], raw: bytes, span: range, parent: Identity, step: int
    ) -> int:
        """New contents; return the identity of the last."""
        first, stop, runs = span.start, span.stop, self.runs
        blocks, hashes = tuple(table[first:stop]), tuple(keys[first:stop])
        count, serial, begin = len(blocks), self._last + 1, 0
        length = count * self.width
        if len(raw) > SHARED_MAX * length:  # else it keeps the whole chain: a copy reads cold memory
            begin = first * self.width
            raw = raw[begin : begin + length]
        run = Run(raw, begin, step, parent, serial, first, blocks, hashes, count)
        key, block = hashes[0], blocks[0]
        if self._homes[key[0]].setdefault(key, block) != block:
            self._heads.add(key, block)
        if isinstance(parent, int):
            self._hang(parent, 1)
        for block in blocks:
            runs[block] = run
        self._last += count
        self.added = True
        self._log.stored(table, keys, first, stop)
        return self._last * self._blocks + block

    def _hang(self, parent: int, change: int) -> None:
        """One more, or one less, of the contents that begin a run has this parent."""
        size = self._blocks
        run = self.runs[parent % size]
        place = -1 if run is None else parent // size - run.serial
        if run is None or not 0 <= place < len(run.blocks):
            self._lost += change
        elif place + 1 == len(run.blocks):
            run.tail += change
        elif run.hung is None:
            run.hung = {place: change}
        else:
            run.hung[place] = run.hung.get(place, 0) + change

    def _settle(self, block: int, key: bytes, raw: bytes, start: int, parent: Identity) -> int:
        """Return the identity under which a content is known already, or BROKEN; 0 when it may enter in `block`."""
        other = self._child(parent, key)
        if other >= 0:
            run, end = self.runs[other], start + self.width
            assert run is not None
            same = run.raw[start - run.start : end - run.start] == raw[start:end]
            return self.identity(other) if same else BROKEN  # a collision; the one that is there stays
        if self._lost and (orphans := self._orphans(key)):
            self.orphans += orphans
            self.forget(orphans)
        return 0 if self.runs[block] is None else BROKEN

    def _orphans(self, key: bytes) -> list[int]:
        """Contents of this hash whose parent left before them: no walk finds them."""
        return sorted(block for block in self._heads.blocks(key) if not self.is_alive(self._above(block)))

    def forget(self, blocks: Sequence[int]) -> None:
        """The contents of `blocks` leave."""
        runs, homes, leaving = self.runs, self._homes, tuple(blocks)
        gone: list[bytes] = []
        at, many = 0, len(leaving)
        while at < many:
            run = runs[leaving[at]]
            assert run is not None
            stop = run.stop
            count = stop if stop < many - at else many - at
            begin, after = stop - count, at + count
            piece = run.blocks[begin:stop]
            if not count or leaving[at:after] != piece[::-1]:
                self._forget_one(leaving[at], run, gone)
                at += 1
                continue
            at = after  # the last of those that never lost one before them, the very last first
            run.stop = begin
            for block in piece:
                runs[block] = None
            if run.tail or run.hung:
                self._lose(run, begin, stop)
            if not begin:
                key = run.keys[0]
                if homes[key[0]][key] == piece[0]:
                    del homes[key[0]][key]
                else:
                    self._heads.remove(key, piece[0])
                if isinstance(run.parent, int):
                    self._hang(run.parent, -1)
            self._log.untell(run, begin, stop, gone)
        self.evicted += many
        if gone:
            self._log.removed(gone)

    def _lose(self, run: Run, begin: int, stop: int) -> None:
        """What hangs on the contents from place `begin` to before `stop` loses its parent."""
        if stop == len(run.blocks):
            self._lost += run.tail
            run.tail = 0
        if run.hung:
            self._lost += sum([run.hung.pop(place) for place in [*run.hung] if begin <= place < stop])

    def _forget_one(self, block: int, run: Run, gone: list[bytes]) -> None:
        runs, blocks = self.runs, run.blocks
        place = blocks.index(block)
        runs[block] = None
        if not place:
            self._heads.remove(run.keys[0], block)
            if isinstance(run.parent, int):
                self._hang(run.parent, -1)
        elif runs[blocks[place - 1]] is not run:
            self._heads.remove(run.keys[place], block)
            self._lost -= 1
        if place + 1 < len(blocks) and runs[blocks[place + 1]] is run:
            self._heads.add(run.keys[place + 1], blocks[place + 1])
            self._lost += 1
        if run.tail or run.hung:
            self._lose(run, place, place + 1)
        run.stop = min(run.stop, place)
        self._log.untell(run, place, place + 1, gone)

    def clear(self) -> None:
        """Nothing is known any more."""
        for block in range(self._blocks):
            self.runs[block] = None
        self._heads.clear()
        self._lost = 0

    def is_whole(self) -> bool:
        """The dicts name what they should and nothing else, and the counts agree. O(blocks)."""
        found = starts(self.runs)
        if found is None:
            return False
        listed = [(run.keys[place], run.blocks[place]) for run, place in found]
        lost = sum(1 for run, place in found if place or not self.is_alive(run.parent))
        return sorted(self._heads.entries()) == sorted(listed) and lost == self._lost
