"""The staged engine against unmodified pipelines: the same pixels, bit for bit, alone and in fp32 on the CPU."""

from collections.abc import Callable
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from tests.unit.engines.diffusion.asks import STEPS, asked, made, mask, picture, pixels, video

from headway.core.request import Content
from headway.engines.diffusion.engine import DiffusionEngine
from headway.engines.diffusion.loading import Loaded

Make = Callable[..., DiffusionEngine]
Load = Callable[..., Loaded]
PROMPT, NEGATIVE = "a red circle on a white background", "a blue square"
GUIDED = Content(PROMPT, NEGATIVE)
HOW = {
    "flux": {"negative_prompt": NEGATIVE, "true_cfg_scale": 3.0, "max_sequence_length": 16},
    "flux-distilled": {"guidance_scale": 3.0, "max_sequence_length": 16},
    "sd3": {"negative_prompt": NEGATIVE, "guidance_scale": 3.0, "max_sequence_length": 16},
    "pixart": {
        "negative_prompt": NEGATIVE,
        "guidance_scale": 3.0,
        "max_sequence_length": 16,
        "use_resolution_binning": False,
        "clean_caption": False,
    },
    "qwen": {"negative_prompt": NEGATIVE, "true_cfg_scale": 3.0},
    "wan": {"negative_prompt": NEGATIVE, "guidance_scale": 3.0, "max_sequence_length": 16, "num_frames": 5},
}
HOW["wan2.2"] = HOW["wan-long-tokens"] = HOW["wan"]


def piped(loaded: Loaded, cls: Any = None, seed: int = 5, **how: Any) -> np.ndarray:
    """What the pipeline itself makes: uint8 [frames, height, width, 3]."""
    pipe = loaded.pipeline if cls is None else cls(**loaded.pipeline.components)
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
    generator = torch.Generator().manual_seed(seed)
    given = {"height": 32, "width": 32, "num_inference_steps": STEPS, "generator": generator, **how}
    out = pipe(PROMPT, output_type="np", return_dict=False, **given)[0]
    frames = (out * 255).round().astype("uint8")
    return frames if frames.ndim == 4 else frames[0]


@pytest.mark.parametrize("family", ["flux", "flux-distilled", "sd3", "pixart", "qwen"])
def test_a_picture_is_the_pipelines_own(family: str, engine: Make, loaded: Load) -> None:
    said = Content(PROMPT) if family == "flux-distilled" else GUIDED
    ours = pixels(made(engine(family), asked(content=said))[0].body)
    assert np.array_equal(ours, piped(loaded(family), **HOW[family])[0])


@pytest.mark.parametrize("family", ["wan", "wan2.2"])
def test_a_video_is_the_pipelines_own(family: str, engine: Make, loaded: Load) -> None:
    one = engine(family)
    kept: list[np.ndarray] = []
    decode = one.stages.decode
    one.stages.decode = lambda grid, size: kept.append(decode(grid, size)) or kept[-1]  # type: ignore[method-assign,func-returns-value]
    made(one, video(content=Content(PROMPT, NEGATIVE, form="mp4")))
    assert np.array_equal(kept[0][0], piped(loaded(family), **HOW[family]))


@pytest.mark.parametrize("family", ["flux", "sd3", "pixart", "qwen"])
def test_without_guidance_one_pass_is_made(family: str, engine: Make, loaded: Load) -> None:
    how = {key: value for key, value in HOW[family].items() if key != "negative_prompt"}
    how["true_cfg_scale" if "true_cfg_scale" in how else "guidance_scale"] = 1.0
    ours = made(engine(family), asked(guidance_scale=1.0))[0].body
    assert np.array_equal(pixels(ours), piped(loaded(family), **how)[0])


def test_a_picture_that_is_not_square_is_the_pipelines_own(engine: Make, loaded: Load) -> None:
    ours = pixels(made(engine("flux"), asked(height=48, width=32, content=GUIDED))[0].body)
    assert ours.shape == (48, 32, 3)
    assert np.array_equal(ours, piped(loaded("flux"), height=48, width=32, **HOW["flux"])[0])


@pytest.mark.parametrize(
    ("family", "cls"),
    [
        ("flux", diffusers.FluxImg2ImgPipeline),
        ("sd3", diffusers.StableDiffusion3Img2ImgPipeline),
        ("qwen", diffusers.QwenImageImg2ImgPipeline),
    ],
)
@pytest.mark.parametrize("strength", [1.0, 0.5, 0.3])
def test_an_edit_is_the_pipelines_own(family: str, cls: Any, strength: float, engine: Make, loaded: Load) -> None:
    body = picture()
    said = Content(PROMPT, NEGATIVE, pictures=(body,))
    ours = pixels(made(engine(family), asked(strength=strength, content=said))[0].body)
    image = Image.fromarray(pixels(body))
    theirs = piped(loaded(family), cls, image=image, strength=strength, **HOW[family])[0]
    assert np.array_equal(ours, theirs)


def test_an_edit_of_a_part_is_the_pipelines_own(engine: Make, loaded: Load) -> None:
    body = picture()
    said = Content(PROMPT, NEGATIVE, pictures=(body,), mask=mask())
    ours = pixels(made(engine("flux"), asked(strength=0.75, content=said))[0].body)
    white = np.zeros((32, 32), np.uint8)
    white[:, :16] = 255
    images = {"image": Image.fromarray(pixels(body)), "mask_image": Image.fromarray(white)}
    theirs = piped(loaded("flux"), diffusers.FluxInpaintPipeline, strength=0.75, **images, **HOW["flux"])[0]
    assert np.array_equal(ours, theirs)
