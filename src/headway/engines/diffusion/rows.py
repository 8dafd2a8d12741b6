"""What the engine keeps of one request until it is over, and its form on disk."""

import hashlib
import json
from typing import Any, Final

import msgspec
import safetensors.torch
import torch

from headway.core.request import DiffusionRequest
from headway.engines.diffusion.families.protocol import Embedding, Size
from headway.engines.diffusion.solver import Solver, SolverState

FORMAT: Final = "headway-diffusion-1"


class Edit(msgspec.Struct, frozen=True):
    """What an edit of a part needs at every step; all packed. `mask` is 1 where latents change."""

    clean: torch.Tensor
    noise: torch.Tensor
    mask: torch.Tensor


class Row(msgspec.Struct):
    """One request. `latents`: of all its pictures. `negative`: None where nothing guides by a second pass."""

    seq: int
    request: DiffusionRequest
    size: Size
    latents: torch.Tensor  # of frames that are given: without them
    solver: Solver
    positive: Embedding
    negative: Embedding | None
    guidance_scale: float
    done: int = 0
    edit: Edit | None = None
    given: torch.Tensor | None = None  # clean grid latents of the frames that it goes on from, [1, ...]
    clean: torch.Tensor | None = None  # what the last step took the finished latents for; only where it is shown

    @property
    def is_deterministic(self) -> bool:
        """Computed as the pipeline alone would."""
        return self.request.deterministic

    @property
    def given_latents(self) -> torch.Tensor | None:
        """Of the frames that it goes on from, for each of its videos."""
        given = self.given
        return None if given is None else given.expand(len(self.latents), *given.shape[1:])

    def whole(self, grid: torch.Tensor) -> torch.Tensor:
        """Grid latents of all its videos with those of given frames before them."""
        given = self.given_latents
        return grid if given is None else torch.cat([given, grid], 2)


class _Header(msgspec.Struct, frozen=True):
    words: dict[str, str] = msgspec.field(name="__metadata__")


class BadCheckpoint(Exception):
    """A checkpoint that this engine cannot go on from."""


def fingerprint(request: DiffusionRequest, model: bytes) -> str:
    """Hash of all that decides the latents of a request: what it says, and the weights it says it to."""
    content = request.content
    decisive: tuple[Any, ...] = (  # values of several types, only hashed
        (content.prompt, content.negative_prompt, content.pictures, content.mask, content.given),
        (request.steps, request.height, request.width, request.seed, request.n),
        (request.frames, request.given_frames),
        (request.guidance_scale, request.strength, request.solver),
    )
    if content.image_prompts:
        decisive = (*decisive, (content.image_prompts, request.image_prompt_scale))
    return hashlib.sha256(model + msgspec.msgpack.encode(decisive)).hexdigest()


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint that was read."""

    done: int
    plain: dict[str, Any]  # of the solver
    tensors: dict[str, torch.Tensor]
    guidance_scale: float | None = None  # that its steps were made with; None: it is older, and does not say

    def group(self, prefix: str) -> dict[str, torch.Tensor]:
        """Tensors under one prefix, by the rest of their names."""
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def save(row: Row, model: bytes) -> bytes:
    """Write a row down: latents, the solver's whole state, embeddings, what an edit needs (SPEC F6)."""
    state: SolverState = row.solver.state()
    tensors = {"latents": row.latents}
    tensors.update({f"solver.{name}": tensor for name, tensor in state.tensors.items()})
    tensors.update({f"positive.{name}": tensor for name, tensor in row.positive.items()})
    tensors.update({f"negative.{name}": tensor for name, tensor in (row.negative or {}).items()})
    if row.edit is not None:
        tensors.update({"edit.clean": row.edit.clean, "edit.noise": row.edit.noise, "edit.mask": row.edit.mask})
    words = {
        "format": FORMAT,
        "done": str(row.done),
        "request": fingerprint(row.request, model),
        "solver": json.dumps(state.plain, sort_keys=True),
        "guidance_scale": repr(row.guidance_scale),
    }
    held = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    return bytes(safetensors.torch.save(held, words))


def read(request: DiffusionRequest, model: bytes, device: torch.device) -> Saved:
    """Read a request's checkpoint. Raises BadCheckpoint where it is of another request, model or format."""
    try:
        words = words_of(request.checkpoint)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"unreadable ({error})") from error
    if words.get("format") != FORMAT:
        raise BadCheckpoint(f"format {words.get('format')!r}, this engine reads {FORMAT!r}")
    if words.get("request") != fingerprint(request, model):
        raise BadCheckpoint("it is of another request or of other weights")
    try:
        done, plain = int(words["done"]), dict(json.loads(words["solver"]))
        scale = float(words["guidance_scale"]) if "guidance_scale" in words else None
    except (ValueError, TypeError, RecursionError) as error:
        raise BadCheckpoint(f"unreadable ({error})") from error
    if done != request.begun:
        raise BadCheckpoint(f"it holds {done} steps, the request has begun {request.begun}")
    tensors = safetensors.torch.load(request.checkpoint)
    return Saved(done, plain, {name: tensor.to(device) for name, tensor in tensors.items()}, scale)


def words_of(body: bytes) -> dict[str, str]:
    """The metadata of safetensors bytes: a JSON header behind its length. Raises ValueError, RecursionError."""
    length = int.from_bytes(body[:8], "little")
    return msgspec.json.decode(body[8 : 8 + length], type=_Header).words
