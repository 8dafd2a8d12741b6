"""Chunks, and what they offer to the prefix index."""

import pytest
from tests.property.llm_world import make_limits, make_request
from tests.property.rig import Rig


# SPEC B1
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_chunks_cover_the_prompt_once_and_the_last_one_samples(depth: int) -> None:
    rig = Rig(async_depth=depth, chunk_params={"tokens": 5})
    rig.new(17, 3)
    rig.drain()
    chunks = [chunk for plan in rig.plans for chunk in plan.chunks]
    assert [(chunk.start, chunk.count, chunk.samples) for chunk in chunks] == [
        (0, 5, False), (5, 5, False), (10, 5, False), (15, 2, True),
    ]  # fmt: skip
    assert [bool(chunk.table) for chunk in chunks] == [True, False, False, False]


def test_a_prompt_owns_all_its_blocks_from_its_first_chunk_on() -> None:
    rig = Rig(chunk_params={"tokens": 4})
    rig.new(17, 3)
    assert len(rig.must_plan().chunks[0].table) == 5
    rig.drain()


# nano-vllm#208, and why it is safe here: device order
def test_the_next_plan_hits_blocks_of_a_chunk_that_still_runs() -> None:
    rig = Rig(async_depth=2, chunk_params={"tokens": 8})
    prompt = (1, 2, 3, 4) * 5
    rig.add(make_request(1, prompt, 2, ignore_eos=True))
    rig.must_plan()
    rig.add(make_request(2, prompt, 2, ignore_eos=True))
    late = next(chunk for chunk in rig.must_plan().chunks if chunk.seq == 2)
    assert late.start == 8
    rig.drain()


# sglang PR#13201: what a step hands out is counted exactly, whoever gave way in it
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_displacement_gives_nobody_the_victims_tokens(depth: int) -> None:
    rig = Rig(order="priority", max_seqs=2, step_tokens=6, async_depth=depth, chunk_params={"tokens": 6})
    for number in range(12):
        rig.new(9, 6, urgency=number % 4)
        rig.step()
    rig.drain()
    assert rig.machine.counters()["preemptions"] > 0
    assert max(plan.tokens for plan in rig.plans) == 6


# sglang PR#23006: a pipeline with one seat still makes batches
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_one_seat_and_a_deep_pipeline_make_progress(depth: int) -> None:
    rig = Rig(max_seqs=1, step_tokens=1, async_depth=depth, chunk_params={"tokens": 1})
    for _ in range(3):
        rig.new(5, 4)
    rig.drain()


def test_blocks_of_decoding_are_offered_only_when_the_output_is_known() -> None:
    rig = Rig(limits=make_limits(kv_blocks=40), async_depth=1)
    rig.new(5, 20)
    rig.drain()
    assert rig.machine.state.pool.cached == 1, "an end by length names no tokens"
