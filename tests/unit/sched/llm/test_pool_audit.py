"""The pool's audit, which runs no Python code per block, says what the plain reading of its rules says."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from tests.unit.sched.llm.test_pool import fill

from headway.core.errors import InvariantError
from headway.sched.llm.pool import BlockPool

BLOCKS: Final = 12


def is_whole(pool: BlockPool, owned: list[list[int]], reserved: int) -> bool:
    """The rules, block by block."""
    every, free, cached = range(pool.size), pool.free, list(pool.lru)
    refs = Counter(block for table in owned for block in table)
    fenced = [block for block in every if pool.state[block] < 0]
    known = {block for block in every if pool.runs[block]}
    return (
        all(max(pool.state[block], 0) == refs[block] for block in every)
        and sorted([*free, *cached, *fenced, *refs]) == list(every)
        and (pool.fenced, pool.reserved) == (len(fenced), reserved)
        and pool.available >= 0
        and _finds(pool, known)
        and not any(pool.runs[block] for block in free)
        and all(pool.runs[block] for block in cached)
        and not any(pool.log.told[block] and not pool.runs[block] for block in every)
    )


def _finds(pool: BlockPool, known: set[int]) -> bool:
    """Each content has a place in its run; those without one before them there, and no others, are found by hash."""
    index, listed, lost = pool.index, set(), 0
    for block in known:
        run = pool.runs[block]
        if run is None or block not in run.blocks:
            return False
        place = run.blocks.index(block)
        if place >= run.stop > 0 and pool.runs[run.blocks[run.stop]] is run:
            return False
        if place < run.stop and any(pool.runs[before] is not run for before in run.blocks[: run.stop]):
            return False
        if place and pool.runs[run.blocks[place - 1]] is run:
            continue
        listed.add((run.keys[place], block))
        lost += place > 0 or not index.is_alive(run.parent)
    entries = {(key, block) for home in index._heads.dicts for key, block in home.items()}
    return (entries, lost) == (listed, index._lost)


def a_world(rng: random.Random) -> tuple[BlockPool, list[list[int]]]:
    """A pool with blocks in every place: in tables, shared, behind a fence, cached, free."""
    pool = BlockPool(BLOCKS, rng.choice((4, 16)))
    size = pool.index.width // 4
    texts = [[rng.randrange(3) for _ in range(size * rng.randrange(1, 4))] for _ in range(4)]
    owned = [fill(pool, tuple(text), size=size, step=1) for text in texts[: rng.randrange(2, 4)]]
    pool.drop(owned.pop(), fence=rng.randrange(1, 3), done=1)
    if rng.random() < 0.5:
        for block in owned[0]:
            pool.share(block)
        owned.append(list(owned[0]))
    pool.set_reserve(rng.randrange(2))
    return pool, owned


def _move(rng: random.Random, pool: BlockPool, owned: list[list[int]]) -> None:
    """From one place to another, or to none, or to two."""
    block = rng.randrange(BLOCKS)
    if block in pool.free and rng.random() < 0.7:
        pool.free.remove(block)
    elif block in list(pool.lru):
        pool.lru.remove(block)
    if rng.random() < 0.7:
        rng.choice((pool.free.append, owned[0].append, lambda one: pool.lru.extend([one])))(block)


def _swap(rng: random.Random, pool: BlockPool, owned: list[list[int]]) -> None:
    """One more of this place and one less of that one, so that all counts agree."""
    if pool.free:
        pool.free[rng.randrange(len(pool.free))] = rng.randrange(-1, BLOCKS + 1)
    owned[0][rng.randrange(len(owned[0]))] = rng.randrange(BLOCKS)


DAMAGES: Final[tuple[Callable[[random.Random, BlockPool, list[list[int]]], object], ...]] = (
    lambda rng, pool, _: pool.state.__setitem__(rng.randrange(BLOCKS), rng.randrange(-2, 3)),
    lambda rng, pool, _: pool.runs.__setitem__(rng.randrange(BLOCKS), rng.choice((None, *pool.runs))),
    lambda rng, pool, _: pool.log.told.__setitem__(rng.randrange(BLOCKS), rng.randrange(2)),
    lambda rng, pool, _: pool.index._heads.dicts[0].__setitem__(b"x", rng.randrange(BLOCKS)),
    lambda rng, pool, _: setattr(pool, "fenced", rng.randrange(3)),
    lambda rng, pool, _: setattr(pool, "reserved", rng.randrange(3)),
    _move,
    _swap,
)


def test_it_finds_what_the_plain_rules_find_and_nothing_else() -> None:  # SPEC B8
    seen = Counter[tuple[int, bool]]()
    for seed in range(1600):
        rng, kind = random.Random(seed), seed % (len(DAMAGES) + 1)
        pool, owned = a_world(rng)
        reserved = pool.reserved
        for damage in DAMAGES[kind : kind + 1]:
            damage(rng, pool, owned)
        whole = is_whole(pool, owned, reserved)
        try:
            pool.audit(owned, reserved)
        except InvariantError:
            assert not whole, seed
        else:
            assert whole, seed
        seen[kind, whole] += 1
    assert all(seen[kind, False] > 20 for kind in range(len(DAMAGES))), seen
    assert seen[len(DAMAGES), True] > 150
    assert not seen[len(DAMAGES), False]


def test_more_than_there_is_cannot_be_set_aside() -> None:
    pool = BlockPool(BLOCKS)
    pool.set_reserve(BLOCKS)
    pool.audit([], BLOCKS)
    pool.set_reserve(1)
    with pytest.raises(InvariantError, match="available -1"):
        pool.audit([], BLOCKS + 1)
