"""Decoding in tiles where a VAE can, and what is said where it cannot."""

from typing import Any

import diffusers
import pytest
import torch

from headway.core.errors import ConfigError
from headway.engines.diffusion.families.formulas import draw
from headway.engines.diffusion.families.protocol import Size
from headway.engines.diffusion.stages import LocalStages
from headway.engines.diffusion.tiles import can_tile


class OutOfRoom:
    """A family whose decode never fits."""

    def decode(self, grid: torch.Tensor, size: Size) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")


def whole() -> Any:
    """A VAE of diffusers that has the method for tiles, which only raises."""
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    channels = {"down_block_out_channels": (8,), "up_block_out_channels": (8,), "norm_num_groups": 4}
    return diffusers.AsymmetricAutoencoderKL(**blocks, **channels)


def test_tiles_of_a_vae_that_has_none_are_refused_at_the_start() -> None:  # vllm-omni PR#7774
    assert not can_tile(whole())
    with pytest.raises(ConfigError, match=r"tile_pixels = 4096, but AsymmetricAutoencoderKL cannot .* unset"):
        LocalStages(OutOfRoom(), whole(), 4096)  # type: ignore[arg-type]  # what encodes is not asked


def test_a_decode_without_room_and_without_tiles_says_so() -> None:  # vllm-omni#2327
    stages = LocalStages(OutOfRoom(), whole())  # type: ignore[arg-type]  # what encodes is not asked
    with pytest.raises(torch.OutOfMemoryError):
        stages.decode(torch.zeros(1), Size(64, 64, 1))


def test_noise_is_drawn_on_the_cpu_whatever_device_computes() -> None:  # sglang#16612
    shape = (1, 4, 2, 2)
    here = draw(shape, torch.Generator().manual_seed(7), torch.float32)
    with torch.device("meta"):
        there = draw(shape, torch.Generator("cpu").manual_seed(7), torch.float32)
    assert there.device.type == "cpu"
    assert torch.equal(here, there)
