import msgspec
import pytest

from headway.core.artifacts import Denoised, Made
from headway.core.errors import InvariantError
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser

FREE = DenoiserParams(step_ns=0, pixel_ns=0.0)


def plan(rows: int, steps: int, size: int) -> DenoisePlan:
    return DenoisePlan(1, 0, tuple(DenoiseRow(n, 0, steps, 10) for n in range(rows)), size, size)


def test_time_grows_with_pixels_rows_and_steps() -> None:
    denoiser = SyntheticDenoiser(DenoiserParams(step_ns=1000, pixel_ns=2.0))
    assert denoiser.batch_ns(plan(rows=1, steps=1, size=10)) == 1200
    assert denoiser.batch_ns(plan(rows=3, steps=1, size=10)) == 1600
    assert denoiser.batch_ns(plan(rows=1, steps=4, size=10)) == 4800


def test_a_batch_takes_its_time() -> None:
    denoiser = SyntheticDenoiser(DenoiserParams(step_ns=2_000_000, pixel_ns=0.0))
    timing = denoiser.run(plan(rows=1, steps=1, size=8)).timing
    assert timing.launched_ns <= timing.started_ns
    assert timing.done_ns - timing.started_ns >= 2_000_000


def test_encoding_and_decoding_are_told_apart_from_steps() -> None:
    denoiser = SyntheticDenoiser(DenoiserParams(step_ns=10, pixel_ns=0.0, encode_ns=100, decode_ns=1000))
    stages = run(denoiser, [asked()], 0, 4, 4).stages
    assert stages is not None
    assert (stages.text_encode_ns, stages.denoise_ns, stages.vae_decode_ns) == (100, 40, 1000)


def asked(**fields: object) -> DiffusionRequest:
    request = DiffusionRequest(
        RequestId("req-1"), TenantId("t"), ModelId("m"), 4, 16, 24, 7, 0, content=Content("a red circle")
    )
    return msgspec.structs.replace(request, **fields)


def run(
    denoiser: SyntheticDenoiser,
    requests: list[DiffusionRequest],
    start: int,
    count: int,
    total: int = 4,
    save: tuple[int, ...] = (),
    show: tuple[int, ...] = (),
    leave: tuple[int, ...] = (),
) -> Denoised:
    """One plan over rows 0, 1, ...; requests are new where it starts at their beginning."""
    rows = tuple(DenoiseRow(seq, start, count, total, request.n) for seq, request in enumerate(requests))
    new = tuple(NewDenoise(seq, request) for seq, request in enumerate(requests) if request.begun == start)
    return denoiser.run(DenoisePlan(1, 0, rows, 16, 24, leave, None, 0, new, save, show))


def pictures(request: DiffusionRequest) -> list[Made]:
    return list(run(SyntheticDenoiser(FREE), [request], 0, 4).made[0].made)


def test_a_finished_row_brings_its_pictures_with_the_seed_that_makes_each_alone() -> None:
    made = pictures(asked(n=3))
    assert [(each.kind, each.index, each.steps, each.seed) for each in made] == [
        ("picture", 0, 4, 7),
        ("picture", 1, 4, 8),
        ("picture", 2, 4, 9),
    ]
    assert made[2].body == pictures(asked(seed=9))[0].body  # diffusers#6233


@pytest.mark.parametrize(
    "other",
    [
        {"content": Content("a blue circle")},
        {"content": Content("a red circle", "blurry")},
        {"seed": 8},
        {"guidance_scale": 2.0},
        {"strength": 0.5},
        {"width": 32},
    ],
)
def test_all_that_a_request_says_changes_its_picture(other: dict[str, object]) -> None:
    assert pictures(asked(**other))[0].body != pictures(asked())[0].body


def test_who_asks_and_in_which_batch_does_not_change_a_picture() -> None:
    denoiser = SyntheticDenoiser(FREE)
    done = run(denoiser, [asked(), asked(id=RequestId("req-2"), tenant=TenantId("u"), arrived_ns=5)], 0, 4)
    assert [row.made[0].body for row in done.made] == [pictures(asked())[0].body] * 2
    assert denoiser.held == 0


def test_a_checkpoint_goes_on_in_another_process_to_the_same_picture() -> None:
    first = run(SyntheticDenoiser(FREE), [asked(n=2)], 0, 3, save=(0,)).made[0].made[0]
    assert (first.kind, first.steps) == ("checkpoint", 3)
    rest = run(SyntheticDenoiser(FREE), [asked(n=2, begun=3, checkpoint=first.body)], 3, 1)
    assert [made.body for made in rest.made[0].made] == [made.body for made in pictures(asked(n=2))]


def test_a_checkpoint_of_other_steps_is_refused() -> None:
    body = run(SyntheticDenoiser(FREE), [asked()], 0, 3, save=(0,)).made[0].made[0].body
    done = run(SyntheticDenoiser(FREE), [asked(begun=2, checkpoint=body)], 2, 1)
    assert [(failure.seq, failure.code) for failure in done.failed] == [(0, "bad_checkpoint")]
    assert "begun 2 steps" in done.failed[0].message


