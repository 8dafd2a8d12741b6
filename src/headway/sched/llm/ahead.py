"""Decode steps that differ in nothing but their number: how many will follow, and folding them in at once."""

from collections.abc import Sequence
from heapq import heappop
from typing import Final

from headway.core.plans import StepPlan
from headway.core.units import Ns
from headway.sched.llm.grants import grant_all
from headway.sched.llm.state import MachineState

# A lesson of the belief costs as much as a few plans: every step teaches at first, then a sample does.
LESSONS_EAGER: Final = 64
STEADY_SAMPLE: Final = 128


def steps_alike(m: MachineState, step: int) -> int:
    """Steps after `step` that nothing here keeps from being like it: no limit is reached, no block is missing, and the
    belief wants to learn from none of them."""
    dues = m.dues
    while dues and dues[0] <= step:
        heappop(dues)
    rounds = m.pool.available // m.decodes  # each row opens one block in as many steps as a block has tokens
    far = rounds * m.block_size
    if dues:
        far = min(far, dues[0] - 1 - step)
    if m.belief is None:
        return far
    return 0 if m.belief.observed < LESSONS_EAGER else min(far, STEADY_SAMPLE - 1 - step % STEADY_SAMPLE)


def steps_done(m: MachineState, last: int, depth: int, took_ns: Sequence[Ns]) -> list[StepPlan]:
    """Fold in the open steps up to `last`, and all steps ahead that were run unasked; each took its time of the
    device. Returns the `depth` plans that are open then."""
    pool, size = m.pool, m.block_size
    for step, took in zip(range(m.done + 1, last + 1), took_ns, strict=True):
        m.done = step
        if pool.fences:
            pool.release(step)
        if m.slots.size:
            m.slots.release(step)
        if m.open_shapes and m.belief is not None:
            shape = m.open_shapes.pop(step, None)
            if shape is not None:
                m.belief.observe(shape, took)
        if step + depth > m.step:
            m.step = step + depth
            bucket = m.wheel[m.step % size]
            if bucket:
                m.visits += len(bucket)
                grant_all(m, bucket)
    base, rows = m.kv_base, m.decodes
    return [
        StepPlan(step, last, "decode", decodes=rows, kv_tokens=base + rows * (step + 1), ahead=0)
        for step in range(last + 1, m.step + 1)
    ]
