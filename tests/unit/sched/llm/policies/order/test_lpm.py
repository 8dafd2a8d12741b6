"""Longest prefix match first."""

from tests.property.llm_world import make_request
from tests.property.rig import Rig

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
