"""Latents of the last frames of a chunk, which the next one goes on from: their form, and who can (SPEC H5).

They are normalised, as the transformer takes them, and of one model and size: any process that has loaded the same
weights goes on from them, to the bit.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError

from headway.core.artifacts import BAD_INPUT, Made
from headway.core.errors import ConfigError, RequestError
from headway.core.request import DiffusionRequest
from headway.engines.diffusion.families.protocol import Family, Size, TakesFrames
from headway.engines.diffusion.loading import Loaded
from headway.engines.diffusion.rows import Row, words_of

FORMAT: Final = "headway-latents-1"
_SAID: Final = "said"  # the one key of the metadata: of several, safetensors writes another order every time
Chunk = tuple[int, int, int]  # frames, the first of them given, the last of them handed on
_NO_CHUNKS: Final = "this model makes whole pictures or videos; it goes on from no frames and hands none on"


class _Said(msgspec.Struct, frozen=True):
    """What latents are of."""

    model: str  # hash of what decides pictures
    frames: int
    width: int
    height: int
    format: str = FORMAT

    def __str__(self) -> str:
        return f"{self.frames} frames of {self.width}x{self.height}"


def check_chunk(request: DiffusionRequest, family: Family) -> None:
    """Raise RequestError for a chunk that this family does not make."""
    if not request.given_frames and not request.hand_on and not request.content.given:
        return
    why = request.chunk_fault or _fault(family, (request.frames, request.given_frames, request.hand_on))
    if why is None and request.content.form != "mp4":
        why = f"a chunk is a video, made as mp4, not {request.content.form}"
    if why is not None:
        raise RequestError(why, code=BAD_INPUT)


def check_chunks(family: Family, chunks: Sequence[Chunk]) -> None:
    """Raise ConfigError for chunks that are configured and that this family does not make."""
    for chunk in chunks:
        why = _fault(family, chunk)
        if why is not None:
            frames, given, _hand_on = chunk
            raise ConfigError(
                f"context_frames and chunk_frames ask for chunks of {frames} frames, {given} of them given: {why}"
            )


def _fault(family: Family, chunk: Chunk) -> str | None:
    return family.check_chunk(*chunk) if isinstance(family, TakesFrames) else _NO_CHUNKS


def handed_on(row: Row, loaded: Loaded) -> tuple[Made, ...]:
    """Latents of the last frames of a row that is complete, of each of its videos; none where none were asked for."""
    family, request = loaded.family, row.request
    if not request.hand_on or not isinstance(family, TakesFrames):
        return ()
    count = family.latents_of(request.hand_on, row.size)[2]
    said = _Said(loaded.model_hash.hex(), request.hand_on, row.size.width, row.size.height)
    whole = row.whole(family.unpack(row.latents, row.size))
    return tuple(
        Made("latents", _written(whole[k : k + 1, :, -count:], said), k, row.done, request.seed + k)
        for k in range(len(whole))
    )


def given_to(request: DiffusionRequest, size: Size, loaded: Loaded) -> torch.Tensor | None:
    """The latents that a request goes on from, [1, channels, frames, height, width]; None: it begins by itself.

    Raises RequestError for what is unreadable, or of another model or size.
    """
    family, body = loaded.family, request.content.given
    if not size.given or not isinstance(family, TakesFrames):
        return None
    try:
        said, tensors = msgspec.json.decode(words_of(body).get(_SAID, ""), type=_Said), safetensors.torch.load(body)
    except (ValueError, RecursionError, SafetensorError) as error:
        raise RequestError(f"the latents of the given frames are unreadable: {error}", code=BAD_INPUT) from error
    wanted = _Said(loaded.model_hash.hex(), size.given, size.width, size.height)
    given, shape = tensors.get("latents"), family.latents_of(size.given, size)
    for is_wrong, why in (
        (said.format != FORMAT, f"have format {said.format!r}, this engine reads {FORMAT!r}"),
        (said.model != wanted.model, "were made by other weights, or in another dtype"),
        (said != wanted, f"are of {said}; the request goes on from {wanted}"),
        (given is None or given.shape != shape, f"have not the shape {shape}"),
    ):
        if is_wrong:
            raise RequestError(f"the latents of the given frames {why}", code=BAD_INPUT)
    return None if given is None else given.to(loaded.device)


def _written(latents: torch.Tensor, said: _Said) -> bytes:
    held = latents.detach().to("cpu").contiguous().clone()
    return bytes(safetensors.torch.save({"latents": held}, {_SAID: msgspec.json.encode(said).decode()}))
