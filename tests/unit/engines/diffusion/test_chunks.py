"""Chunks of a streaming session: each goes on from the latents that the one before handed on (SPEC H5, F1)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from tests.unit.engines.diffusion.asks import STEPS, asked, made, run, video
from tests.unit.engines.diffusion.fresh import Fresh

from headway.core.artifacts import Made
from headway.core.errors import ConfigError
from headway.core.request import Content, DiffusionRequest
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.handed_on import check_chunks
from headway.engines.diffusion.loading import Loaded, LoadSettings
from headway.engines.diffusion.peaks import state_of
from headway.engines.diffusion.start import StageCounts, start_engine

Make = Callable[..., DiffusionEngine]
Load = Callable[..., Loaded]
GIVEN = Content("x", form="mp4", given=b"x")
PROMPT, NEGATIVE = "a red circle on a white background", "a blue square"
# Frames of the first chunk, of every later one, and of those how many are given: one frame a latent and two a token;
# five frames in two latents, one of them a token.
LENGTHS = {"wan-laps": (4, 8, 4), "wan": (5, 9, 5), "wan2.2": (5, 9, 5)}


def chunk(family: str, seed: int, given: bytes = b"", **fields: Any) -> DiffusionRequest:
    """The first one, or what goes on from `given`."""
    first, later, context = LENGTHS[family]
    said = Content(PROMPT, NEGATIVE, form="mp4", given=given)
    more = {"frames": later, "given_frames": context} if given else {"frames": first}
    return video(**{"seed": seed, "hand_on": context, "content": said, **more, **fields})


def seen(engine: DiffusionEngine) -> list[np.ndarray]:
    """Frames of all that it decodes from now on."""
    kept: list[np.ndarray] = []
    decode = engine.stages.decode  # type: ignore[attr-defined]
    engine.stages.decode = lambda grid, size: kept.append(decode(grid, size)) or kept[-1]  # type: ignore[attr-defined,func-returns-value]
    return kept


def plain(loaded: Loaded, seed: int, given: torch.Tensor | None, frames: int) -> tuple[torch.Tensor, np.ndarray]:
    """The same chunk with diffusers alone: latents after those of `given`, and the frames that they add."""
    pipe, model = loaded.pipeline, loaded.pipeline.transformer
    config, count = model.config, 0 if given is None else given.shape[2]
    time, rows, columns = config.patch_size
    with torch.inference_mode():
        told, not_told = (
            pipe.encode_prompt([text], do_classifier_free_guidance=False, max_sequence_length=16)[0]
            for text in (PROMPT, NEGATIVE)
        )
        side = 32 // pipe.vae_scale_factor_spatial
        made_frames = (frames - 1) // pipe.vae_scale_factor_temporal + 1
        shape = (1, config.in_channels, made_frames - count, side, side)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        solver = type(pipe.scheduler).from_config(pipe.scheduler.config)
        solver.set_timesteps(STEPS)
        boundary = pipe.config.boundary_ratio
        for t in solver.timesteps:
            at = model if boundary is None or t >= boundary * 1000 else pipe.transformer_2
            whole = x if given is None else torch.cat([given, x], 2)
            when = t.expand(1)
            if given is not None:
                when = t.repeat(1, made_frames // time * (side // rows) * (side // columns))
                when[:, : count // time * (side // rows) * (side // columns)] = 0
            high, low = (at(whole, when, said, return_dict=False)[0][:, :, count:] for said in (told, not_told))
            x = solver.step(low + 3.0 * (high - low), t, x, return_dict=False)[0]
        vae = pipe.vae
        mean, deviation = (
            torch.tensor(kind).view(1, -1, 1, 1, 1) for kind in (vae.config.latents_mean, vae.config.latents_std)
        )
        whole = x if given is None else torch.cat([given, x], 2)
        decoded = vae.decode(whole / (1.0 / deviation) + mean, return_dict=False)[0]
        pictures = pipe.video_processor.postprocess_video(decoded, output_type="np")
    shown = 0 if given is None else (count - 1) * pipe.vae_scale_factor_temporal + 1
    return x, (pictures * 255).round().astype("uint8")[0, shown:]


def latents_in(one: Made) -> torch.Tensor:
    assert one.kind == "latents"
    return safetensors.torch.load(one.body)["latents"]


@pytest.mark.parametrize("family", LENGTHS)
def test_three_chunks_are_those_of_a_plain_loop_to_the_bit(family: str, engine: Make, loaded: Load) -> None:
    one = engine(family)
    frames = seen(one)
    first, later, context = LENGTHS[family]
    body, given, theirs = b"", None, None
    for number in range(3):
        latents, film = made(one, chunk(family, number, body))
        assert film.kind == "video"
        theirs, pictures = plain(loaded(family), number, given, later if number else first)
        assert np.array_equal(frames[-1][0], pictures)
        assert len(pictures) == (later - context if number else first)
        both = theirs if given is None else torch.cat([given, theirs], 2)
        body, given = latents.body, latents_in(latents)
        assert torch.equal(given, both[:, :, -given.shape[2] :])


def test_what_is_handed_on_decides_the_chunk_after_it(engine: Make) -> None:
    one = engine("wan-laps")
    frames = seen(one)
    for seed in (1, 2):
        made(one, chunk("wan-laps", 9, made(one, chunk("wan-laps", seed))[0].body))
    assert not np.array_equal(frames[1], frames[3])


def test_no_latents_come_where_none_are_asked_for(engine: Make) -> None:
    assert [one.kind for one in made(engine("wan-laps"), chunk("wan-laps", 1, hand_on=0))] == ["video"]


def test_every_video_of_n_hands_on_its_own(engine: Make) -> None:
    one = engine("wan-laps")
    body = made(one, chunk("wan-laps", 1))[0].body
    both = made(one, chunk("wan-laps", 5, body, n=2))
    assert [(each.kind, each.index, each.seed) for each in both] == [
        ("latents", 0, 5),
        ("latents", 1, 6),
        ("video", 0, 5),
        ("video", 1, 6),
    ]
    alone = latents_in(made(one, chunk("wan-laps", 6, body))[0])
    assert torch.allclose(latents_in(both[1]), alone, atol=1e-4)  # another batch: its last bits


@pytest.mark.parametrize("family", ["wan-laps", "wan"])
def test_chunks_of_several_sessions_in_one_batch_are_those_of_each_alone(family: str, engine: Make) -> None:
    one = engine(family)
    frames = seen(one)
    bodies = [made(one, chunk(family, seed))[0].body for seed in (1, 2)]
    asks = [chunk(family, 7 + k, body, deterministic=False) for k, body in enumerate(bodies)]
    frames.clear()
    for each in asks:
        made(one, each)
    alone = [each[0] for each in frames]
    frames.clear()
    forward, passes = one._family.forward, []
    one._family.forward = lambda work: passes.append(len(work.latents)) or forward(work)  # type: ignore[method-assign,func-returns-value]
    try:
        done = run(one, asks)
    finally:
        del one._family.forward  # type: ignore[attr-defined]
    assert not done.failed
    assert passes == [4] * STEPS  # both rows, and both passes of each
    for ours, theirs in zip(np.concatenate(frames), alone, strict=True):
        assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


def test_a_chunk_and_a_whole_video_of_as_many_frames_share_no_pass(engine: Make) -> None:
    one = engine("wan-laps")
    body = made(one, chunk("wan-laps", 1))[0].body
    asks = [chunk("wan-laps", 2, body), chunk("wan-laps", 3, frames=8)]
    alone = [made(one, each)[-1].body for each in asks]
    done = run(one, asks)
    assert [row.made[-1].body for row in done.made] == alone


# Checkpoints and processes

FRESH = """
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
sys.stdout.buffer.write(msgspec.msgpack.encode([one.body for one in done.made[0].made]))
"""


def test_a_fresh_process_makes_the_next_chunk_and_the_rest_of_it_bit_for_bit(
    engine: Make, saved: Callable[..., Path], fresh: Fresh
) -> None:
    """Its latents travel in the request, and so does what UniPC remembers (SPEC F6)."""
    body = made(engine("wan"), chunk("wan", 1))[0].body
    request = chunk("wan", 2, body)
    whole = [each.body for each in made(engine("wan"), request)]
    checkpoint = run(engine("wan"), [request], count=2, save=(0,)).made[0].made[0]
    for order in (request, msgspec.structs.replace(request, begun=2, checkpoint=checkpoint.body)):
        printed = fresh.run(FRESH, str(saved("wan")), given=msgspec.msgpack.encode(order))
        assert msgspec.msgpack.decode(printed, type=list[bytes]) == whole


@pytest.mark.parametrize("family", ["wan-laps", "wan2.2"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_checkpoint_of_a_chunk_leads_to_the_same_bytes(family: str, at: int, engine: Make) -> None:  # SPEC F6
    request = chunk(family, 2, made(engine(family), chunk(family, 1))[0].body)
    whole = [each.body for each in made(engine(family), request)]
    checkpoint = run(engine(family), [request], count=at, save=(0,)).made[0].made[0].body
    rest = msgspec.structs.replace(request, begun=at, checkpoint=checkpoint)
    assert [each.body for each in made(engine(family), rest)] == whole


def test_a_checkpoint_of_a_chunk_after_other_frames_is_not_gone_on_from(engine: Make) -> None:  # SPEC F6
    one = engine("wan-laps")
    bodies = [made(one, chunk("wan-laps", seed))[0].body for seed in (1, 2)]
    checkpoint = run(one, [chunk("wan-laps", 3, bodies[0])], count=2, save=(0,)).made[0].made[0].body
    other = chunk("wan-laps", 3, bodies[1], begun=2, checkpoint=checkpoint)
    (failure,) = run(engine("wan-laps"), [other], 2, 2).failed
    assert failure.code == "bad_checkpoint"


@pytest.mark.slow
def test_processes_of_stages_decode_what_was_handed_on(saved: Callable[..., Path], engine: Make) -> None:  # SPEC G1
    here = engine("wan-laps")
    body = made(here, chunk("wan-laps", 1))[0].body
    settings = LoadSettings(saved("wan-laps"), device="cpu", threads=1)
    there = start_engine(settings, RunSettings(), StageCounts(text=1, decode=1), lambda: 0)
    try:
        assert made(there, chunk("wan-laps", 2, body)) == made(here, chunk("wan-laps", 2, body))
    finally:
        there.close()


# What is refused


def handed(body: bytes, **words: Any) -> bytes:
    """The same latents under other words."""
    told = {"format": "headway-latents-1", "model": "", "frames": 4, "width": 32, "height": 32}
    said = msgspec.json.encode({**told, **words}).decode()
    return safetensors.torch.save(safetensors.torch.load(body), {"said": said})


def shaped(model: str, *shape: int) -> bytes:
    body = safetensors.torch.save({"latents": torch.zeros(shape)})
    return handed(body, model=model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body, _: b"", "given_frames is 4 and 0 bytes of latents came"),
        (lambda body, _: b"\x00" * 40, "unreadable"),
        (lambda body, _: body[:-1], "unreadable"),
        (lambda body, _: handed(body, format="other"), "have format 'other'"),
        (lambda body, _: handed(body), "were made by other weights"),
        (
            lambda body, model: handed(body, model=model, frames=2),
            "are of 2 frames of 32x32; the request goes on from 4",
        ),
        (lambda body, model: handed(body, model=model, width=64), "are of 4 frames of 64x32"),
        (lambda body, model: shaped(model, 1, 8, 2, 4, 4), "have not the shape (1, 8, 4, 4, 4)"),
        (lambda body, _: safetensors.torch.save({"latents": torch.zeros(1)}), "unreadable"),
    ],
    ids=range(9),
)
def test_latents_that_are_unreadable_or_foreign_fail_their_row_alone(
    change: Callable[[bytes, str], bytes], words: str, engine: Make, loaded: Load
) -> None:
    one = engine("wan-laps")
    body = made(one, chunk("wan-laps", 1))[0].body
    bad = change(body, loaded("wan-laps").model_hash.hex())
    good = chunk("wan-laps", 2, body)
    said = msgspec.structs.replace(good.content, given=bad)
    done = run(one, [good, msgspec.structs.replace(good, content=said)])
    assert [(failure.seq, failure.code) for failure in done.failed] == [(1, "bad_input")]
    assert words in done.failed[0].message
    assert [row.seq for row in done.made] == [0]


def test_latents_of_the_same_shape_but_other_weights_are_foreign(engine: Make) -> None:
    body = made(engine("wan-laps", seed=1), chunk("wan-laps", 1))[0].body
    (failure,) = run(engine("wan-laps"), [chunk("wan-laps", 2, body)]).failed
    assert (failure.code, "other weights" in failure.message) == ("bad_input", True)


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("wan-laps", {"frames": 5}, "frames of a chunk is 5"),
        ("wan-laps", {"frames": 4, "hand_on": 3}, "hand_on of a chunk is 3"),
        (
            "wan-laps",
            {"frames": 8, "given_frames": 1, "content": Content("x", form="mp4", given=b"x")},
            "the next such",
        ),
        ("wan", {"frames": 8}, "frames of a chunk is 8; this model goes on from latents of 1 frame, then 4 each"),
        ("wan-laps", {"frames": 2, "hand_on": 2, "content": Content("x")}, "a chunk is a video, made as mp4, not png"),
        ("flux", {"frames": 1, "hand_on": 1, "content": Content("x")}, "goes on from no frames"),
    ],
    ids=str,
)
def test_what_a_family_cannot_is_refused_in_words(
    family: str, fields: dict[str, Any], words: str, engine: Make
) -> None:
    request = (asked if family == "flux" else video)(**{"hand_on": 4, **fields})
    (failure,) = run(engine(family), [request]).failed
    assert failure.code == "bad_input"
    assert words in failure.message


def test_chunks_that_a_model_cannot_make_are_found_when_it_is_loaded(saved: Callable[..., Path], loaded: Load) -> None:
    check_chunks(loaded("wan-laps").family, ((4, 0, 4), (8, 4, 4)))
    with pytest.raises(ConfigError, match="chunks of 7 frames, 3 of them given: frames of a chunk is 7"):
        start_engine(
            LoadSettings(saved("wan-laps"), device="cpu"), RunSettings(chunks=((7, 3, 3),)), StageCounts(), lambda: 0
        )
    with pytest.raises(ConfigError, match="it goes on from no frames"):
        check_chunks(loaded("flux").family, ((4, 0, 4),))


def test_what_a_row_was_given_counts_among_what_it_holds(engine: Make) -> None:  # SPEC G6
    one = engine("wan-laps")
    body = made(one, chunk("wan-laps", 1))[0].body
    held = []
    for request in (chunk("wan-laps", 2, body), chunk("wan-laps", 2, frames=8)):
        run(one, [request], count=1)
        held.append(one._rows[0])
        one._rows.clear()
    assert state_of(held[:1]).latents == state_of(held[1:]).latents
