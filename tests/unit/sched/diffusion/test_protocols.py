"""What requests must have in common to share a batch."""

import pytest
from tests.unit.sched.diffusion.pictures import picture

from headway.core.request import Content, LoraUse
from headway.sched.diffusion.protocols import batch_key


@pytest.mark.parametrize(
    "change",
    [
        {"height": 128},
        {"width": 128},
        {"frames": 9},
        {"given_frames": 4},
        {"fps": 16},
        {"steps": 4},
        {"guidance_scale": 7.0},
        {"passes": 2},
        {"n": 2},
        {"reference_tokens": 64},
        {"strength": 0.5},
        {"loras": (LoraUse("style"),)},
        {"loras": (LoraUse("style", 0.5),)},
        {"control_nets": ("edge",)},
        {"image_prompts": 1},
        {"image_prompts": 1, "image_prompt_scale": 0.5},
        {"image_prompt_scale": 0.5},
        {"solver": "unipc"},
        {"quality": "high"},
        {"dtype": "float16"},
        {"model": "other"},
    ],
    ids=str,
)
def test_a_difference_that_a_step_sees_keeps_requests_apart(change: dict[str, object]) -> None:  # SPEC F4
    assert batch_key(picture("req-1", **change)) != batch_key(picture("req-1"))


def test_an_adapter_at_another_scale_is_another_one_and_at_zero_it_is_not_absent() -> None:
    """vllm-omni#1420: a changed scale was not applied; #2149: several, each with its own."""
    uses = [(), (LoraUse("a", 0.0),), (LoraUse("a", 0.5),), (LoraUse("a"),), (LoraUse("a"), LoraUse("b", 0.5))]
    assert len({batch_key(picture("req-1", loras=use)) for use in uses}) == len(uses)


def test_seed_content_owner_and_deadline_do_not() -> None:
    one = picture("req-1", content=Content(given=b"a"))
    two = picture(
        "req-2", seed=99, arrived_ns=5, tenant="other", urgency=3, hand_on=4, content=Content("x", given=b"b")
    )
    assert batch_key(one) == batch_key(two)
