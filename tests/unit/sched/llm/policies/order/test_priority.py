"""Urgency with aging, displacement and its guards (SPEC A9, B3, B4)."""

import pytest
from tests.property.llm_world import make_limits
from tests.property.rig import Rig

MS = 1_000_000


def rig(**settings: object) -> Rig:
    """One seat, synchronous, priority order."""
    return Rig(**{"max_seqs": 1, "async_depth": 1, "order": "priority", **settings})  # type: ignore[arg-type]


# SPEC B3
def test_the_more_urgent_enters_first() -> None:
    r = rig()
    calm, urgent = r.new(4, 2), r.new(4, 2, urgency=3)
    r.drain()
    assert r.admitted() == [urgent, calm]


def test_waiting_long_enough_is_worth_a_level() -> None:
    r = rig(order_params={"age_ms": 10})
    urgent = r.new(4, 2, urgency=1, arrived_ns=25 * MS)
    aged = r.new(4, 2, urgency=0, arrived_ns=5 * MS)
    r.drain()
    assert r.admitted() == [aged, urgent]


# SPEC B4: a strictly more urgent request does not wait behind a running one (vllm#40004, vllm#24365)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_more_urgent_takes_the_seat_of_a_running_request(depth: int) -> None:
    r = rig(async_depth=depth)
    calm = r.new(4, 30)
    r.step()
    r.step()
    urgent = r.new(4, 2, urgency=1)
    for _ in range(depth + 1):
        r.step()
    assert urgent in r.admitted()
    assert r.seq(calm).preemptions == 1
    r.drain()


# SPEC B4: equal urgency never displaces, whatever arrived first (no ping-pong)
def test_equal_urgency_never_displaces() -> None:
    r = rig()
    running = r.new(4, 20, arrived_ns=50)
    r.step()
    r.new(4, 2, arrived_ns=1)
    r.drain()
    assert r.ended[running].preemptions == 0


def test_a_gap_below_the_minimum_never_displaces() -> None:
    r = rig(order_params={"min_gap": 2})
    running = r.new(4, 20)
    r.step()
    r.new(4, 2, urgency=1)
    r.drain()
    assert r.ended[running].preemptions == 0


def test_a_displaced_older_request_does_not_take_the_seat_back() -> None:
    r = rig(order_params={"age_ms": 10})
    old = r.new(4, 20, urgency=0, arrived_ns=0)
    r.step()
    urgent = r.new(4, 12, urgency=1, arrived_ns=95 * MS)  # by age the old one is nine levels ahead
    r.drain()
    assert (r.ended[old].preemptions, r.ended[urgent].preemptions) == (0, 0)


# vllm#41951: the preempted request keeps its place within its level
def test_the_preempted_comes_first_within_its_level() -> None:
    r = rig(limits=make_limits(kv_blocks=64))
    victim = r.new(4, 20, arrived_ns=10)
    r.step()
    older = r.new(4, 2, arrived_ns=5)
    r.new(4, 2, urgency=2, arrived_ns=11)
    r.drain()
    assert r.admitted().index(older) > max(i for i, seq in enumerate(r.admitted()) if seq == victim)


# SPEC A9: no starvation; after the cap a request stays
def test_a_request_at_its_cap_is_no_victim_any_more() -> None:
    r = rig(preemptions_max=1)
    calm = r.new(4, 30)
    r.step()
    r.new(4, 2, urgency=1)
    while r.seq(calm).preemptions == 0 or not r.seq(calm).table:
        r.step()
    late = r.new(4, 2, urgency=5)
    r.drain()
    assert r.ended[calm].preemptions == 1
    assert r.admitted()[-1] == late


def test_records_who_was_passed_over() -> None:
    r = rig()
    r.new(4, 2)
    r.new(4, 2, urgency=3)
    r.step()
    (record,) = r.decisions("order")
    assert record.chosen == "req-2"
    assert [option.name for option in record.alternatives] == ["req-2", "req-1"]


# SPEC A9: tokens of the step are a resource too
@pytest.mark.parametrize("depth", [1, 2])
def test_an_urgent_prompt_does_not_wait_for_long_calm_ones_to_prefill(depth: int) -> None:
    limits = make_limits(kv_blocks=400, max_model_len=500)
    r = rig(limits=limits, max_seqs=8, async_depth=depth, step_tokens=16, chunk_params={"tokens": 8})
    calm = [r.new(200, 2) for _ in range(2)]
    for _ in range(3):
        r.step()
    urgent = r.new(12, 2, urgency=1)
    for _ in range(2):
        r.step()
    assert [chunk.count for plan in r.plans for chunk in plan.chunks if chunk.seq == urgent] == [8, 4]
    assert all(r.seq(number).preemptions == 0 for number in calm), "they only go on later"
    r.drain()
