"""Loads the IP-Adapter of a model, and hashes what decides the embeddings of pictures and what they lead to."""

import hashlib
from pathlib import Path
from typing import Final

import diffusers
import msgspec
import torch
import transformers

from headway.core.errors import ConfigError
from headway.engines.diffusion.families.flux_adapter import FluxImageAdapter
from headway.engines.diffusion.families.protocol import Family, Pipeline, TakesImagePrompts

_ENCODER: Final = "image_encoder"


class AdapterSettings(msgspec.Struct, frozen=True):
    """`weights`: a .safetensors file, or a folder with one. `image_encoder`: a folder; None: `image_encoder` beside the
    weights, else the pipeline's own."""

    weights: Path
    image_encoder: Path | None = None


def adapter_settings(weights: str | None, image_encoder: str | None) -> AdapterSettings | None:
    """Of paths as a configuration has them; None: no adapter."""
    if weights is None:
        return None
    return AdapterSettings(Path(weights), None if image_encoder is None else Path(image_encoder))


class AdapterHashes(msgspec.Struct, frozen=True):
    """`encoder`: of what decides embeddings of pictures; `all`: of what decides how they are painted too."""

    encoder: bytes
    all: bytes


def load_adapter(
    pipeline: Pipeline, family: Family, settings: AdapterSettings, folder: Path, dtype: torch.dtype
) -> AdapterHashes:
    """Load it into the transformer of the pipeline in `folder`. Raises ConfigError."""
    if not isinstance(family, TakesImagePrompts):
        raise ConfigError(f"{folder} holds a {type(pipeline).__name__}, which takes no ip_adapter; a FluxPipeline does")
    weights = _weights(settings.weights)
    encoder = settings.image_encoder
    if encoder is None and (weights.parent / _ENCODER).is_dir():
        encoder = weights.parent / _ENCODER
    if encoder is None and pipeline.image_encoder is None:
        raise ConfigError(
            f"the ip_adapter {weights} needs an image_encoder (CLIPVisionModelWithProjection): name its folder"
        )
    try:
        family.image_adapter = FluxImageAdapter(pipeline, weights, encoder, dtype)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"the ip_adapter {weights} cannot be loaded: {type(error).__name__}: {error}") from error
    described = f"{diffusers.__version__} {transformers.__version__} {dtype}".encode()
    seen = _hash(described, sorted((encoder or folder / _ENCODER).glob("*")))
    return AdapterHashes(seen, _hash(seen, [weights]))


def _weights(path: Path) -> Path:
    """The one file."""
    if path.is_file():
        return path
    found = sorted(path.glob("*.safetensors"))
    if len(found) != 1:
        raise ConfigError(f"ip_adapter = {path} holds {len(found)} .safetensors files; name the one that is to be used")
    return found[0]


def _hash(before: bytes, files: list[Path]) -> bytes:
    """Of names and contents."""
    whole = hashlib.sha256(before)
    for path in files:
        if path.is_file():
            whole.update(path.name.encode())
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.digest()
