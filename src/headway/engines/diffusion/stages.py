"""The stages before and after denoising as functions of tensors: prompt to embedding, picture to latents, latents to
frames.

Nothing here knows requests, rows or plans, so that a stage can run where its weights are; `to_bytes` and `from_bytes`
carry tensors there and back.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

import numpy as np
import safetensors.torch
import torch

from headway.core.errors import InvariantError
from headway.engines.diffusion.families.protocol import Embedding, Family, Frames, Pipeline, Size, TakesPictures
from headway.engines.diffusion.memory import is_out_of_memory, release
from headway.engines.diffusion.tiles import (
    TILE_MIN,
    can_tile,
    can_tile_pictures,
    check_tiles,
    pixels_per_latent,
    smaller_edge,
    tile_edge,
    tiling,
)


def to_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors by name, as safetensors."""
    return bytes(safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))


def from_bytes(body: bytes, device: torch.device) -> dict[str, torch.Tensor]:
    """Tensors that `to_bytes` wrote."""
    return {name: tensor.to(device) for name, tensor in safetensors.torch.load(body).items()}


def picture_to(pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> bytes:
    """A prepared picture and who draws its latents, which `picture_from` reads."""
    return to_bytes({"pixels": pixels, "states": torch.stack([each.get_state() for each in generators])})


def picture_from(body: bytes, device: torch.device) -> tuple[torch.Tensor, list[torch.Generator]]:
    """What `picture_to` wrote; generators are of the CPU."""
    found = from_bytes(body, device)
    generators = [torch.Generator() for _ in found["states"]]
    _set_states(generators, found["states"])
    return found["pixels"], generators


def latents_to(latents: torch.Tensor, generators: Sequence[torch.Generator]) -> bytes:
    """Clean latents, and who drew them as they are now."""
    return to_bytes({"latents": latents, "states": torch.stack([each.get_state() for each in generators])})


def latents_from(body: bytes, device: torch.device, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Latents that `latents_to` wrote; generators go on from where they were drawn."""
    found = from_bytes(body, device)
    _set_states(generators, found["states"])
    return found["latents"]


def _set_states(generators: Sequence[torch.Generator], states: torch.Tensor) -> None:
    for generator, state in zip(generators, states.cpu(), strict=True):
        generator.set_state(state.clone())


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


class Seen(NamedTuple):
    """Bytes that processes of each stage held at most."""

    text: int = 0
    encode: int = 0
    decode: int = 0


class Stages(Protocol):
    """Where text and pictures are encoded and latents are decoded."""

    @property
    def where(self) -> str:
        """For people."""
        ...

    @property
    def encodes_max(self) -> int:
        """Pictures that are encoded beside each other."""
        ...

    @property
    def decodes_max(self) -> int:
        """Decodes that run beside each other."""
        ...

    def held_bytes(self) -> int:
        """What processes beside this one hold before they work; waits until they have loaded."""
        ...

    def watch(self) -> None:
        """Count what they hold while they work, from now on."""
        ...

    def seen(self) -> Seen:
        """Most since then; they count no more."""
        ...

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        """Embeddings of prompts, in one call; company may change their last bits."""
        ...

    def encoding(self, pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> Callable[[], torch.Tensor]:
        """Begin to encode a prepared picture, [1, 3, height, width]; the returned call waits for its clean grid
        latents, one for each generator, which has drawn for them then, and raises what went wrong."""
        ...

    def decoding(self, grid: torch.Tensor, size: Size) -> Callable[[], Frames]:
        """Begin a decode; the returned call waits for its frames, and raises what went wrong."""
        ...

    def close(self) -> None: ...


class OwnProcess:
    """Nothing runs beside this process."""

    encodes_max = decodes_max = 1

    def held_bytes(self) -> int:
        """No process is beside this one."""
        return 0

    def watch(self) -> None:
        """The engine counts what is here."""

    def seen(self) -> Seen:
        """Nothing."""
        return Seen()


class LocalStages(OwnProcess):
    """Text encoder and VAE in this process. `tile_pixels`: larger frames are decoded in tiles of at most that.

    Raises ConfigError where the VAE cannot do so (vllm-omni PR#7774). `vae` None: another process has it.
    """

    def __init__(self, family: Family, vae: Pipeline, tile_pixels: int | None = None) -> None:
        self._family, self._vae, self._tile_pixels = family, vae, tile_pixels
        self.tiled_decodes = 0
        self.where = "all stages in one process"
        if tile_pixels is not None and vae is not None:
            check_tiles(vae, tile_pixels)

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        """Embeddings of prompts."""
        return self._family.encode(prompts)

    def encoding(self, pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> Callable[[], torch.Tensor]:
        """Nothing runs before the call. Raises InvariantError of a family that takes no pictures."""
        family = self._family
        if not isinstance(family, TakesPictures):
            raise InvariantError(f"{type(family).__name__} was given a picture to encode")
        return lambda: self._encoded(family, pixels, generators)

    def decoding(self, grid: torch.Tensor, size: Size) -> Callable[[], Frames]:
        """Nothing runs before the call: a failure is its row's."""
        return lambda: self.decode(grid, size)

    def close(self) -> None:
        """Nothing is held."""

    def _encoded(
        self, family: TakesPictures, pixels: torch.Tensor, generators: Sequence[torch.Generator]
    ) -> torch.Tensor:
        """Latents of a picture. One that runs out of memory is encoded again in tiles, as a decode is."""
        edge, states = 0, [each.get_state() for each in generators]
        while True:
            try:
                with tiling(self._vae, edge) if edge else nullcontext():
                    return family.encode_picture(pixels, generators)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or edge == TILE_MIN or not can_tile_pictures(self._vae):
                    raise
            release()
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            edge = smaller_edge(edge or max(pixels.shape[-2:]) / pixels_per_latent(self._vae))

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        """Frames of latents. A decode that runs out of memory is tried again one half of its pictures after the other,
        and one picture in tiles of half its edge, then of a quarter, ...: its steps are paid (FramePack#25)."""
        if self._tile_pixels is not None and size.height * size.width > self._tile_pixels:
            return self._tiled(grid, size, tile_edge(self._vae, self._tile_pixels))
        edge = 0
        while True:
            try:
                return self._family.decode(grid, size) if edge == 0 else self._tiled(grid, size, edge)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(grid) == 1 and (edge == TILE_MIN or not can_tile(self._vae)):
                    raise
            release()  # outside of the handler, which holds the failed call's tensors
            if len(grid) > 1:
                return np.concatenate([self.decode(part, size) for part in torch.tensor_split(grid, 2)])
            edge = smaller_edge(edge or max(grid.shape[-2:]))

    def _tiled(self, grid: torch.Tensor, size: Size, edge: int) -> Frames:
        self.tiled_decodes += 1
        with tiling(self._vae, edge):
            return self._family.decode(grid, size)
