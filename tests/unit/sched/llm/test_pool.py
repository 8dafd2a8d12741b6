"""Blocks: references, fences, reservations and the prefix index."""

from array import array

import pytest

from headway.core.blockhash import block_hashes, cache_root
from headway.core.errors import InvariantError
from headway.sched.llm.counting import CountingPool
from headway.sched.llm.pool import BROKEN, BlockPool

ROOT = cache_root(model="m")
SIZE = 4


def raw(tokens: tuple[int, ...]) -> bytes:
    """Tokens as the pool compares them."""
    return array("I", tokens).tobytes()


def fill(pool: BlockPool, tokens: tuple[int, ...], *, root: bytes = ROOT, step: int = 1, size: int = SIZE) -> list[int]:
    """Take blocks for `tokens` and register them as written by `step`."""
    keys, content = block_hashes(root, tokens, size), raw(tokens)
    blocks = pool.take(len(keys))
    parent: int | bytes = root
    for i in range(len(keys)):
        parent = pool.register_run(blocks, keys, content, range(i, i + 1), parent, step)
    return blocks


def put(pool: BlockPool, key: bytes, tokens: tuple[int, ...], parent: int | bytes = ROOT) -> int:
    """Offer a new block under a made-up hash; it holds the last block of `tokens`."""
    depth = len(tokens) // SIZE
    table, keys = pool.take(1) * depth, [key] * depth
    return pool.register_run(table, keys, raw(tokens), range(depth - 1, depth), parent, 1)


def hits(pool: BlockPool, tokens: tuple[int, ...], *, root: bytes = ROOT, step: int = 2) -> list[int]:
    """Look `tokens` up."""
    keys = block_hashes(root, tokens, SIZE)
    return pool.match(root, keys, raw(tokens), len(keys), step)


def some(*parts: int) -> tuple[int, ...]:
    """One block of equal tokens per part."""
    return tuple(part for part in parts for _ in range(SIZE))


# SPEC B8: fence before reuse
def test_a_dropped_block_waits_for_its_step() -> None:
    pool = BlockPool(4, SIZE)
    blocks = pool.take(3)
    pool.drop(blocks, fence=5, done=3)
    assert (pool.available, pool.fenced) == (1, 3)
    pool.release(4)
    assert pool.available == 1
    pool.release(5)
    assert (pool.available, pool.fenced) == (4, 0)
    pool.audit([], 0)


def test_a_block_whose_step_is_done_returns_at_once() -> None:
    pool = BlockPool(4, SIZE)
    pool.drop(pool.take(3), fence=3, done=3)
    assert pool.available == 4
    pool.audit([], 0)


def test_a_shared_block_stays_until_its_last_owner_leaves() -> None:
    pool = BlockPool(4, SIZE)
    blocks = pool.take(2)
    pool.share(blocks[0])
    pool.drop(blocks, 1, 1)
    assert pool.available == 3
    pool.audit([[blocks[0]]], 0)


# test_block_pool_double_free
def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(4, SIZE)
    blocks = pool.take(1)
    pool.drop(blocks, 1, 1)
    with pytest.raises(InvariantError, match="freed twice"):
        pool.drop(blocks, 1, 1)


def test_sharing_a_free_block_is_an_error() -> None:
    pool = BlockPool(4, SIZE)
    with pytest.raises(InvariantError, match="is free"):
        pool.share(2)


# SPEC B2
def test_the_longest_cached_run_is_found() -> None:
    pool = BlockPool(8, SIZE)
    blocks = fill(pool, some(1, 2, 3))
    assert hits(pool, some(1, 2, 3)) == blocks
    assert hits(pool, some(1, 2, 9)) == blocks[:2]
    assert hits(pool, some(9, 2, 3)) == []


# nano-vllm#208: a block that is not computed yet is no hit
def test_a_block_is_hit_only_by_steps_after_the_one_that_writes_it() -> None:
    pool = BlockPool(8, SIZE)
    blocks = fill(pool, some(1), step=7)
    assert hits(pool, some(1), step=7) == []
    assert hits(pool, some(1), step=8) == blocks


