"""Longest prefix match first."""

import pytest
from tests.property.llm_world import make_limits, make_request
from tests.property.rig import Rig

from headway.sched.llm.admission import find_hits

SHARED = tuple(1 + i % 3 for i in range(16))


def rig(**params: object) -> Rig:
    """One seat, a cache that knows SHARED."""
    r = Rig(order="lpm", order_params=params, max_seqs=1, async_depth=1)
    r.add(make_request(900, (*SHARED, 4), 1, ignore_eos=True))
    r.drain()
    r.plans.clear()
    return r


def put(r: Rig, number: int, prompt: tuple[int, ...]) -> int:
    """Queue one that arrived at `number`."""
    return r.add(make_request(number, prompt, 2, arrived_ns=number, ignore_eos=True))


# SPEC B3
def test_the_longest_cached_prefix_enters_first() -> None:
    r = rig()
    none = put(r, 1, (4, 4, 4, 4, 4))
    half = put(r, 2, (*SHARED[:8], 4, 4))
    whole = put(r, 3, (*SHARED, 4, 4))
    r.drain()
    assert r.admitted() == [whole, half, none]


def test_a_long_queue_is_first_come_first_served() -> None:
    r = rig(queue_max=2)
    first = put(r, 1, (4, 4, 4, 4, 4))
    second = put(r, 2, (*SHARED[:8], 4, 4))
    third = put(r, 3, (*SHARED, 4, 4))
    r.drain()
    assert r.admitted() == [first, third, second]  # two are left: the scan is on again


def test_the_oldest_is_passed_over_so_often_and_no_more() -> None:
    r = rig(skips_max=3)
    oldest = put(r, 1, (4, 4, 4, 4, 4))
    others = [put(r, 2 + i, (*SHARED, 4)) for i in range(8)]
    r.drain()
    assert r.admitted() == [*others[:3], oldest, *others[3:]]


def test_records_the_cached_tokens_it_compared() -> None:
    r = rig()
    r.machine.take_decisions()
    put(r, 1, (4, 4, 4, 4, 4))
    put(r, 2, (*SHARED, 4, 4))
    r.step()
    (record,) = r.decisions("order")
    assert [(option.name, option.score) for option in record.alternatives] == [("req-2", -16.0), ("req-1", 0.0)]


# SPEC B3: grants of a row that decodes evict what the head would hit, and the one with more hits then may fit.
@pytest.mark.parametrize("cached", [10, 7])  # the fourth eviction decides, or the first
def test_a_head_that_loses_its_hits_while_it_waits_gives_way_to_one_that_fits(cached: int) -> None:
    r = Rig(limits=make_limits(block_size=1, kv_blocks=45), order="lpm", async_depth=1)
    mine, theirs = (1, 2, 3, 1, 2, 3, 1, 2, 3, 1)[:cached], (2, 1, 1, 2, 1, 1, 2, 1, 1, 2)

    def new(number: int, prompt: tuple[int, ...], tokens: int) -> int:
        return r.add(make_request(number, prompt, tokens, arrived_ns=number, ignore_eos=True, block_size=1))

    new(1, mine, 1)
    r.drain()
    row = new(2, theirs, 34)
    r.step()
    small = new(3, (*theirs[:6], 3, 3), 2)
    large = new(4, (*mine, *(3,) * 28), 1)
    hits: list[int] = []
    while not r.seq(small).table:
        assert row in r.machine.state.seqs, "it waited until blocks came free"
        hits = [len(find_hits(r.machine.state, r.seq(one), r.machine.state.step + 1)) for one in (small, large)]
        r.step()
    assert hits == [6, 7], "the step's own grant took one; of equals the oldest is first"
    r.drain()
    assert r.admitted()[-2:] == [small, large]
