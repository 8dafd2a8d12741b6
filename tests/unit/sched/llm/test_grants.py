"""Blocks for decodes, and what happens without (SPEC B4, B8, B9)."""

from tests.property.llm_world import make_limits
from tests.property.rig import Rig


# SPEC B9: a block is asked for when it is opened, not for every token
def test_a_decode_gets_one_block_per_block_of_tokens() -> None:
    rig = Rig(limits=make_limits(kv_blocks=40), async_depth=1)
    rig.new(6, 30)
    rig.drain()
    assert sum(len(plan.grant) for plan in rig.plans) == 9 - 2  # 35 tokens of KV, two blocks at admission


def test_who_gets_no_block_stalls_and_decodes_again() -> None:
    rig = Rig(limits=make_limits(kv_blocks=12), async_depth=3, preemptions_max=4)
    for _ in range(4):
        rig.new(8, 24)
    rig.drain()
    assert rig.machine.counters()["stalls"] > 0
    assert any(plan.pause for plan in rig.plans)


# An owed block is not promised twice: nobody is admitted past a stall.
def test_nobody_is_admitted_past_a_stall() -> None:
    rig = Rig(limits=make_limits(kv_blocks=12), async_depth=3, preemptions_max=4)
    for _ in range(9):
        rig.new(8, 24)
    stalled = 0
    while rig.machine.live:
        plan = rig.plan()
        if plan is not None and rig.machine.state.stalled:
            stalled += 1
            assert not [chunk for chunk in plan.chunks if chunk.table]
        if plan is None or len(rig.open) == 3:
            rig.done()
    assert stalled


# nano-vllm#274: a decode that needs more blocks than are left never asserts
def test_a_batch_that_outgrows_the_pool_finishes_one_after_the_other() -> None:
    rig = Rig(limits=make_limits(kv_blocks=8), async_depth=2)
    for _ in range(3):
        rig.new(4, 28)
    rig.drain()
    assert all(ended.output_tokens == 28 for ended in rig.ended.values())
