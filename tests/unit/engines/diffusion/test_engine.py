"""Plans on real components: batches, seeds, checkpoints, failures of one row, and what is left behind."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest
import torch
from tests.unit.engines.diffusion.asks import STEPS, asked, made, mask, picture, pixels, run, video
from tests.unit.engines.diffusion.fresh import Fresh

from headway.core.artifacts import Denoised
from headway.core.errors import InvariantError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DenoiseShape, DiffusionRequest, LoraUse
from headway.cost.batch_sizes import parts_of
from headway.engines.diffusion.engine import DiffusionEngine
from headway.engines.diffusion.families.protocol import Size
from headway.engines.diffusion.rows import Row
from headway.live.checkpoint_warmup import checkpoint_ns
from headway.sched.diffusion.warming import Stock, warming

Make = Callable[..., DiffusionEngine]
PICTURES = ["flux", "flux-distilled", "sd3", "pixart", "qwen"]
OTHER = "a blue square"


def loose(**fields: Any) -> DiffusionRequest:
    """As `asked`, with leave to share batches."""
    return asked(**{"deterministic": False, **fields})


def bodies(done: Denoised) -> list[bytes]:
    assert not done.failed, done.failed
    return [each.body for row in done.made for each in row.made]


# Batches


@pytest.mark.parametrize("family", PICTURES)
def test_a_row_of_a_batch_has_the_pixels_it_has_alone(family: str, engine: Make) -> None:  # sglang#28502
    requests = [
        loose(),
        loose(seed=9, content=Content(OTHER)),
        loose(seed=3, n=2, content=Content("a circle on the white square")),
    ]
    together = bodies(run(engine(family), requests))
    alone = [each.body for request in requests for each in made(engine(family), request)]
    assert len(together) == len(alone) == 4
    for ours, theirs in zip(together, alone, strict=True):
        assert np.abs(pixels(ours).astype(int) - pixels(theirs)).max() <= 1


# SPEC F8
def test_a_row_with_more_pictures_than_are_warm_takes_several_passes(engine: Make) -> None:
    request, passes = loose(n=5), []
    whole = [pixels(each.body).astype(int) for each in made(engine("flux"), request)]
    one = engine("flux")
    forward = one._loaded.pipeline.transformer.forward

    def counting(*args: Any, **named: Any) -> Any:
        passes.append(len(named["hidden_states"]))
        return forward(*args, **named)

    one._loaded.pipeline.transformer.forward = counting
    try:
        parts = [pixels(each.body).astype(int) for each in made(one, request, pictures_max=2)]
    finally:
        del one._loaded.pipeline.transformer.forward
    assert passes == [4, 4, 2] * STEPS  # both passes of guidance are one here
    assert max(np.abs(a - b).max() for a, b in zip(parts, whole, strict=True)) <= 1


def test_rows_that_are_at_different_steps_share_a_pass(engine: Make) -> None:
    one = engine("flux")
    passes: list[int] = []
    forward = one._family.forward
    first = run(one, [loose()], count=1)
    assert not first.failed
    rows = (DenoiseRow(0, 1, 3, STEPS), DenoiseRow(7, 0, 3, STEPS))
    other = loose(seed=9)
    new = (msgspec.structs.replace(_new(other), seq=7),)

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(family, name)

        def forward(self, work: Any) -> Any:
            passes.append(len(work.latents))
            return forward(work)

    family = one._family
    one._batcher._family = Counting()  # type: ignore[assignment]
    done = one.run(DenoisePlan(2, 1, rows, 32, 32, new=new))
    assert passes == [4, 4, 4]  # two rows, each with its guiding pass
    ours = pixels(done.made[0].made[0].body).astype(int)
    assert np.abs(ours - pixels(made(engine("flux"), loose())[0].body)).max() <= 1


def _new(request: DiffusionRequest) -> NewDenoise:
    return NewDenoise(0, request)


def test_a_batch_is_told_from_the_one_before_by_its_rows(engine: Make) -> None:
    one = engine("flux")
    run(one, [loose()], count=2)  # sequence 0, which a void plan or another user of the engine may name again
    one.run(DenoisePlan(2, 1, (), 32, 32, leave=(0,)))
    ours = run(one, [loose(content=Content(OTHER))]).made[0].made[0].body
    assert ours == made(engine("flux"), loose(content=Content(OTHER)))[0].body


def test_a_deterministic_row_computes_alone_even_in_company(engine: Make) -> None:
    alone = made(engine("flux"), asked())[0].body
    together = run(engine("flux"), [asked(), asked(seed=8)])
    assert together.made[0].made[0].body == alone


@pytest.mark.parametrize("family", [*PICTURES, "wan"])
def test_every_picture_of_n_is_made_alone_by_its_own_seed(family: str, engine: Make) -> None:
    ask = video if family == "wan" else asked  # diffusers#6233, koboldcpp#1107, A1111#14273
    several = made(engine(family), ask(n=3))
    assert [(each.index, each.seed) for each in several] == [(0, 5), (1, 6), (2, 7)]
    assert len({each.body for each in several}) == 3
    if family != "wan":
        third = pixels(made(engine(family), ask(seed=7))[0].body).astype(int)
        assert np.abs(third - pixels(several[2].body)).max() <= 1


# Checkpoints

RESUME = """
import sys, msgspec
from pathlib import Path
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import DiffusionRequest
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.loading import LoadSettings, load
request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=DiffusionRequest)
engine = DiffusionEngine(load(LoadSettings(Path(sys.argv[1]), device="cpu")), RunSettings(), lambda: 0)
row = DenoiseRow(0, request.begun, request.steps - request.begun, request.steps, request.n)
done = engine.run(DenoisePlan(1, 0, (row,), request.height, request.width, new=(NewDenoise(0, request),)))
assert not done.failed, done.failed
assert engine.embeddings.misses == 0
sys.stdout.buffer.write(done.made[0].made[0].body)
"""


def test_a_fresh_process_goes_on_bit_for_bit(engine: Make, saved: Callable[..., Path], fresh: Fresh) -> None:
    """UniPC remembers model outputs and samples: latents and a step index are not enough (SPEC F6)."""
    request = video(steps=6)
    whole = made(engine("wan"), request)[0].body
    one = engine("wan")
    checkpoint = run(one, [request], count=3, save=(0,)).made[0].made[0]
    assert (checkpoint.kind, checkpoint.steps) == ("checkpoint", 3)
    order = msgspec.msgpack.encode(msgspec.structs.replace(request, begun=3, checkpoint=checkpoint.body))
    assert fresh.run(RESUME, str(saved("wan")), given=order) == whole


@pytest.mark.parametrize("family", [*PICTURES, "wan2.2"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_checkpoint_after_any_step_leads_to_the_same_bytes(family: str, at: int, engine: Make) -> None:
    request = video() if family == "wan2.2" else asked(n=2)
    whole = [each.body for each in made(engine(family), request)]
    checkpoint = run(engine(family), [request], count=at, save=(0,)).made[0].made[0].body
    rest = msgspec.structs.replace(request, begun=at, checkpoint=checkpoint)
    assert [each.body for each in made(engine(family), rest)] == whole


def test_an_edit_of_a_part_goes_on_from_its_checkpoint(engine: Make) -> None:
    said = Content("a red circle", pictures=(picture(),), mask=mask())
    request = asked(strength=0.75, content=said)
    whole = made(engine("flux"), request)[0].body
    checkpoint = run(engine("flux"), [request], count=2, save=(0,)).made[0].made[0].body
    assert made(engine("flux"), msgspec.structs.replace(request, begun=2, checkpoint=checkpoint))[0].body == whole


# SPEC F6
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_row_that_goes_on_has_nothing_encoded_again(
    is_saved: bool, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Content("a red circle", negative_prompt="a dog", pictures=(picture(),), mask=mask())
    request, one = asked(strength=0.75, content=said), engine("flux", cache_mb=0)
    calls: list[str] = []
    for part, name in ((one.stages, "encode"), (one._family, "encode_picture")):
        monkeypatch.setattr(part, name, _counted(getattr(part, name), calls))
    checkpoint = run(one, [request], count=2, save=(0,)).made[0].made[0].body
    assert calls == ["encode", "encode", "encode_picture"]
    rest = msgspec.structs.replace(request, begun=2, checkpoint=checkpoint)
    done = run(one, [rest], 2, 2, leave=(0,)) if is_saved else run(one, [request], 2, 2)
    assert [row.made[0].kind for row in done.made] == ["picture"]
    assert calls == ["encode", "encode", "encode_picture"]


# SPEC F1: the encoder's answer is one, what is drawn from it is each picture's own
@pytest.mark.parametrize("family", ["flux", "sd3", "qwen"])
def test_a_picture_is_encoded_once_however_many_are_made_of_it(
    family: str, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, said, calls = engine(family), Content("a red circle", pictures=(picture(),)), list[str]()
    alone = [made(one, asked(strength=0.5, content=said, seed=seed))[0].body for seed in (5, 6)]
    vae = one._loaded.pipeline.vae
    monkeypatch.setattr(vae, "encode", _counted(vae.encode, calls))
    both = [thing.body for thing in made(one, asked(strength=0.5, content=said, n=2, deterministic=False))]
    assert calls == ["encode"]
    off = [np.abs(pixels(ours).astype(int) - pixels(theirs)).max() for ours, theirs in zip(both, alone, strict=True)]
    assert max(off) <= 1  # in company
    assert both[0] != both[1]


def _counted(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        calls.append(function.__name__)
        return function(*args)

    return counted


def test_a_save_does_not_change_what_follows(engine: Make) -> None:
    one = engine("wan")
    for step in range(STEPS - 1):
        run(one, [video()], step, 1, save=(0,)) if step == 0 else _go_on(one, step, save=(0,))
    assert _go_on(one, STEPS - 1).made[0].made[0].body == made(engine("wan"), video())[0].body


def _go_on(engine: DiffusionEngine, step: int, **plan: Any) -> Denoised:
    return engine.run(DenoisePlan(1, 0, (DenoiseRow(0, step, 1, STEPS),), 32, 32, **plan))


@pytest.mark.parametrize(
    "other", [{"seed": 6}, {"content": Content(OTHER)}, {"guidance_scale": 2.0}, {"checkpoint": b"nothing of ours"}]
)
def test_a_checkpoint_of_another_request_is_refused(other: dict[str, Any], engine: Make) -> None:
    checkpoint = run(engine("flux"), [asked()], count=2, save=(0,)).made[0].made[0].body
    rest = asked(**{"begun": 2, "checkpoint": checkpoint, **other})
    done = run(engine("flux"), [rest], 2, 2)
    assert [failure.code for failure in done.failed] == ["bad_checkpoint"]


@pytest.mark.parametrize("harm", [lambda body: body[:-100], lambda body: body.replace(b'"latents"', b'"pigment"', 1)])
def test_a_checkpoint_that_is_cut_off_or_lacks_a_part_fails_its_row_only(
    harm: Callable[[bytes], bytes], engine: Make
) -> None:  # SPEC F6
    checkpoint = run(engine("flux"), [asked()], count=2, save=(0,)).made[0].made[0].body
    harmed, well = (asked(begun=2, checkpoint=body) for body in (harm(checkpoint), checkpoint))
    done = run(engine("flux"), [harmed, well], 2, 2)
    assert [(failure.seq, failure.code) for failure in done.failed] == [(0, "bad_checkpoint")]
    assert [row.seq for row in done.made] == [1]


def test_a_checkpoint_of_other_weights_is_refused(engine: Make) -> None:
    checkpoint = run(engine("flux"), [asked()], count=2, save=(0,)).made[0].made[0].body
    done = run(engine("flux", seed=1), [asked(begun=2, checkpoint=checkpoint)], 2, 2)
    assert "other weights" in done.failed[0].message


# What rows leave behind


def test_a_cancelled_row_is_forgotten_and_the_others_go_on(engine: Make) -> None:  # vllm-omni#1347
    one = engine("flux")
    run(one, [loose(), loose(seed=8)], count=2)
    assert one.held == 2
    done = one.run(DenoisePlan(2, 1, (DenoiseRow(1, 2, 2, STEPS),), 32, 32, leave=(0,)))
    assert one.held == 0
    ours = pixels(done.made[0].made[0].body).astype(int)
    assert np.abs(ours - pixels(made(engine("flux"), loose(seed=8))[0].body)).max() <= 1


def test_a_plan_that_does_not_fit_is_a_bug_and_frees_its_rows(engine: Make) -> None:
    one = engine("flux")
    run(one, [asked()], count=1)
    with pytest.raises(InvariantError, match="at step 1 of 4"):
        _go_on(one, 2)
    assert one.held == 0


# Failures of one row

BAD = {
    "no picture": {"content": Content("x", pictures=(b"MZ not a picture",))},
    "cut picture": {"content": Content("x", pictures=(picture()[:200],))},
    "mask without alpha": {"content": Content("x", pictures=(picture(),), mask=picture())},
    "mask of another size": {"content": Content("x", pictures=(picture(),), mask=mask(16, 8))},
    "mask alone": {"content": Content("x", mask=mask())},
    "strength alone": {"strength": 0.5},
    "no step": {"strength": 0.0, "content": Content("x", pictures=(picture(),))},
    "odd size": {"height": 33},
    "video": {"frames": 5, "fps": 4, "content": Content("x", form="mp4")},
    "form": {"content": Content("x", form="svg")},
    "adapter": {"loras": (LoraUse("style"),)},
    "solver": {"solver": "HeunDiscreteScheduler"},
    "dtype": {"dtype": "bfloat16"},
    "negative without guidance": {"guidance_scale": 1.0, "content": Content("x", "y")},
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_row_fails_alone(fault: str, engine: Make) -> None:  # vllm-omni#4634
    one = engine("flux")
    done = run(one, [loose(), loose(**BAD[fault])])
    assert [(failure.seq, failure.code) for failure in done.failed] == [(1, "bad_input")]
    assert [row.seq for row in done.made] == [0]
    assert one.held == 0


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("flux-distilled", {"content": Content("x", "y")}),
        ("pixart", {"content": Content("x", pictures=(picture(),))}),
        ("sd3", {"content": Content("x", pictures=(picture(),), mask=mask())}),
        ("wan", {"frames": 5, "content": Content("x")}),
        ("wan", {"frames": 5, "fps": 0, "content": Content("x", form="mp4")}),
    ],
)
def test_what_a_family_cannot_do_is_refused(family: str, fault: dict[str, Any], engine: Make) -> None:
    assert [failure.code for failure in run(engine(family), [asked(**fault)]).failed] == ["bad_input"]


def short_of_memory(engine: DiffusionEngine, pictures_max: int) -> list[int]:
    """Forward passes of more pictures than that fail as the CPU allocator does; return the largest of each try."""
    tries: list[int] = []

    def limited(rows: Any, most: int | None = None) -> Any:
        pictures = sum(len(row.latents) for row in rows)
        tries.append(pictures if most is None or len(rows) > 1 else max(parts_of(pictures, most)))
        if tries[-1] > pictures_max:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return type(engine._batcher).predict(engine._batcher, rows, most)

    engine._batcher.predict = limited  # type: ignore[method-assign]
    return tries


# SPEC F4
def test_rows_that_do_not_fit_together_are_run_alone(engine: Make) -> None:  # vllm-omni#2327
    one = engine("flux")
    short_of_memory(one, 1)
    done = run(one, [loose(), loose(seed=8), loose(n=2), asked(n=2)])
    assert [failure.seq for failure in done.failed] == [3]  # it is to be computed as the pipeline would
    assert "no room for a step of 2 times 32x32 in one pass, which `deterministic`" in done.failed[0].message
    assert [(row.seq, len(row.made)) for row in done.made] == [(0, 1), (1, 1), (2, 2)]
    assert one.held == 0


# SPEC F4
def test_a_request_for_several_pictures_is_split_until_its_passes_have_room(engine: Make) -> None:
    one, request = engine("flux"), loose(n=8)
    tries = short_of_memory(one, 3)
    done = run(one, [request])
    assert tries[:4] == [8, 4, 2, 2]  # the third is the first that has room, and its parts
    assert 8 not in tries[1:]  # what has no room is remembered
    whole = bodies(run(engine("flux"), [request]))
    for body, expected in zip(bodies(done), whole, strict=True):
        assert np.abs(pixels(body).astype(int) - pixels(expected)).max() <= 1
    tries.clear()
    assert not run(one, [loose(n=4), loose(seed=9), loose(seed=10)]).failed
    assert max(tries) == 2


# SPEC F4
def test_only_what_cannot_run_alone_fails_for_want_of_room(engine: Make) -> None:
    one = engine("flux")
    short_of_memory(one, 0)
    (failure,) = run(one, [loose(n=4)]).failed
    assert (failure.code, failure.message) == (
        "out_of_memory",
        "request req-1: no room for a step of one 32x32, alone; ask for a smaller size",
    )


# SPEC F4
def test_larger_passes_are_tried_again_after_a_while(engine: Make) -> None:
    one = engine("flux")
    tries = short_of_memory(one, 2)
    run(one, [loose(n=4, steps=60)], count=60)
    assert [tried for tried in tries if tried > 2] == [4, 4]  # the second try was in vain
    short = engine("flux")
    room = short._room
    with_room = [Row(0, loose(n=4), Size(32, 32), torch.zeros(4), *[None] * 4)]  # type: ignore[list-item]
    assert room.failed(with_room, None)
    for _ in range(100):
        room.ran(with_room, room.most(with_room, None))
    assert room.most(with_room, None) is None


def test_pictures_that_are_not_decoded_together_are_decoded_in_halves(
    engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC F4
    one, request = engine("flux"), loose(n=3)
    whole, seen = bodies(run(engine("flux"), [request])), []
    decoder = one._loaded.pipeline.vae.decoder
    forward = decoder.forward

    def short(grid: torch.Tensor, *more: Any, **named: Any) -> Any:
        seen.append(len(grid))
        if len(grid) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(grid, *more, **named)

    monkeypatch.setattr(decoder, "forward", short)
    for body, expected in zip(bodies(run(one, [request])), whole, strict=True):
        assert np.abs(pixels(body).astype(int) - pixels(expected)).max() <= 1
    assert seen == [3, 2, 1, 1, 1]
    assert one.stages.tiled_decodes == 0  # type: ignore[attr-defined]  # stages of one process


def test_another_error_of_a_pass_fails_its_row_and_leaves_nothing(engine: Make) -> None:
    one = engine("flux")
    run(one, [loose()], count=1)
    one._batcher.predict = lambda rows, most=None: (_ for _ in ()).throw(RuntimeError("shapes"))  # type: ignore[method-assign]
    (failure,) = _go_on(one, 1).failed
    assert (failure.code, failure.message) == ("engine_failed", "request req-1 failed in a step: RuntimeError: shapes")
    assert one.held == 0


# Embeddings


def test_a_prompt_is_encoded_once_and_hits_are_counted(engine: Make) -> None:  # SPEC G2
    one = engine("flux")
    first = run(one, [loose(), loose(seed=8)])
    again = run(one, [loose(seed=9)])
    assert first.stages is not None
    assert again.stages is not None
    assert (one.embeddings.misses, first.stages.text_hits, again.stages.text_hits) == (2, 2, 2)


def test_rows_that_begin_together_share_embeddings_where_nothing_is_kept(engine: Make) -> None:
    one, calls = engine("flux", cache_mb=0), []
    encode = one.stages.encode
    one.stages.encode = lambda prompts: calls.append(list(prompts)) or encode(prompts)  # type: ignore[method-assign,func-returns-value]
    run(one, [loose(content=Content(text)) for text in ("a", "a red", "a blue")])
    assert calls == [["a", "", "a red", "a blue"]]


def test_prompts_that_begin_together_are_encoded_in_one_call_but_for_deterministic_ones(engine: Make) -> None:
    one, calls = engine("flux"), []
    encode = one.stages.encode
    one.stages.encode = lambda prompts: calls.append(list(prompts)) or encode(prompts)  # type: ignore[method-assign,func-returns-value]
    run(one, [loose(content=Content("a", "b")), loose(content=Content("a red", "b")), asked(content=Content("a"))])
    assert calls == [["a", "b", "a red"], ["a"], [""]]


def test_embeddings_of_other_weights_have_other_keys(engine: Make) -> None:  # llama.cpp#26207, vllm#42125
    one, other = engine("flux").embeddings, engine("flux", seed=1).embeddings
    assert one.key("a") == engine("flux").embeddings.key("a")
    assert one.key("a") != other.key("a")


def test_embeddings_are_bounded_in_bytes(engine: Make) -> None:
    one = engine("flux", cache_mb=0)
    run(one, [loose()])
    assert (one.embeddings.bytes, len(one.embeddings)) == (0, 0)


# Every field arrives: vllm-omni#532, #4900

FIELDS = {
    "seed": {"seed": 6},
    "steps": {"steps": 5},
    "guidance_scale": {"guidance_scale": 6.0},
    "height": {"height": 48},
    "width": {"width": 48},
    "prompt": {"content": Content(OTHER)},
    "negative_prompt": {"content": Content("a red circle on a white background", OTHER)},
    "picture": {"content": Content("a red circle on a white background", pictures=(picture(),))},
    "strength": {"strength": 0.5, "content": Content("a red circle on a white background", pictures=(picture(),))},
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_the_request_changes_the_picture(field: str, engine: Make) -> None:
    ours = made(engine("flux"), asked(**FIELDS[field]))[0].body
    assert ours != made(engine("flux"), asked())[0].body


def test_the_model_has_a_guidance_of_its_own(engine: Make) -> None:
    named = made(engine("flux"), asked(guidance_scale=2.0))[0].body
    assert made(engine("flux", guidance_scale=2.0), asked(guidance_scale=0.0))[0].body == named


# SPEC F6: a replica that was started again may be configured otherwise
def test_a_checkpoint_goes_on_with_the_guidance_that_it_was_made_with(engine: Make) -> None:
    request = asked(guidance_scale=0.0)
    whole = made(engine("flux", guidance_scale=2.0), request)[0].body
    checkpoint = run(engine("flux", guidance_scale=2.0), [request], count=2, save=(0,)).made[0].made[0].body
    rest = msgspec.structs.replace(request, begun=2, checkpoint=checkpoint)
    assert made(engine("flux", guidance_scale=5.0), rest)[0].body == whole


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")])
def test_pictures_come_in_the_form_that_was_asked(form: str, begins: bytes, engine: Make) -> None:
    said = Content("a red circle", form=form, quality=80)
    one, two = (made(engine("flux"), asked(content=said))[0].body for _ in range(2))
    assert one.startswith(begins)
    assert one == two
    assert pixels(one).shape == (32, 32, 3)


def test_quality_is_the_encoders(engine: Make) -> None:
    sizes = [
        len(made(engine("flux"), asked(content=Content("a", form="jpeg", quality=quality)))[0].body)
        for quality in (5, 95)
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("model", ["wan", "wan-long-tokens"])  # of one latent frame a token, and of two
@pytest.mark.parametrize("frames", [1, 5, 6, 8])
def test_a_video_has_the_frames_and_the_rate_that_were_asked(model: str, frames: int, engine: Make) -> None:
    body = made(engine(model), video(frames=frames))[0].body
    with av.open(io.BytesIO(body)) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.width, stream.height) == (4, 32, 32)
        assert float(stream.duration * stream.time_base) == frames / 4
        assert sum(1 for _ in container.decode(video=0)) == frames


# Previews


def test_previews_are_small_pictures_of_what_is_coming(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.engines.diffusion.outputs.PREVIEW_EDGE", 64)
    said = Content("a red circle", form="jpeg", previews=3)
    request = asked(height=128, width=64, content=said)
    one, shown = engine("flux"), []
    for step in range(3):
        done = run(one, [request], 0, 1, show=(0,)) if not step else _go_on(one, step, show=(0,))
        shown.append(done.made[0].made[0])
    assert [(each.kind, each.index, each.steps) for each in shown] == [
        ("preview", 0, 1),
        ("preview", 1, 2),
        ("preview", 2, 3),
    ]
    assert pixels(shown[0].body).shape == (64, 32, 3)
    assert shown[0].body.startswith(b"\xff\xd8")
    whole = pixels(_go_on(one, 3).made[0].made[0].body).astype(float)
    small = whole.reshape(64, 2, 32, 2, 3).mean((1, 3))
    away = [np.abs(pixels(each.body) - small).mean() for each in shown]
    assert away[2] < away[0]


@pytest.mark.parametrize("family", ["wan", "pixart", "sd3", "qwen"])
def test_every_family_shows_previews(family: str, engine: Make) -> None:
    request = video() if family == "wan" else asked()
    shown = run(engine(family), [request], count=2, show=(0,)).made[0].made[0]
    assert shown.kind == "preview"
    assert pixels(shown.body).shape == (32, 32, 3)


def test_a_preview_does_not_change_the_picture(engine: Make) -> None:
    one = engine("wan")
    run(one, [video()], count=2, show=(0,))
    rest = one.run(DenoisePlan(2, 1, (DenoiseRow(0, 2, 2, STEPS),), 32, 32))
    assert rest.made[0].made[0].body == made(engine("wan"), video())[0].body


def test_times_of_the_stages_are_told_apart(engine: Make) -> None:
    stages = run(engine("flux"), [asked(content=Content("a", pictures=(picture(),)), strength=0.5)]).stages
    assert stages is not None
    assert min(stages.text_encode_ns, stages.vae_encode_ns, stages.denoise_ns, stages.vae_decode_ns) > 0


def test_a_pass_can_be_measured(engine: Make) -> None:
    one = engine("flux")
    assert one.measure(DenoiseShape(32, 32), 2) > 0
    assert one.held == 0


# SPEC F6
def test_what_checkpoints_take_is_told_apart_from_the_stages(engine: Make) -> None:
    request = loose()
    quiet = run(engine("flux"), [request], 0, 2).stages
    done = run(engine("flux"), [request], 0, 2, save=(0,))
    assert quiet is not None
    assert done.stages is not None
    assert quiet.save_ns == quiet.resume_ns == done.stages.resume_ns == 0
    assert done.stages.save_ns > 0
    assert done.stages.vae_decode_ns == quiet.vae_decode_ns + 1  # two more looks at the clock, one of them the save's
    (kept,) = done.made[0].made
    back = run(engine("flux"), [loose(begun=2, checkpoint=kept.body)], 2, 1).stages
    assert back is not None
    assert back.resume_ns > 0
    assert back.text_encode_ns == 1  # nothing was encoded: two looks at the clock with nothing between


# SPEC F6
@pytest.mark.parametrize("family", ["flux", "sd3", "pixart", "qwen", "wan"])
def test_every_family_tells_what_checkpoints_take_before_it_is_ready(family: str, engine: Make) -> None:
    painter = engine(family)
    form, shape = ("mp4", DenoiseShape(32, 32, 5, 2)) if family == "wan" else ("png", DenoiseShape(32, 32, passes=2))
    assert min(checkpoint_ns(painter, warming(Stock(form=form, fps=4), shape, 1, 0))) > 0
    assert painter.held == 0
