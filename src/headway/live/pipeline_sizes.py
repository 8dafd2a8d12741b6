"""Sizes of pictures as a configuration names them, and the one that a diffusers pipeline makes when its caller names
none: read from its configuration files, neither torch nor diffusers is imported for it."""

import math
import re
from pathlib import Path
from typing import Final

import msgspec

from headway.core.errors import ConfigError

_SIZE: Final = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)")
_SAMPLE: Final = 128  # latents each way that Flux and Qwen-Image take, whatever their transformer says
_WAN: Final = (832, 480)  # the defaults of its pipeline's call


class _Vae(msgspec.Struct, frozen=True):
    block_out_channels: tuple[int, ...] = ()
    temperal_downsample: tuple[bool, ...] = ()  # diffusers spells it so

    @property
    def factor(self) -> int:
        """Pixels of a latent, each way, as the pipelines of diffusers 0.42 compute it."""
        if self.temperal_downsample:
            return int(2 ** len(self.temperal_downsample))
        return int(2 ** (len(self.block_out_channels) - 1)) if self.block_out_channels else 8


class _Transformer(msgspec.Struct, frozen=True):
    sample_size: int


class _Index(msgspec.Struct, frozen=True):
    kind: str = msgspec.field(name="_class_name")


def own_size(folder: Path) -> tuple[int, int]:
    """Width and height. Raises ConfigError where the files do not tell."""
    try:
        kind = msgspec.json.decode((folder / "model_index.json").read_bytes(), type=_Index).kind
        if kind == "WanPipeline":
            return _WAN
        side = _SAMPLE
        if kind not in ("FluxPipeline", "QwenImagePipeline"):
            config = (folder / "transformer" / "config.json").read_bytes()
            side = msgspec.json.decode(config, type=_Transformer).sample_size
        side *= msgspec.json.decode((folder / "vae" / "config.json").read_bytes(), type=_Vae).factor
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{folder} does not tell what size it makes ({error}); name size or sizes") from error
    return side, side


def default_size(folder: Path, pixels_max: int, multiple: int) -> str:
    """WIDTHxHEIGHT: its own size, or where that has more than so many pixels the largest of the same form, with sides
    that are multiples. Raises ConfigError."""
    width, height = own_size(folder)
    if width * height > pixels_max:
        width, height = math.isqrt(pixels_max * width // height), math.isqrt(pixels_max * height // width)
    return f"{width // multiple * multiple}x{height // multiple * multiple}"


def check_size(key: str, size: str, multiple: int, side_min: int, pixels_max: int) -> None:
    """Raise ConfigError for what is no size, or outside of the limits of its model."""
    if _SIZE.fullmatch(size) is None:
        raise ConfigError(f"{key} has {size!r}; write WIDTHxHEIGHT, e.g. 512x768")
    height, width = sides_of(size)
    if width % multiple or height % multiple:
        raise ConfigError(f"{key} has {size}, whose sides are no multiples of multiple = {multiple}")
    if min(width, height) < side_min or width * height > pixels_max:
        raise ConfigError(f"{key} has {size}, outside of side_min = {side_min} and pixels_max = {pixels_max}")


def sides_of(size: str) -> tuple[int, int]:
    """Height and width."""
    width, height = size.split("x")
    return int(height), int(width)
