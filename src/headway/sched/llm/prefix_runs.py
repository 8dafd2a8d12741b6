"""Contents of the prefix index that were offered together, and what must hold of all of them."""

from collections.abc import Sequence

import msgspec

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
    for run in {id(run): run for run in runs if run is not None}.values():
        there = [runs[block] is run for block in run.blocks]
        held += sum(there)
        found += [(run, place) for place, alive in enumerate(there) if alive and not (place and there[place - 1])]
        if [*there, False].index(False) != run.stop:
            return None
    return found if held == len(runs) - runs.count(None) else None
