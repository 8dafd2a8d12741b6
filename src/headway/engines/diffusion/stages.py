"""The stages before and after denoising as functions of tensors: prompt to embedding, picture to latents, latents to
frames.

Nothing here knows requests, rows or plans, so that a stage can run where its weights are; `to_bytes` and `from_bytes`
carry tensors there and back.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import safetensors.torch
import torch

from headway.core.errors import ConfigError
from headway.engines.diffusion.families.protocol import Embedding, Family, Frames, Pipeline, Size
from headway.engines.diffusion.memory import is_out_of_memory, release


def to_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors by name, as safetensors."""
    return bytes(safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))


def from_bytes(body: bytes, device: torch.device) -> dict[str, torch.Tensor]:
    """Tensors that `to_bytes` wrote."""
    return {name: tensor.to(device) for name, tensor in safetensors.torch.load(body).items()}


def frames_to(frames: Frames) -> bytes:
    """Finished frames, as numpy writes arrays."""
    out = io.BytesIO()
    np.save(out, frames, allow_pickle=False)
    return out.getvalue()


def frames_from(body: bytes) -> Frames:
    """Frames that `frames_to` wrote."""
    return np.load(io.BytesIO(body), allow_pickle=False)


def embeddings_to(embeddings: Sequence[Embedding]) -> bytes:
    """Embeddings in order, as safetensors."""
    return to_bytes({f"{n}.{name}": tensor for n, each in enumerate(embeddings) for name, tensor in each.items()})


def embeddings_from(body: bytes, device: torch.device) -> list[Embedding]:
    """Embeddings that `embeddings_to` wrote."""
    found: dict[int, dict[str, torch.Tensor]] = {}
    for path, tensor in from_bytes(body, device).items():
        number, _, name = path.partition(".")
        found.setdefault(int(number), {})[name] = tensor
    return [found[n] for n in range(len(found))]


class Stages(Protocol):
    """Where text is encoded and latents are decoded."""

    @property
    def where(self) -> str:
        """For people."""
        ...

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        """Embeddings of prompts, in one call; company may change their last bits."""
        ...

    def decoding(self, grid: torch.Tensor, size: Size) -> Callable[[], Frames]:
        """Begin a decode; the returned call waits for its frames, and raises what went wrong."""
        ...

    def close(self) -> None: ...


class LocalStages:
    """Text encoder and VAE decoder in this process. `tile_pixels`: larger frames are decoded in tiles, and a VAE that
    cannot do that raises ConfigError at once (vllm-omni PR#7774)."""

    def __init__(self, family: Family, vae: Pipeline, tile_pixels: int | None = None) -> None:
        if tile_pixels is not None and vae is not None and not can_tile(vae):
            raise ConfigError(
                f"tile_pixels = {tile_pixels}, but {type(vae).__name__} cannot decode in tiles; leave tile_pixels unset"
            )
        self._family, self._vae, self._tile_pixels = family, vae, tile_pixels
        self.tiled_decodes = 0
        self.where = "all stages in one process"

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        """Embeddings of prompts."""
        return self._family.encode(prompts)

    def decoding(self, grid: torch.Tensor, size: Size) -> Callable[[], Frames]:
        """Nothing runs before the call: a failure is its row's."""
        return lambda: self.decode(grid, size)

    def close(self) -> None:
        """Nothing is held."""

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        """Frames of latents. A decode that runs out of memory is tried again in tiles: its steps are paid
        (FramePack#25)."""
        if self._tile_pixels is not None and size.height * size.width > self._tile_pixels:
            return self._tiled(grid, size)
        try:
            return self._family.decode(grid, size)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or not can_tile(self._vae):
                raise
        release()  # outside of the handler, which holds the failed call's tensors
        return self._tiled(grid, size)

    def _tiled(self, grid: torch.Tensor, size: Size) -> Frames:
        self.tiled_decodes += 1
        with tiling(self._vae):
            return self._family.decode(grid, size)


def can_tile(vae: Pipeline) -> bool:
    """Whether a VAE decodes in tiles: all of diffusers' have the method, and some only raise in it."""
    return hasattr(vae, "enable_tiling") and hasattr(vae, "use_tiling")


@contextmanager
def tiling(vae: Pipeline) -> Iterator[None]:
    """Tiles for one call; afterwards the VAE is as it was (vllm-omni PR#4877)."""
    before = {name: value for name, value in vars(vae).items() if name.startswith(("use_", "tile_"))}
    vae.enable_tiling()
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(vae, name, value)
