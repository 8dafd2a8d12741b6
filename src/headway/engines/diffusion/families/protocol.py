"""What a family of pipelines must tell the engine: its stages as functions of tensors.

Shapes: `latents` are [pictures, ...] in the form that the transformer takes ("packed"); `grid` latents are
[pictures, channels, height, width], with frames before height in a video family. Every function computes what the
family's own `__call__` computes at that place, to the bit where nothing is joined.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import torch

Pipeline = Any  # diffusers and transformers carry no types
Scheduler = Any  # the same
Image = Any  # of pillow: what an image processor takes
Frames = Any  # numpy.ndarray; numpy comes with diffusers and is no dependency of ours
Embedding = Mapping[str, torch.Tensor]  # of one prompt: every tensor is [1, ...]


class Size(msgspec.Struct, frozen=True):
    """Of the answer, in pixels and frames. `given`: the first of `frames`, of which there are latents: not shown."""

    height: int
    width: int
    frames: int = 1
    given: int = 0


class Work(msgspec.Struct, frozen=True):
    """One forward pass. `timesteps` [pictures], as the scheduler counts them; `guidance` is the embedded one.
    `image_scale`: how much image prompts count; None: the embedding holds none. `given`: clean grid latents of the
    frames that are given, [pictures, ...]; `latents` are of those after them."""

    latents: torch.Tensor
    timesteps: torch.Tensor
    embedding: Embedding
    size: Size
    guidance: torch.Tensor | None = None
    image_scale: float | None = None
    given: torch.Tensor | None = None


class Reader(msgspec.Struct, frozen=True, eq=False):
    """A text encoder's tokenizer. `most`: tokens that the encoder is given; `worded` makes its text of a prompt;
    `dropped`: leading tokens of that text which are not passed on."""

    name: str  # of the encoder, for people
    tokenizer: Pipeline
    most: int
    worded: Callable[[str], str] = str
    dropped: int = 0


class Family(Protocol):
    """The stages of one loaded pipeline."""

    @property
    def readers(self) -> Sequence[Reader]:
        """Who reads a prompt; the first one's tokens are the text in the transformer's sequence."""
        ...

    @property
    def pair(self) -> Literal["apart", "joined"]:
        """How the pipeline itself runs the two passes of classifier-free guidance: one after the other, or as one
        batch, the negative half first."""
        ...

    @property
    def pads_prompts(self) -> bool:
        """Embeddings of all prompts have one length."""
        ...

    @property
    def makes_videos(self) -> bool: ...

    @property
    def is_guided_by_pairs(self) -> bool:
        """False where the transformer takes the guidance scale as an input and makes one pass."""
        ...

    @property
    def guidance_scale(self) -> float:
        """Of a request that names none."""
        ...

    @property
    def empty_prompt(self) -> str:
        """The negative prompt of a guided request that has none."""
        ...

    def check(self, size: Size) -> str | None:
        """Say why this size cannot be made; None: it can."""
        ...

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        """One embedding per prompt. Company changes the last bits of each, where prompts are padded alike."""
        ...

    def tokens(self, size: Size) -> int:
        """Length of the transformer's sequence for one picture, without text."""
        ...

    def noise(self, size: Size, generator: torch.Generator) -> torch.Tensor:
        """The noise of one picture, on the grid, drawn on the CPU; of frames that are given there is none."""
        ...

    def pack(self, grid: torch.Tensor) -> torch.Tensor: ...

    def unpack(self, latents: torch.Tensor, size: Size) -> torch.Tensor: ...

    def set_timesteps(self, scheduler: Scheduler, steps: int, size: Size) -> None: ...

    def phase(self, timestep: float) -> int:
        """Rows of one forward pass are in one phase: which of several transformers is at work."""
        ...

    def forward(self, work: Work) -> torch.Tensor:
        """What the transformer says of packed latents."""
        ...

    def combine(self, positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor: ...

    def output(self, prediction: torch.Tensor) -> torch.Tensor:
        """The part of the prediction that the solver is given."""
        ...

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        """Frames of finished latents, uint8 [pictures, frames, height, width, 3]. Latents of given frames come first,
        and their frames are left out."""
        ...


@runtime_checkable
class TakesPictures(Protocol):
    """A family that edits a picture."""

    def prepare_picture(self, picture: Image, size: Size) -> torch.Tensor:
        """A picture as the VAE takes it, [1, 3, height, width] from -1 to 1."""
        ...

    def encode_picture(self, pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
        """The clean latents of a prepared picture, on the grid, once for each generator, which has drawn for them what
        the pipeline draws."""
        ...


@runtime_checkable
class TakesMasks(Protocol):
    """A family that edits a part of a picture."""

    def encode_mask(self, mask: Image, size: Size) -> torch.Tensor:
        """1 where latents are to change, on the grid."""
        ...


class ImageAdapter(Protocol):
    """What lets a transformer attend to pictures beside the words."""

    def encode(self, image: Image) -> torch.Tensor:
        """The embedding of one picture, [1, 1, width]. Alone in its pass: company would change its last bits."""
        ...

    def attend(self, scale: float | None) -> None:
        """Forward passes from now on weigh image prompts so; None: they have none."""
        ...


@runtime_checkable
class TakesImagePrompts(Protocol):
    """A family whose transformer an adapter can be loaded into."""

    image_adapter: ImageAdapter | None


@runtime_checkable
class TakesFrames(Protocol):
    """A family whose videos go on from the latents of frames before, chunk by chunk (SPEC H5)."""

    def check_chunk(self, frames: int, given: int, hand_on: int) -> str | None:
        """Say why a chunk of `frames`, the first `given` of them, cannot hand on its last ones; None: it can."""
        ...

    def latents_of(self, frames: int, size: Size) -> tuple[int, ...]:
        """Shape of the grid latents of so many frames of one video."""
        ...
