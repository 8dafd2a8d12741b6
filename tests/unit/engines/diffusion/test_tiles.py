"""Decodes in tiles: asked for per request and used, the VAE as it was afterwards, and what is done without room."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.unit.engines.diffusion.asks import asked, made, picture, pixels, video

from headway.core.errors import ConfigError
from headway.engines.diffusion.engine import DiffusionEngine
from headway.engines.diffusion.families.protocol import Size, TakesPictures
from headway.engines.diffusion.loading import Loaded
from headway.engines.diffusion.pictures import open_picture
from headway.engines.diffusion.stages import LocalStages
from headway.engines.diffusion.tiles import can_tile_pictures, pixels_per_latent, tile_edge, tiling

Make = Callable[..., DiffusionEngine]
Load = Callable[..., Loaded]
FLAGS = ("use_", "tile_", "spatial_scale")
VAE = Path(__file__).parents[4] / "models" / "tiny" / "image" / "vae"


def flags(vae: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(vae).items() if name.startswith(FLAGS)}


def watched(monkeypatch: pytest.MonkeyPatch, engine: DiffusionEngine, latents_max: int | None = None) -> list[int]:
    """Longest edge, in latents, of everything that the VAE's decoder is given; larger ones have no room."""
    seen: list[int] = []
    decoder = engine._loaded.pipeline.vae.decoder
    forward = decoder.forward

    def short(grid: torch.Tensor, *args: Any, **named: Any) -> Any:
        seen.append(max(grid.shape[-2:]))
        if latents_max is not None and seen[-1] > latents_max:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(grid, *args, **named)

    monkeypatch.setattr(decoder, "forward", short)
    return seen


def test_tiles_of_one_request_are_not_left_on(engine: Make) -> None:  # vllm-omni PR#4877
    one = engine("flux", tile_pixels=40 * 40)
    before = flags(one._loaded.pipeline.vae)
    made(one, asked(height=64, width=64))
    assert one.stages.tiled_decodes == 1  # type: ignore[attr-defined]  # stages of one process
    assert flags(one._loaded.pipeline.vae) == before
    made(one, asked())
    assert one.stages.tiled_decodes == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["flux", "sd3", "pixart", "qwen", "wan"])
def test_tiles_that_are_asked_for_are_used(
    family: str, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:  # vllm-omni PR#7774: every VAE's own tiles are larger than these frames
    one = engine(family, tile_pixels=64 * 64)
    seen = watched(monkeypatch, one)
    size = {"height": 96, "width": 96}
    before = flags(one._loaded.pipeline.vae)
    made(one, video(**size) if family == "wan" else asked(**size))
    scale = 64 // tile_edge(one._loaded.pipeline.vae, 64 * 64)
    assert max(seen) == 64 // scale < 96 // scale
    assert flags(one._loaded.pipeline.vae) == before


def test_a_decode_without_room_is_done_again_in_smaller_and_smaller_tiles(
    engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:  # FramePack#25
    one = engine("flux")
    before = flags(one._loaded.pipeline.vae)
    whole, other = (
        pixels(made(engine("flux"), asked(height=64, width=64, seed=seed))[0].body).astype(int) for seed in (5, 6)
    )
    seen = watched(monkeypatch, one, latents_max=8)
    tiled = pixels(made(one, asked(height=64, width=64))[0].body).astype(int)
    assert seen[:2] == [32, 16]
    assert set(seen[2:]) <= set(range(1, 9))
    assert np.abs(tiled - whole).mean() < np.abs(tiled - other).mean() / 2  # this VAE normalises over each tile
    assert flags(one._loaded.pipeline.vae) == before


# SPEC G1
@pytest.mark.parametrize("family", ["flux", "sd3", "qwen"])
def test_a_picture_without_room_is_encoded_again_in_smaller_and_smaller_tiles(
    family: str, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(family)
    vae, stages = one._loaded.pipeline.vae, one.stages
    scale, before = pixels_per_latent(vae), flags(vae)
    encoder, seen, room = vae.encoder, list[int](), [10**6]
    forward = encoder.forward

    def short(tile: torch.Tensor, *args: Any, **named: Any) -> Any:
        seen.append(max(tile.shape[-2:]))
        if seen[-1] > room[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(tile, *args, **named)

    monkeypatch.setattr(encoder, "forward", short)
    generator = torch.Generator()

    def encoded(number: int) -> torch.Tensor:
        family_ = one._family
        assert isinstance(family_, TakesPictures)
        pixels = family_.prepare_picture(open_picture(picture(32 * scale, number)), Size(32 * scale, 32 * scale))
        with torch.inference_mode():
            return stages.encoding(pixels, [generator.manual_seed(1)])()

    whole, other = encoded(0), encoded(1)
    drawn = generator.get_state()
    seen.clear()
    room[0] = 8 * scale
    tiled = encoded(0)
    assert seen[:2] == [32 * scale, 16 * scale]
    assert set(seen[2:]) <= set(range(1, room[0] + 1))
    assert tiled.shape == whole.shape
    assert torch.equal(generator.get_state(), drawn)  # what failed has drawn nothing
    assert (tiled - whole).abs().mean() < (other - whole).abs().mean()
    assert flags(vae) == before
    room[0] = 0
    with pytest.raises(torch.OutOfMemoryError):
        encoded(0)


def test_a_vae_that_cannot_encode_in_tiles_is_known() -> None:
    four, sixteen = (diffusers.AutoencoderTiny(latent_channels=channels) for channels in (4, 16))
    assert (can_tile_pictures(four), can_tile_pictures(sixteen)) == (True, False)


def test_where_no_tile_has_room_the_row_fails_and_the_next_is_made(
    engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:  # vllm-omni#2327
    one = engine("flux")
    with monkeypatch.context() as short:
        watched(short, one, latents_max=0)
        with pytest.raises(AssertionError, match="out_of_memory"):
            made(one, asked())
    assert one.held == 0
    assert made(one, asked())[0].kind == "picture"


def test_a_picture_in_tiles_is_the_picture() -> None:
    """Of the trained VAE: random ones normalise over what they are given, and a tile is not the whole."""
    vae = diffusers.AutoencoderTiny.from_pretrained(VAE, local_files_only=True).eval()
    ramp = torch.linspace(-1, 1, 128)
    picture = torch.stack([ramp.expand(128, 128), ramp.expand(128, 128).T, torch.zeros(128, 128)])[None]
    with torch.inference_mode():
        grid = vae.encode(picture).latents
        whole = vae.decode(grid).sample
        with tiling(vae, 16):
            tiled = vae.decode(grid).sample
    assert tiled.shape == whole.shape
    assert not torch.equal(tiled, whole)
    lost = (whole - picture).abs().mean()  # by the VAE itself: it was trained on other pictures
    assert (tiled - whole).abs().mean() < lost / 10
    assert (tiled - picture).abs().mean() < 1.1 * lost


def test_what_cannot_be_tiled_is_refused_at_start(loaded: Load) -> None:  # vllm-omni PR#7774
    family = loaded("flux").family
    with pytest.raises(ConfigError, match="SimpleNamespace cannot decode in tiles"):
        LocalStages(family, SimpleNamespace(), 1 << 20)
    with pytest.raises(ConfigError, match="tile_pixels = 255 is below 256"):
        LocalStages(family, loaded("flux").pipeline.vae, 255)
