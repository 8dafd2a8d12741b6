"""Decode steps that differ in nothing but their number: how many will follow, and folding them in at once."""

from collections.abc import Sequence
from heapq import heappop
from typing import Final

from headway.core.plans import StepPlan
from headway.core.units import Ns
from headway.cost.llm import StepShape
from headway.sched.llm.grants import grant_all
from headway.sched.llm.state import MachineState

# A lesson of the belief costs as much as a few plans: every step teaches at first, then a sample does.
LESSONS_EAGER: Final = 64
STEADY_SAMPLE: Final = 128


def commit_steady(m: MachineState, step: int, bucket: dict[int, list[int]], room: int) -> StepPlan:
    """The rows that decode go on, and who waits goes on waiting: what planning comes to then, without its stages.

    `room`: blocks that are available when each of `bucket` has one more.
    """
    m.visits += len(bucket)
    reserved = m.pool.reserved
    grants = grant_all(m, bucket) if bucket else ()
    if reserved:  # blocks that were set aside before are no loss to the others
        room = m.pool.available
    decodes, kv_tokens, belief = m.decodes, m.kv_base + m.decodes * (step + 1), m.belief
    if belief is not None and (belief.observed < LESSONS_EAGER or step % STEADY_SAMPLE == 0):
        m.open_shapes[step] = StepShape(decodes, kv_tokens, 0, 0)
    m.step, m.last_kind = step, "decode"
    further = -1 if m.waiting else steps_alike(m, step, room)
    return StepPlan(step, m.done, "decode", grant=grants, decodes=decodes, kv_tokens=kv_tokens, ahead=further)


def steps_alike(m: MachineState, step: int, room: int) -> int:
    """Steps after `step` that nothing here keeps from being like it: no limit is reached, no block of the `room` that
    it leaves is missing, and the belief wants to learn from none of them."""
    dues, belief = m.dues, m.belief
    while dues and dues[0] <= step:
        heappop(dues)
    far = room // m.decodes * m.block_size  # each row opens one block in as many steps as a block has tokens
    if dues and dues[0] - 1 - step < far:
        far = dues[0] - 1 - step
    if belief is None:
        return far
    if belief.observed < LESSONS_EAGER:
        return 0
    lesson = STEADY_SAMPLE - 1 - step % STEADY_SAMPLE
    return lesson if lesson < far else far


def steps_done(m: MachineState, last: int, depth: int, took_ns: Sequence[Ns]) -> list[StepPlan]:
    """Fold in the open steps up to `last`, and all steps ahead that were run unasked; each took its time of the
    device. Returns the `depth` plans that are open then."""
    pool, size = m.pool, m.block_size
    for step, took in zip(range(m.done + 1, last + 1), took_ns, strict=True):
        m.done = step
        if pool.fences:
            pool.release(step)
        if m.slots.fences:
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
