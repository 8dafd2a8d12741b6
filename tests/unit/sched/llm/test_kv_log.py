"""What routers are told of the prefix index."""

from array import array

import pytest

from headway.core.blockhash import block_hashes, cache_root
from headway.core.reports import KvEvents
from headway.sched.llm import kv_log
from headway.sched.llm.kv_log import KvLog
from headway.sched.llm.pool import BlockPool

ROOT = cache_root(model="m")
SIZE = 16  # every fourth block is told


def fill(pool: BlockPool, start: int, blocks: int) -> tuple[tuple[bytes, ...], list[int]]:
    tokens = tuple(range(start, start + blocks * SIZE))
    keys = block_hashes(ROOT, tokens, SIZE)
    table = pool.take(blocks)
    pool.register_run(table, keys, array("I", tokens).tobytes(), range(blocks), ROOT, 1)
    return keys, table


def take(pool: BlockPool, *, everything: bool = False) -> KvEvents:
    return pool.log.take(pool.index.key_of, everything=everything)


def fresh(blocks: int = 32) -> BlockPool:
    pool = BlockPool(blocks, SIZE)
    assert take(pool) == KvEvents(is_reset=True)
    return pool


def test_every_fourth_block_of_sixteen_tokens_is_told() -> None:  # GAIE#2878
    pool = fresh()
    keys, _table = fill(pool, 0, 10)
    assert take(pool) == KvEvents((keys[3], keys[7]))
    assert take(pool) == KvEvents()


def test_a_run_that_begins_in_the_middle_keeps_the_stride_of_the_chain() -> None:
    pool = fresh()
    tokens = tuple(range(10 * SIZE))
    keys, raw, table = block_hashes(ROOT, tokens, SIZE), array("I", tokens).tobytes(), pool.take(10)
    parent = pool.register_run(table, keys, raw, range(5), ROOT, 1)
    pool.register_run(table, keys, raw, range(5, 10), parent, 2)
    assert take(pool).stored == (keys[3], keys[7])


def test_what_is_evicted_is_told_and_what_came_and_went_in_between_is_not_there() -> None:
    pool = fresh(8)
    first, table = fill(pool, 0, 8)
    assert take(pool).stored == (first[3], first[7])
    pool.drop(table, 1, 1)
    second, table = fill(pool, 1000, 8)
    pool.drop(table, 1, 1)
    third, _table = fill(pool, 2000, 8)
    events = take(pool)
    assert events.stored == (third[3], third[7])
    assert set(events.removed) == {first[3], first[7], second[3], second[7]}
    pool.audit([_table], 0)


def test_every_block_of_sixty_four_tokens_is_told_when_it_enters_and_when_it_leaves() -> None:
    pool = BlockPool(4, 64)
    take(pool)
    told: list[KvEvents] = []
    runs = []
    for start in (0, 1000):
        tokens = tuple(range(start, start + 3 * 64))
        keys, table = block_hashes(ROOT, tokens, 64), pool.take(3)
        pool.register_run(table, keys, array("I", tokens).tobytes(), range(3), ROOT, 1)
        told.append(take(pool))
        pool.drop(table, 1, 1)
        runs.append(keys)
    first, second = runs
    assert told == [KvEvents(first), KvEvents(second, (first[2], first[1]))]
    assert set(take(pool, everything=True).stored) == {first[0], *second}
    pool.forget_cached()
    assert take(pool) == KvEvents(is_reset=True)


def test_an_emptied_cache_is_a_snapshot() -> None:
    pool = fresh()
    fill(pool, 0, 8)
    pool.forget_cached()
    keys, _table = fill(pool, 1000, 4)
    assert take(pool) == KvEvents((keys[3],), is_reset=True)


def test_a_new_listener_hears_everything() -> None:
    pool = fresh()
    keys, _table = fill(pool, 0, 8)
    take(pool)
    assert take(pool, everything=True) == KvEvents((keys[3], keys[7]), is_reset=True)


def test_a_log_that_nobody_takes_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_log, "CHANGES_MAX", 2)
    monkeypatch.setattr(kv_log, "SNAPSHOT_MAX", 4)
    pool = fresh(64)
    keys, _table = fill(pool, 0, 20)
    assert take(pool) == KvEvents(keys[3:19:4], is_reset=True)
    keys, _table = fill(pool, 1000, 8)
    assert take(pool) == KvEvents((keys[3], keys[7]))


def test_its_work_is_that_of_the_blocks_it_tells() -> None:  # SPEC B9
    looked: list[int] = []

    class Table(list[int]):
        def __getitem__(self, place):  # type: ignore[no-untyped-def]  # int and slice, as list has it
            found = super().__getitem__(place)
            looked.extend(found if isinstance(place, slice) else (found,))
            return found

    log, keys = KvLog(64, SIZE), [bytes([place]) * 16 for place in range(64)]
    log.stored(Table(range(64)), keys, 0, 64)
    assert looked == list(range(3, 64, 4))
