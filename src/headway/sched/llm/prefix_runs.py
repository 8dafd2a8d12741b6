"""What the prefix index is made of: contents that were offered together, and those that are found by hash."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

# The insert that makes a dict of 900,000 hashes grow takes 26 ms, and it grows even at a steady size, because deleted
# entries use it up. Dicts of this size take 0.1 ms at most (of 8,192: 0.5), but fill up together: a step may meet
# several.
HOME_BLOCKS: Final = 1024
_BYTE: Final = 256
Identity = int | bytes  # of the content before a block: a number, or the cache root at the start


class Run(msgspec.Struct, gc=False):
    """Contents that were offered together, each the parent of the next."""

    raw: bytes  # their tokens, TOKEN_BYTES each
    start: int  # bytes of the chain before them
    step: int  # writes them; later steps may read
    parent: Identity  # of the first
    serial: int  # of the first; they are numbered in a row
    first: int  # its place in the chain
    blocks: tuple[int, ...]  # as offered; some may hold something else by now
    keys: tuple[bytes, ...]  # their hashes
    stop: int  # place of the first that left; how many there are, if none did
    tail: int = 0  # contents of other runs whose parent is the last
    hung: dict[int, int] | None = None  # the same by place of all others


class Heads:
    """Blocks by hash, in dicts by its first byte. More than one of a hash only after a collision."""

    def __init__(self, blocks: int) -> None:
        self.dicts: list[dict[bytes, int | tuple[int, ...]]] = [
            {} for _ in range(min(blocks // HOME_BLOCKS + 1, _BYTE))
        ]
        self.homes = [self.dicts[first % len(self.dicts)] for first in range(_BYTE)]  # by first byte

    def blocks(self, key: bytes) -> tuple[int, ...]:
        """All of this hash."""
        found = self.homes[key[0]].get(key, ())
        return found if isinstance(found, tuple) else (found,)

    def add(self, key: bytes, block: int) -> None:
        """One that is not in."""
        others = self.blocks(key)
        self.homes[key[0]][key] = (*others, block) if others else block

    def remove(self, key: bytes, block: int) -> None:
        """One that is in."""
        found = self.homes[key[0]].pop(key)
        if isinstance(found, tuple) and len(found) > 1:
            self.homes[key[0]][key] = tuple(other for other in found if other != block)

    def clear(self) -> None:
        """Forget all."""
        for home in self.dicts:
            home.clear()

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Hashes and blocks."""
        return ((key, block) for home in self.dicts for key in home for block in self.blocks(key))


def alike(run: Run, place: int, hashes: tuple[bytes, ...]) -> int:
    """How many contents from `place` on, which is there, surely are there and have these hashes."""
    if place >= run.stop:  # some before it left, so that some after it may have
        return 1
    count = min(len(hashes), run.stop - place)
    keys = run.keys[place : place + count]
    if keys == hashes[:count]:
        return count
    return next(i for i in range(count) if keys[i] != hashes[i])


def starts(runs: Sequence[Run | None]) -> list[tuple[Run, int]] | None:
    """By block, runs: where contents lie that have none before them in their run. None when a run miscounts.

    O(blocks).
    """
    found: list[tuple[Run, int]] = []
    held = 0
    for run in {run.serial: run for run in runs if run is not None}.values():
        there = [runs[block] is run for block in run.blocks]
        held += sum(there)
        found += [(run, place) for place, alive in enumerate(there) if alive and not (place and there[place - 1])]
        if [*there, False].index(False) != run.stop:
            return None
    return found if held == len(runs) - runs.count(None) else None