def test_previews_are_numbered_and_differ_from_the_picture() -> None:
    denoiser = SyntheticDenoiser(FREE)
    request = asked(content=Content("a red circle", previews=3))
    shown = [run(denoiser, [request], step, 1, show=(0,)).made[0].made[0] for step in range(3)]
    assert [(each.kind, each.index, each.steps) for each in shown] == [
        ("preview", 0, 1),
        ("preview", 1, 2),
        ("preview", 2, 3),
    ]
    picture = run(denoiser, [request], 3, 1, show=(0,)).made[0].made
    assert [each.kind for each in picture] == ["picture"]
    assert picture[0].body not in [each.body for each in shown]


def test_a_video_is_one_file_of_as_many_frames_as_asked() -> None:
    made = pictures(asked(frames=5, fps=2, content=Content("a red circle", form="mp4")))
    assert [(each.kind, each.seed) for each in made] == [("video", 7)]
    assert made[0].body.count(b"IHDR") == 5


def test_a_bad_picture_or_too_large_a_request_fails_its_own_row_only() -> None:  # vllm-omni#4634
    denoiser = SyntheticDenoiser(msgspec.structs.replace(FREE, row_pixels_max=16 * 24))
    bad = asked(content=Content("x", pictures=(b"MZ..",)))
    done = run(denoiser, [bad, asked(n=2), asked()], 0, 4)
    assert [(failure.seq, failure.code) for failure in done.failed] == [(0, "bad_input"), (1, "out_of_memory")]
    assert [row.seq for row in done.made] == [2]
    assert denoiser.held == 0


def test_a_row_that_leaves_is_forgotten() -> None:
    denoiser = SyntheticDenoiser(FREE)
    run(denoiser, [asked(), asked()], 0, 1)
    assert denoiser.held == 2
    run(denoiser, [asked()], 1, 1, leave=(1,))
    assert denoiser.held == 1


def test_a_plan_that_skips_a_step_is_a_bug() -> None:
    denoiser = SyntheticDenoiser(FREE)
    run(denoiser, [asked()], 0, 1)
    with pytest.raises(InvariantError, match="goes on from 2"):
        run(denoiser, [asked()], 2, 1)


def chunk(seed: int, given: bytes = b"", **fields: object) -> DiffusionRequest:
    """One of two frames after the two of the chunk before."""
    given_frames = 2 if given else 0
    said = Content("a red circle", form="mp4", given=given)
    more = {"frames": given_frames + 2, "given_frames": given_frames, "hand_on": 2, "fps": 2, "seed": seed}
    return asked(**{**more, "content": said, **fields})


def test_a_chunk_shows_its_own_frames_and_goes_on_from_those_before() -> None:  # SPEC H5
    denoiser = SyntheticDenoiser(FREE)
    (first,) = run(denoiser, [chunk(1)], 0, 4).made
    latents, video = first.made
    assert [(one.kind, one.index, one.steps) for one in first.made] == [("latents", 0, 4), ("video", 0, 4)]
    assert video.body.count(b"IHDR") == 2
    (second,) = run(SyntheticDenoiser(FREE), [chunk(2, latents.body)], 0, 4).made  # in another process
    assert second.made[1].body.count(b"IHDR") == 2
    (other,) = run(denoiser, [chunk(3)], 0, 4).made
    (elsewhere,) = run(denoiser, [chunk(2, other.made[0].body)], 0, 4).made
    assert second.made[1].body != elsewhere.made[1].body
    (alone,) = run(denoiser, [chunk(1, hand_on=0)], 0, 4).made
    assert alone.made == (video,)


def test_a_chunk_that_was_moved_goes_on_as_it_was() -> None:  # SPEC F6, H5
    (first,) = run(SyntheticDenoiser(FREE), [chunk(1)], 0, 4).made
    whole = chunk(2, first.made[0].body)
    denoiser = SyntheticDenoiser(FREE)
    (saved,) = run(denoiser, [whole], 0, 2, save=(0,)).made
    moved = msgspec.structs.replace(whole, begun=2, checkpoint=saved.made[0].body)
    assert run(SyntheticDenoiser(FREE), [moved], 2, 2).made == run(SyntheticDenoiser(FREE), [whole], 0, 4).made


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": ModelId("other")}, "by 'm', given_frames is 2 of 24x16 by 'other'"),
        ({"width": 48}, "are of 2 frames of 24x16 by 'm', given_frames is 2 of 48x16"),
        ({"given_frames": 1}, "are of 2 frames of 24x16 by 'm', given_frames is 1"),
        ({"content": Content("x", form="mp4", given=b"\x00junk")}, "unreadable"),
        ({"content": Content("x", form="mp4")}, "0 bytes of latents came"),
        ({"content": Content("x", given=b"\x00")}, "a chunk is a video, made as mp4, not png"),
    ],
    ids=str,
)
def test_latents_that_are_foreign_or_unreadable_are_bad_input(fields: dict[str, object], words: str) -> None:
    (first,) = run(SyntheticDenoiser(FREE), [chunk(1)], 0, 4).made  # SPEC H5
    (failure,) = run(SyntheticDenoiser(FREE), [chunk(2, first.made[0].body, **fields)], 0, 4).failed
    assert failure.code == "bad_input"
    assert words in failure.message
