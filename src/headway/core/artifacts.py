"""What a diffusion engine hands back beside times: pictures, videos, previews, checkpoints, and what went wrong."""

from typing import Final, Literal

import msgspec

from headway.core.ids import RequestId
from headway.core.plans import StepTiming
from headway.core.units import Ns

ArtifactKind = Literal["picture", "video", "preview", "checkpoint", "latents"]
BAD_INPUT: Final = "bad_input"  # a picture, mask or parameter that the model cannot use
BAD_CHECKPOINT: Final = "bad_checkpoint"
TOO_LARGE: Final = "result_too_large"  # of a row whose picture or video no message can carry
CARRIED_BYTES_MAX: Final = 60 << 20  # in one message between processes, whose frames end at 64 MiB
Stage = Literal["text_encode", "vae_encode", "denoise", "vae_decode"]


class PromptRead(msgspec.Struct, frozen=True):
    """How a model read the words of a request. `tokens`: of its prompt, that the transformer was given, padding not
    counted. `warnings`: what was cut off, a sentence each; empty: all was read."""

    tokens: int
    warnings: tuple[str, ...] = ()


class Made(msgspec.Struct, frozen=True):
    """One thing made for a request, encoded in the form that it asked for; checkpoints and latents in the engine's own.

    `index`: the picture of n, or the number of the preview from 0 (`DiffusionRequest.preview_steps`). `steps`: done
    when it was made. "latents" are of the last `DiffusionRequest.hand_on` frames, and come before the video.
    """

    kind: ArtifactKind
    body: bytes
    index: int = 0
    steps: int = 0
    seed: int | None = None  # that reproduces this picture alone
    read: PromptRead | None = None  # of a finished one; None: the engine does not tell


class RowMade(msgspec.Struct, frozen=True):
    """What a denoise plan made for one row, in order; `kind` of the last ones says whether it is complete."""

    seq: int
    made: tuple[Made, ...]


class RowFailed(msgspec.Struct, frozen=True):
    """One row failed by its own fault (`bad_input`), for want of room (`out_of_memory`), because its checkpoint is of
    other weights or steps (`bad_checkpoint`: from its beginning it would run), or by the engine's; the others are well.

    The engine has forgotten it; no later plan names it.
    """

    seq: int
    code: str
    message: str


class StageTimes(msgspec.Struct, frozen=True, gc=False):
    """Device time of the stages of one plan. `text_hits`, `image_hits`: prompts whose embeddings were cached, in words
    and as pictures."""

    text_encode_ns: Ns = 0
    vae_encode_ns: Ns = 0
    denoise_ns: Ns = 0
    vae_decode_ns: Ns = 0
    text_hits: int = 0
    save_ns: Ns = 0  # of checkpoints; 0 where some were saved: the engine does not tell
    resume_ns: Ns = 0  # of rows that began from one
    image_hits: int = 0
    image_encode_ns: Ns = 0  # of `text_encode_ns`, that of pictures beside the words


class StagePeaks(msgspec.Struct, frozen=True):
    """What one plan was seen to hold: its rows between steps (latents, solver state, embeddings, what an edit needs),
    then more at the peak of its forward passes, of its decodes, and before its steps while rows begin; what processes
    of stages hold for it included. `latent_bytes`: of the rows', the latents."""

    held_bytes: int
    step_bytes: int
    decode_bytes: int
    begin_bytes: int = 0
    latent_bytes: int = 0


class Denoised(msgspec.Struct, frozen=True):
    """What an engine answers to one denoise plan; the driver stamps it into `DenoiseDone`."""

    timing: StepTiming
    stages: StageTimes | None = None
    made: tuple[RowMade, ...] = ()
    failed: tuple[RowFailed, ...] = ()
    cached_bytes: int = 0  # of prompt embeddings that the engine keeps


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Worker -> front: denoise steps done."""

    request: RequestId
    epoch: int
    done: int
    total: int


class Artifacts(msgspec.Struct, frozen=True, tag=True):
    """Worker -> front: what was made for a request; its last pictures or its video come before Finished."""

    request: RequestId
    epoch: int
    made: tuple[Made, ...]