# SPEC B2, B8: whatever differs in the key's chain is no hit (vllm#44701, #30931, LMCache#4086)
@pytest.mark.parametrize(
    "other",
    [
        cache_root(model="n"),
        cache_root(model="m", lora="a"),
        cache_root(model="m", salt="a"),
        cache_root(model="m", media=("a",)),
        cache_root(model="m", dtype="bf16"),
    ],
)
def test_another_root_never_hits(other: bytes) -> None:
    pool = BlockPool(8, SIZE)
    fill(pool, some(1, 2))
    assert hits(pool, some(1, 2), root=other) == []


def test_a_salt_that_looks_like_a_lora_is_another_key() -> None:
    assert cache_root(model="m", lora="a") != cache_root(model="m", salt="a")


# test_hash_collision_defense
def test_equal_hashes_of_other_tokens_are_no_hit() -> None:
    pool = BlockPool(8, SIZE)
    key = b"k" * 16
    put(pool, key, some(1))
    assert pool.match(ROOT, [key], raw(some(2)), 1, 2) == []
    assert put(pool, key, some(2)) == BROKEN


def test_equal_hashes_and_tokens_after_other_content_are_no_hit() -> None:
    pool = BlockPool(8, SIZE)
    first, second = put(pool, b"a" * 16, some(1)), put(pool, b"b" * 16, some(2))
    put(pool, b"c" * 16, some(1, 3), first)
    assert second != first
    assert len(pool.match(ROOT, [b"b" * 16, b"c" * 16], raw(some(2, 3)), 2, 2)) == 1


def test_equal_hashes_and_tokens_under_another_root_are_no_hit() -> None:
    pool = BlockPool(8, SIZE)
    key = b"k" * 16
    put(pool, key, some(1))
    assert pool.match(cache_root(model="other"), [key], raw(some(1)), 1, 2) == []


# SPEC B2: eviction of unreferenced leaves
def test_a_child_is_evicted_before_its_parent() -> None:
    pool = BlockPool(4, SIZE)
    blocks = fill(pool, some(1, 2, 3))
    pool.drop(blocks, 1, 1)
    for left in (2, 1, 0):
        pool.take(2 if left == 2 else 1)
        assert hits(pool, some(1, 2, 3)) == blocks[:left]


def test_the_least_recently_used_chain_is_evicted_first() -> None:
    pool = BlockPool(4, SIZE)
    old, new = fill(pool, some(1, 2)), fill(pool, some(3, 4))
    pool.drop(old, 1, 1)
    pool.drop(new, 1, 1)
    found = hits(pool, some(1, 2))
    for block in found:
        pool.share(block)
    pool.drop(found, 2, 2)
    pool.take(2)
    assert hits(pool, some(1, 2)) == old
    assert hits(pool, some(3, 4)) == []


def test_a_referenced_block_is_never_evicted() -> None:
    pool = BlockPool(4, SIZE)
    kept = fill(pool, some(1, 2))
    pool.drop(fill(pool, some(3, 4)), 1, 1)
    taken = pool.take(pool.available)
    assert not set(taken) & set(kept)
    pool.audit([kept, taken], 0)


def test_a_hit_revives_a_fenced_block() -> None:
    pool = BlockPool(4, SIZE)
    blocks = fill(pool, some(1))
    pool.drop(blocks, fence=3, done=1)
    pool.share(blocks[0])
    pool.release(3)
    pool.audit([blocks], 0)
    assert pool.fenced == 0


def test_twins_register_one_content_and_the_chain_goes_on() -> None:
    pool = BlockPool(8, SIZE)
    first, twin = fill(pool, some(1, 2)), fill(pool, some(1, 2, 3))
    assert hits(pool, some(1, 2, 3)) == [*first, twin[2]]
    pool.audit([first, twin], 0)


@pytest.mark.parametrize("known", [0, 1, 3])
def test_a_run_registers_what_one_by_one_would(known: int) -> None:
    tokens = some(1, 2, 3, 1)
    keys, content = block_hashes(ROOT, tokens, SIZE), raw(tokens)
    one, run = BlockPool(12, SIZE), BlockPool(12, SIZE)
    for pool in (one, run):
        fill(pool, tokens[: known * SIZE])
    parent: int | bytes = ROOT
    table = one.take(4)
    for i in range(4):
        parent = one.register_run(table, keys, content, range(i, i + 1), parent, 5)
    assert parent != BROKEN
    assert run.register_run(run.take(4), keys, content, range(4), ROOT, 5) != BROKEN
    assert dict(run.index.items()) == dict(one.index.items())
    for step in (5, 6):
        assert hits(run, tokens, step=step) == hits(one, tokens, step=step)
    assert len(hits(run, tokens, step=6)) == 4


