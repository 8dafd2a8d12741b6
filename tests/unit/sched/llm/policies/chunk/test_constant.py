"""A fixed chunk."""

import pytest
from tests.property.llm_world import make_limits
from tests.property.rig import Rig


# SPEC B1
def test_a_prompt_is_cut_into_equal_chunks_and_a_rest() -> None:
    rig = Rig(chunk_params={"tokens": 5})
    rig.new(13, 1)
    rig.drain()
    assert [chunk.count for plan in rig.plans for chunk in plan.chunks] == [5, 5, 3]


def test_several_prompts_share_a_step() -> None:
    rig = Rig(chunk_params={"tokens": 5})
    for _ in range(3):
        rig.new(12, 1)
    assert [chunk.count for chunk in rig.must_plan().chunks] == [5, 5, 5]
    rig.drain()


# ROCm/ATOM PR#1835, sglang#32549, FreeToken#483: a short request behind a very long prompt, and decodes beside it
@pytest.mark.parametrize("depth", [1, 2])
def test_a_short_prompt_finishes_while_a_very_long_one_prefills(depth: int) -> None:
    rig = Rig(
        limits=make_limits(kv_blocks=400, max_model_len=1500),
        step_tokens=20,
        chunk_params={"tokens": 12},
        async_depth=depth,
    )
    running = rig.new(4, 200)
    rig.step()
    long = rig.new(1000, 2)
    rig.step()
    short = rig.new(6, 2)
    while short not in rig.ended:
        rig.step()
    assert rig.seq(long).computed < 200
    assert all(plan.decodes >= 1 for plan in rig.plans[3:]), "the running request decodes in every step"
    assert running not in rig.ended
    rig.drain()
