"""Shortest remaining first: prompts in progress pause for those with less to do."""

import pytest
from tests.property.llm_world import make_limits
from tests.property.rig import Rig

from headway.cost.llm import StepCost, StepCostParams

MS = 1_000_000


def rig(**params: object) -> Rig:
    """Eight seats, 8 prompt tokens per step; a decode step costs 1 ms, a prompt token 0.1 ms."""
    belief = StepCost(StepCostParams(base_ns=MS, row_ns=0, kv_ns=0, token_ns=MS / 10, pair_ns=0, learn=False))
    limits = make_limits(kv_blocks=400, max_model_len=500)
    settings = {"order": "shortest_remaining", "order_params": params, "step_tokens": 8, "async_depth": 1}
    return Rig(belief=belief, limits=limits, **settings)  # type: ignore[arg-type]


def chunks(r: Rig) -> list[tuple[int, int]]:
    """(sequence, tokens) of every chunk so far."""
    return [(chunk.seq, chunk.count) for plan in r.plans for chunk in plan.chunks]


# SPEC B3
def test_a_prompt_in_progress_pauses_for_one_with_less_to_do_and_keeps_its_blocks() -> None:
    r = rig()
    long = r.new(40, 1, arrived_ns=0)
    r.step()
    held = r.machine.table(long)
    short = r.new(8, 1, arrived_ns=0)
    r.step()
    assert chunks(r) == [(long, 8), (short, 8)]
    assert r.machine.table(long) == held
    r.drain()
    assert r.ended[long].preemptions == 0
    assert sum(count for seq, count in chunks(r) if seq == long) == 40  # nothing is computed twice


def test_what_is_left_decides_and_not_the_length() -> None:
    r = rig()
    long = r.new(40, 1, arrived_ns=0)
    for _ in range(4):
        r.step()
    r.new(16, 1, arrived_ns=0)  # eight tokens are left of the long one
    r.step()
    assert chunks(r)[-1] == (long, 8)
    r.drain()


def test_one_step_serves_whoever_is_next_of_those_in_progress_and_those_that_wait() -> None:
    r = rig()
    long = r.new(40, 1, arrived_ns=0)
    r.step()
    shortest, longest = r.new(3, 1, arrived_ns=0), r.new(60, 1, arrived_ns=0)
    r.step()
    assert chunks(r)[1:] == [(shortest, 3), (long, 5)]
    r.drain()
    assert r.admitted() == [long, shortest, longest]


def test_the_output_to_come_counts_too() -> None:
    r = rig()
    long = r.new(40, 1, arrived_ns=0, predicted=1)
    r.step()
    r.new(8, 60, arrived_ns=0, predicted=50)
    r.step()
    assert chunks(r) == [(long, 8), (long, 8)]
    r.drain()


def test_an_unknown_length_counts_as_configured() -> None:
    r = rig(unknown_tokens=2)
    r.new(40, 1, arrived_ns=0, predicted=1)
    r.step()
    unknown = r.new(8, 60, arrived_ns=0)
    r.step()
    assert chunks(r)[-1][0] == unknown
    r.drain()


def test_equals_do_not_pause_for_each_other() -> None:
    r = rig()
    first, second = r.new(16, 1, arrived_ns=0), r.new(8, 1, arrived_ns=0)
    assert first < second
    r.step()
    assert chunks(r) == [(second, 8)]
    r.new(16, 1, arrived_ns=0)
    for _ in range(2):
        r.step()
    assert chunks(r)[1:] == [(first, 8), (first, 8)]
    r.drain()


# SPEC A9: no starvation
@pytest.mark.parametrize("stretch", [1, 4])
def test_waiting_makes_up_for_length(stretch: int) -> None:
    r = rig(stretch=stretch)
    long = r.new(80, 1, arrived_ns=0)  # 9 ms
    r.step()
    r.new(8, 1, arrived_ns=stretch * 8 * MS)  # 1.8 ms; the long one has 8.2 left
    r.step()
    assert chunks(r)[-1][0] == long
    r.drain()