def test_a_run_that_meets_a_collision_is_cached_no_further() -> None:
    pool = BlockPool(12, SIZE)
    fill(pool, some(1, 2))
    parent = hits(pool, some(1, 2))[-1]
    assert put(pool, b"y" * 16, some(1, 2, 9), pool.index.identity(parent)) != BROKEN
    keys = [*block_hashes(ROOT, some(1, 2), SIZE), b"y" * 16, b"z" * 16]
    assert pool.register_run(pool.take(4), keys, raw(some(1, 2, 3, 4)), range(4), ROOT, 5) == BROKEN
    assert len(hits(pool, some(1, 2), step=6)) == 2
    assert b"z" * 16 not in dict(pool.index.items())


def test_contents_of_one_hash_and_two_parents_are_told_apart() -> None:
    pool = BlockPool(12, SIZE)
    first, second = [*block_hashes(ROOT, some(1), SIZE), b"y" * 16], [*block_hashes(ROOT, some(2), SIZE), b"y" * 16]
    one, two = pool.take(2), pool.take(2)
    assert pool.register_run(one, first, raw(some(1, 3)), range(2), ROOT, 1) != BROKEN
    assert pool.register_run(two, second, raw(some(2, 3)), range(2), ROOT, 1) != BROKEN
    assert pool.match(ROOT, first, raw(some(1, 3)), 2, 2) == one
    assert pool.match(ROOT, second, raw(some(2, 3)), 2, 2) == two
    pool.drop(one, 1, 1)
    pool.take(9)
    assert pool.match(ROOT, second, raw(some(2, 3)), 2, 2) == two


def test_an_orphan_gives_way_to_the_same_content_under_a_new_parent() -> None:
    pool = BlockPool(5, SIZE)
    first, twin = fill(pool, some(1)), fill(pool, some(1, 2))  # the twin's child hangs on `first`
    pool.drop(first, 1, 1)
    other = pool.take(3)  # evicts `first`
    assert hits(pool, some(1, 2)) == []
    pool.drop(other, 1, 1)
    again = fill(pool, some(1, 2))
    assert hits(pool, some(1, 2)) == again
    pool.audit([twin, again], 0)


def test_forgetting_the_cache_frees_what_nobody_uses_and_hits_nothing() -> None:
    pool = BlockPool(6, SIZE)
    used = fill(pool, some(1, 2))
    pool.drop(fill(pool, some(3, 4)), 1, 1)
    pool.forget_cached()
    assert hits(pool, some(1, 2)) == hits(pool, some(3, 4)) == []
    assert len(pool.free) == 4
    pool.audit([used], 0)


def test_reserved_blocks_are_not_available() -> None:
    pool = BlockPool(6, SIZE)
    pool.set_reserve(4)
    assert pool.available == 2
    pool.audit([], 4)


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool.free.append(pool.free[0]),
        lambda pool: pool.free.pop(),
        lambda pool: pool.state.__setitem__(5, 1),
        lambda pool: pool.set_reserve(1),
        lambda pool: pool.runs.__setitem__(0, None),
        lambda pool: setattr(pool, "fenced", 1),
    ],
)
def test_the_audit_notices_damage(damage) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(6, SIZE)
    blocks = fill(pool, some(1, 2))
    pool.audit([blocks], 0)
    damage(pool)
    with pytest.raises(InvariantError):
        pool.audit([blocks], 0)


def test_a_counting_pool_counts_the_same() -> None:
    pool, counting = BlockPool(9, SIZE), CountingPool(9)
    for one in (pool, counting):
        first, second = one.take(3), one.take(4)
        one.drop(first, fence=2, done=1)
        one.set_reserve(1)
        one.audit([second], 1)
    assert (pool.available, pool.fenced, pool.used) == (counting.available, counting.fenced, counting.used)
    for one in (pool, counting):
        one.release(2)
    assert (pool.available, pool.used) == (counting.available, counting.used)
