"""The committed tiny model: what the engine draws is what unmodified diffusers draws, and follows its caption."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from tests.unit.engines.diffusion.asks import asked, made, pixels, run, video

from headway.core.errors import ConfigError
from headway.core.request import Content
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.loading import LoadSettings, load
from headway.live.assemble import _load_pipeline
from headway.live.config_diffusion import diffusion_spec
from headway.live.config_tiny import tiny_models

TINY = Path(__file__).parents[4] / "models" / "tiny"
IMAGE, VIDEO = TINY / "image", TINY / "video"
CAPTION = "a large red circle on a white background"
RED, WHITE = (220, 40, 40), (245, 245, 245)  # of the scenes that it was trained on


@pytest.fixture(scope="module")
def tiny() -> DiffusionEngine:
    return DiffusionEngine(load(LoadSettings(IMAGE, device="cpu")), RunSettings(), lambda: 0)


def test_its_pictures_are_those_of_unmodified_diffusers(tiny: DiffusionEngine) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import FluxPipeline

        pipe = FluxPipeline.from_pretrained(IMAGE, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    theirs = pipe(
        CAPTION,
        negative_prompt="",
        true_cfg_scale=2.0,
        height=96,
        width=64,
        num_inference_steps=4,
        max_sequence_length=16,
        generator=torch.Generator().manual_seed(5),
    ).images[0]
    ours = made(tiny, asked(height=96, width=64, guidance_scale=2.0, content=Content(CAPTION)))[0].body
    assert np.array_equal(pixels(ours), np.asarray(theirs))


def test_a_batch_of_captions_draws_what_each_says(tiny: DiffusionEngine) -> None:
    other = "a large blue square on a black background"
    requests = [
        asked(height=64, width=64, steps=8, guidance_scale=2.0, deterministic=False, content=Content(caption))
        for caption in (CAPTION, other)
    ]
    done = run(tiny, requests, count=8)
    red, blue = (pixels(row.made[0].body).astype(int) for row in done.made)
    assert np.abs(red[28:36, 28:36].mean((0, 1)) - RED).max() < 30
    assert np.abs(red[:4, :4].mean((0, 1)) - WHITE).max() < 30
    assert blue[28:36, 28:36].mean((0, 1)).argmax() == 2
    assert blue[:4, :4].mean() < 60


def test_its_videos_are_those_of_unmodified_diffusers() -> None:
    loaded = load(LoadSettings(VIDEO, device="cpu"))
    engine, kept = DiffusionEngine(loaded, RunSettings(), lambda: 0), []
    decode = engine.stages.decode  # type: ignore[attr-defined]  # stages of one process
    engine.stages.decode = lambda grid, size: kept.append(decode(grid, size)) or kept[-1]  # type: ignore[attr-defined]
    caption = "a red circle moving right on a white background"
    request = video(height=64, width=64, steps=3, guidance_scale=2.0, content=Content(caption, form="mp4"))
    assert [(each.kind, each.seed) for each in made(engine, request)] == [("video", 5)]
    loaded.pipeline.set_progress_bar_config(disable=True)
    theirs = loaded.pipeline(
        caption,
        height=64,
        width=64,
        num_frames=7,  # where a VAE keeps every frame, the pipeline adds one
        num_inference_steps=3,
        guidance_scale=2.0,
        max_sequence_length=16,
        generator=torch.Generator().manual_seed(5),
        output_type="np",
    ).frames[0]
    assert np.array_equal(kept[0][0], (theirs * 255).round().astype(np.uint8)[: request.frames])


def test_the_video_model_is_loaded_for_the_chunks_that_its_configuration_names_and_for_no_others() -> None:
    model = next(model for model in tiny_models(TINY) if model.fps)  # SPEC H5
    pipeline = diffusion_spec(model).pipeline
    assert pipeline is not None
    assert pipeline.chunks == ((4, 0, 4), (8, 4, 4))
    engine = _load_pipeline(pipeline, lambda: 0, lambda *_: None)
    assert isinstance(engine, DiffusionEngine)
    said = Content("a large red circle moves right on a white background", form="mp4")
    how = {"height": 64, "width": 64, "fps": 2, "guidance_scale": 2.0, "hand_on": 4, "frames": 4}
    latents, _film = made(engine, video(**how, content=said))
    later = {**how, "frames": 8, "given_frames": 4, "content": structs.replace(said, given=latents.body)}
    assert [one.kind for one in made(engine, video(**later, seed=6))] == ["latents", "video"]
    odd = diffusion_spec(structs.replace(model, context_frames=3, chunk_frames=4)).pipeline
    assert odd is not None
    with pytest.raises(ConfigError, match="chunks of 4 frames, 0 of them given: hand_on of a chunk is 3"):
        _load_pipeline(odd, lambda: 0, lambda *_: None)
