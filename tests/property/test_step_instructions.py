"""What a step of the LLM machine costs, in bytecode instructions: a measure that no load on the host changes."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import pytest
from tests.property.llm_world import make_limits, make_request

from headway.core.blockhash import block_hashes
from headway.core.events import StepDone
from headway.core.plans import StepTiming
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice

TIMING = StepTiming(0, 0, 10_000_000)
WARM = 64  # steps in which the belief learns from each
FIXED, PER_GRANT = 450, 20  # instructions of a steady step, with a tenth to spare
LIFE, PER_BLOCK = 7600, 160  # of a request with a prompt of 16 blocks; of each block more


class Count:
    """Instructions so far."""

    def __init__(self) -> None:
        self.value = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what the block executes, in all frames that it enters.

        The garbage collector stays out: libraries hang callbacks on it, whose instructions are nobody's.
        """

        def trace(frame: FrameType, event: str, arg: Any) -> Any:  # as sys.settrace has it
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.value += event == "opcode"
            return trace

        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()


def machine(running: int, waiting: int, block: int, order: str = "fcfs") -> LlmMachine:
    """`running` decode in random phases of their blocks, `waiting` more find no seat."""
    chunk = PolicyChoice("constant", {"tokens": 64})
    params = LlmParams(
        max_seqs=running, step_tokens=12 * running, chunk=chunk, order=PolicyChoice(order), prefix_cache=False
    )
    limits = make_limits(block_size=block, kv_blocks=40 * running, max_model_len=4096)
    m = LlmMachine(params, limits, StepCost(StepCostParams()))
    for number in range(running + waiting):
        m.add(make_request(number, tuple(range(1 + number % block)), 2000, hashes=()), (), 0)
    while m.state.decodes < running or m.state.step < running // 8 + WARM + 2:
        m.plan(0)
        if m.state.step > m.state.done + 1:
            m.step_done(done(m))
    m.take_decisions()
    return m


def done(m: LlmMachine) -> StepDone:
    """The oldest open step, without content."""
    return StepDone(0, "test", m.state.done + 1, (), (), TIMING)


def cost(m: LlmMachine, steps: int = 64) -> tuple[float, float]:
    """Instructions and grants per step; 64 steps see every phase of a block of at most 64 tokens once or more."""
    count, grants = Count(), 0
    for _ in range(steps):
        event = done(m)
        with count.running():
            m.step_done(event)
            plan = m.plan(0)
        assert plan is not None
        grants += len(plan.grant)
    return count.value / steps, grants / steps


# SPEC B9
@pytest.mark.parametrize("running", [64, 1024])
def test_a_steady_step_costs_a_fixed_part_and_little_for_each_grant(running: int) -> None:
    spent, grants = cost(machine(running, 0, 16))
    assert grants == running / 16
    assert spent <= FIXED + PER_GRANT * grants


# SPEC B9
def test_sixteen_times_as_many_that_open_as_many_blocks_cost_no_more() -> None:
    few, many = cost(machine(64, 0, 4)), cost(machine(1024, 0, 64))
    assert few[1] == many[1] == 16
    assert many[0] == pytest.approx(few[0], rel=0.02)


# SPEC B9
@pytest.mark.parametrize("order", ["fcfs", "priority", "shortest_predicted", "shortest_remaining", "least_slack"])
def test_a_longer_queue_that_finds_no_seat_costs_no_more(order: str) -> None:
    short, long = cost(machine(16, 2, 16, order)), cost(machine(16, 600, 16, order))
    assert long[0] <= 1.02 * short[0]


# SPEC B9
@pytest.mark.parametrize(("block", "most"), [(64, LIFE), (16, LIFE + 48 * PER_BLOCK)])
def test_a_request_costs_a_fixed_part_and_little_for_each_of_its_blocks(block: int, most: int) -> None:
    """From its first chunk to the return of its blocks: a prompt of 1,024 tokens in two chunks, then 24 outputs."""
    params = LlmParams(max_seqs=8, step_tokens=1024, swap=True)
    limits = make_limits(block_size=block, kv_blocks=24 * 1100 // block, host_slots=64, max_model_len=4096)
    m, count, ended = LlmMachine(params, limits, StepCost(StepCostParams(kv_bytes_per_block=1))), Count(), 0
    root = make_request(0, (1,)).cache_root

    def add(number: int) -> None:
        prompt = tuple(range(number * 2000, number * 2000 + 1024))
        m.add(make_request(number, prompt, 24, root=root, hashes=block_hashes(root, prompt, block)), (), number)

    for number in range(12):
        add(number)
    m.plan(0)
    for step in range(380):
        event = done(m)
        with count.running() if step >= 300 else nullcontext():  # until then the pool fills and the belief learns
            over = m.step_done(event)
            m.plan(0)
        m.take_decisions()
        m.take_kv_events(everything=False)
        for one in over:
            add(12 + one.seq)
        ended += len(over) if step >= 300 else 0
    assert ended > 20
    assert m.state.pool.evicted > 1000 // block
    assert count.value / ended <= most
