"""Stable Diffusion 3: three text encoders, latents on the grid, guidance by a joined pair.

Follows `StableDiffusion3Pipeline` and `StableDiffusion3Img2ImgPipeline` of diffusers 0.42.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch

from headway.engines.diffusion.families.formulas import (
    apart,
    divisible,
    draw,
    dynamic_shift,
    prepared,
    prompt_tokens,
    shifted_frames,
    shifted_latents,
)
from headway.engines.diffusion.families.protocol import (
    Embedding,
    Frames,
    Image,
    Pipeline,
    Reader,
    Scheduler,
    Size,
    Work,
)

PROMPT_TOKENS: Final = 256
MAX_SHIFT: Final = 1.16  # of this pipeline's `calculate_shift`


class Sd3Family:
    """Stages of a `StableDiffusion3Pipeline`."""

    pair: Literal["apart", "joined"] = "joined"
    pads_prompts = True
    makes_videos = False
    is_guided_by_pairs = True
    guidance_scale = 7.0
    empty_prompt = ""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipe = pipeline
        self._transformer = pipeline.transformer
        self._patch = self._transformer.config.patch_size
        t5 = pipeline.tokenizer_3
        self._prompt_tokens = PROMPT_TOKENS if t5 is None else prompt_tokens(t5, PROMPT_TOKENS)
        clip = Reader("CLIP", pipeline.tokenizer, pipeline.tokenizer_max_length)  # the second one's words are the same
        self.readers = (clip,) if t5 is None else (Reader("T5", t5, self._prompt_tokens), clip)

    def check(self, size: Size) -> str | None:
        return divisible(size, self._pipe.vae_scale_factor * self._patch)

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        embeds, _negative, pooled, _pooled = self._pipe.encode_prompt(
            prompt=list(prompts),
            prompt_2=None,
            prompt_3=None,
            do_classifier_free_guidance=False,
            max_sequence_length=self._prompt_tokens,
        )
        return apart({"prompt": embeds, "pooled": pooled}, len(prompts))

    def tokens(self, size: Size) -> int:
        height, width = self._grid(size)
        return int((height // self._patch) * (width // self._patch))

    def noise(self, size: Size, generator: torch.Generator) -> torch.Tensor:
        channels = self._transformer.config.in_channels
        return draw((1, channels, *self._grid(size)), generator, self._transformer.dtype)

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        return grid

    def unpack(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        return latents

    def set_timesteps(self, scheduler: Scheduler, steps: int, size: Size) -> None:
        shift: dict[str, Any] = {}  # a keyword that only some schedulers take
        if scheduler.config.get("use_dynamic_shifting"):
            shift["mu"] = dynamic_shift(scheduler, self.tokens(size), MAX_SHIFT)
        scheduler.set_timesteps(steps, device=self._transformer.device, **shift)

    def phase(self, timestep: float) -> int:
        return 0

    def forward(self, work: Work) -> torch.Tensor:
        answer: torch.Tensor = self._transformer(
            hidden_states=work.latents,
            timestep=work.timesteps,
            encoder_hidden_states=work.embedding["prompt"],
            pooled_projections=work.embedding["pooled"],
            return_dict=False,
        )[0]
        return answer

    def combine(self, positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
        return negative + scale * (positive - negative)

    def output(self, prediction: torch.Tensor) -> torch.Tensor:
        return prediction

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        return shifted_frames(self._pipe, grid)

    def prepare_picture(self, picture: Image, size: Size) -> torch.Tensor:
        return prepared(self._pipe, picture, size)

    def encode_picture(self, pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
        return shifted_latents(self._pipe, pixels, generators)

    def _grid(self, size: Size) -> tuple[int, int]:
        scale = self._pipe.vae_scale_factor
        return size.height // scale, size.width // scale
