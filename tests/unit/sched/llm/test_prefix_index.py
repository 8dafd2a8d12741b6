"""Where the hashes of a pool's contents lie."""

import sys
from random import Random

import pytest

from headway.core.blockhash import DIGEST_BYTES, cache_root
from headway.sched.llm.kv_log import KvLog
from headway.sched.llm.prefix_index import BROKEN, HOME_BLOCKS, PrefixIndex

ROOT, RUN = cache_root(model="m"), 8  # blocks that are offered at once
TOKENS = bytes(4 * RUN)


def index_of(blocks: int) -> PrefixIndex:
    return PrefixIndex(blocks, 1, KvLog(blocks, 64))


def offer(index: PrefixIndex, rng: Random, at: int) -> list[bytes]:
    """Contents that nobody knows, for the blocks from `at` on."""
    keys = [rng.randbytes(DIGEST_BYTES) for _ in range(RUN)]
    assert index.offer_run(range(at, at + RUN), keys, TOKENS, range(RUN), ROOT, 1) != BROKEN
    return keys


def most_grown(index: PrefixIndex, rng: Random, blocks: int) -> int:
    """Of steps that each bring so many hashes that 600 fill the index: how many dicts grew in one, at most."""
    most, offered, per_step = 0, 0, blocks // 600
    sizes = [sys.getsizeof(home) for home in index._dicts]
    for at in range(0, blocks, RUN):
        offer(index, rng, at)
        offered += RUN
        if offered >= per_step:
            offered = 0
            now = [sys.getsizeof(home) for home in index._dicts]
            most = max(most, sum(size != before for size, before in zip(now, sizes, strict=True)))
            sizes = now
    return most


# SPEC B9: while the cache of 4,096 running filled, ten dicts grew in a step, which took twice the time of others
@pytest.mark.parametrize("dicts", [16, 64])
def test_no_step_meets_more_growing_dicts_than_another_whatever_their_number(dicts: int) -> None:
    blocks, rng = dicts * HOME_BLOCKS - HOME_BLOCKS, Random(1)
    index = index_of(blocks)
    assert len(index._dicts) == dicts
    assert most_grown(index, rng, blocks) <= 5
    assert max(len(home) for home in index._dicts) <= 3 * HOME_BLOCKS
    index.clear()
    assert most_grown(index, rng, blocks) <= 5


def test_what_keeps_dicts_apart_is_no_content() -> None:
    index, rng = index_of(4 * HOME_BLOCKS), Random(1)
    assert len({len(home) for home in index._dicts}) == len(index._dicts) == 5
    assert not list(index.items())
    keys = offer(index, rng, 40)
    assert sorted(index.items(), key=lambda item: item[1]) == list(zip(keys, range(40, 40 + RUN), strict=True))
    index.clear()
    assert not list(index.items())
    assert not any(index.uid)
