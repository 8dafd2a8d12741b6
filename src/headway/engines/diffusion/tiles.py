"""How a VAE works in tiles for one call: which can, how large tiles are, and that it is afterwards as it was."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headway.core.errors import ConfigError
from headway.engines.diffusion.families.protocol import Pipeline

TILE_UNIT: Final = 4  # latents; tiles of video VAEs overlap by a quarter
TILE_MIN: Final = 8  # latents each way: AutoencoderTiny blends an eighth of a tile, which must be a latent at least
_TINY_CHANNELS: Final = 4


def can_tile(vae: Pipeline) -> bool:
    """Whether a VAE decodes in tiles: all of diffusers' have the method, and some only raise in it."""
    return hasattr(vae, "enable_tiling") and hasattr(vae, "use_tiling")


def can_tile_pictures(vae: Pipeline) -> bool:
    """Whether a VAE encodes in tiles: AutoencoderTiny of diffusers 0.42 does so for 4 channels only."""
    return can_tile(vae) and (type(vae).__name__ != "AutoencoderTiny" or vae.config.latent_channels == _TINY_CHANNELS)


def smaller_edge(edge: float) -> int:
    """Latents each way of tiles of half that edge."""
    return max(TILE_MIN, TILE_UNIT * math.ceil(edge / 2 / TILE_UNIT))


def check_tiles(vae: Pipeline, tile_pixels: int) -> None:
    """Raise ConfigError for tiles that this VAE does not make."""
    if not can_tile(vae):
        kind = type(vae).__name__
        raise ConfigError(f"tile_pixels = {tile_pixels}, but {kind} cannot decode in tiles; leave tile_pixels unset")
    least = TILE_MIN * pixels_per_latent(vae)
    if tile_pixels < least * least:
        raise ConfigError(
            f"tile_pixels = {tile_pixels} is below {least * least}: the smallest tile has {TILE_MIN} latents each way, "
            f"{least} pixels of this VAE"
        )


def pixels_per_latent(vae: Pipeline) -> int:
    """Each way."""
    if hasattr(vae, "spatial_compression_ratio"):
        return int(vae.spatial_compression_ratio)
    return int(2 ** (len(vae.config.block_out_channels) - 1))


def tile_edge(vae: Pipeline, tile_pixels: int) -> int:
    """Latents each way of the largest square tile of at most so many pixels."""
    return max(TILE_MIN, TILE_UNIT * (math.isqrt(tile_pixels) // pixels_per_latent(vae) // TILE_UNIT))


@contextmanager
def tiling(vae: Pipeline, edge: int) -> Iterator[None]:
    """Tiles of so many latents each way for one call; afterwards the VAE is as it was (vllm-omni PR#4877).

    A VAE's own tiles may be larger than the frame, which is then decoded whole whatever was asked for.
    """
    pixels = edge * pixels_per_latent(vae)
    sizes = {
        "tile_latent_min_size": edge,
        "tile_sample_min_size": pixels,
        "tile_sample_min_height": pixels,
        "tile_sample_min_width": pixels,
        "tile_sample_stride_height": pixels * 3 // 4,
        "tile_sample_stride_width": pixels * 3 // 4,
        "spatial_scale_factor": pixels_per_latent(vae),  # AutoencoderTiny of diffusers 0.42 says 8 whatever its depth
    }
    before = {name: value for name, value in vars(vae).items() if name.startswith(("use_", "tile_", "spatial_scale"))}
    vae.enable_tiling()
    for name in sizes.keys() & before.keys():
        setattr(vae, name, sizes[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(vae, name, value)
