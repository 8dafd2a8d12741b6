"""What a replica's model can be asked for (SPEC F1, F5)."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import picture
from tests.unit.sched.router.views import report

from headway.core.reports import DenoiseAbilities
from headway.core.request import Content, DiffusionRequest
from headway.sched.router.abilities import unable
from headway.sched.router.work import lacking, takes

LEAST = DenoiseAbilities(negative_prompts=False, multiple=16, side_min=32, pixels_max=128 * 128)
MOST = DenoiseAbilities(edits=True, masks=True, image_prompts=True)
FILMS = DenoiseAbilities(makes_videos=True, frame_stride=4)
PLAIN = picture("req-1", height=64, width=96)
VIDEO = replace(PLAIN, frames=5, fps=4, content=Content(form="mp4"))
GIVEN = replace(VIDEO, frames=8, given_frames=4, content=Content(form="mp4", given=b"x"))


@pytest.mark.parametrize(
    ("request_", "words", "able"),
    [
        (replace(PLAIN, content=Content(pictures=(b"p",))), "takes no pictures to start from", MOST),
        (replace(PLAIN, content=Content(mask=b"m")), "takes no masks", MOST),
        (replace(PLAIN, image_prompts=1), "takes no image prompts", MOST),
        (replace(PLAIN, content=Content(negative_prompt="fog")), "takes no negative prompt", MOST),
        (replace(PLAIN, height=256, width=256), "makes at most 16384 pixels, not 256x256", MOST),
        (replace(PLAIN, width=100), "makes sides that are multiples of 16 from 32 on, not 100x64", MOST),
        (VIDEO, "makes no videos", FILMS),
    ],
    ids=["edit", "mask", "image prompt", "negative prompt", "pixels", "sides", "video"],
)
def test_what_a_model_cannot_do_is_not_sent_there(
    request_: DiffusionRequest, words: str, able: DenoiseAbilities
) -> None:
    assert unable(LEAST, PLAIN) is None
    assert unable(LEAST, request_) == words
    assert unable(able, request_) is None
    weak = report("rep-a", 1, role="diffusion", model="m", abilities=LEAST)
    assert not takes(weak, request_, has_room=True)
    assert lacking(weak, request_) == f"request req-1 cannot run on rep-a: m {words}"
    assert takes(replace(weak, abilities=None), request_, has_room=True)  # nobody told


def test_a_negative_prompt_goes_only_where_its_guidance_reads_it() -> None:
    distilled = replace(MOST, is_guided=False)
    said = replace(PLAIN, guidance_scale=0.0, content=Content(negative_prompt="fog"))
    words = "reads a negative prompt with guidance_scale above 1 only"
    assert unable(distilled, said) == words
    assert unable(distilled, replace(said, guidance_scale=1.0)) == words
    assert unable(distilled, replace(said, guidance_scale=2.0)) is None
    assert unable(MOST, said) is None


@pytest.mark.parametrize(
    ("has", "request_", "words"),
    [
        (FILMS, PLAIN, "makes videos only"),
        (FILMS, GIVEN, "makes whole videos, no chunks of a session"),
        (FILMS, replace(VIDEO, frames=6), "makes 1 + k * 4 frames, not 6"),
        (replace(FILMS, chunks=True), GIVEN, None),
        (replace(LEAST, sizes=((64, 64),)), PLAIN, "does not make 96x64"),
        (replace(LEAST, sizes=((64, 96),)), PLAIN, None),
    ],
)
def test_videos_chunks_and_named_sizes_have_models_of_their_own(
    has: DenoiseAbilities, request_: DiffusionRequest, words: str | None
) -> None:
    assert unable(has, request_) == words
