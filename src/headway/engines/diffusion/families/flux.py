"""FLUX.1: two text encoders, 2x2 patches packed into a sequence, guidance embedded (dev) or by true pairs.

Follows `FluxPipeline`, `FluxImg2ImgPipeline` and `FluxInpaintPipeline` of diffusers 0.42.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import torch

from headway.engines.diffusion.families.formulas import (
    apart,
    divisible,
    draw,
    dynamic_shift,
    pooled_mask,
    prepared,
    prompt_tokens,
    shifted_frames,
    shifted_latents,
)
from headway.engines.diffusion.families.protocol import (
    Embedding,
    Frames,
    Image,
    ImageAdapter,
    Pipeline,
    Reader,
    Scheduler,
    Size,
    Work,
)

DISTILLED_GUIDANCE: Final = 3.5  # what the pipeline takes by itself
PROMPT_TOKENS: Final = 512


class FluxFamily:
    """Stages of a `FluxPipeline`."""

    pair: Literal["apart", "joined"] = "apart"
    pads_prompts = True
    makes_videos = False
    empty_prompt = ""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipe = pipeline
        self._transformer = pipeline.transformer
        self.image_adapter: ImageAdapter | None = None
        self.is_guided_by_pairs = not self._transformer.config.guidance_embeds
        self.guidance_scale = 1.0 if self.is_guided_by_pairs else DISTILLED_GUIDANCE
        self._channels = self._transformer.config.in_channels // 4
        self._scale = pipeline.vae_scale_factor
        self._prompt_tokens = prompt_tokens(pipeline.tokenizer_2, PROMPT_TOKENS)
        clip = pipeline.tokenizer
        self.readers = (
            Reader("T5", pipeline.tokenizer_2, self._prompt_tokens),
            Reader("CLIP", clip, clip.model_max_length),
        )
        self._positions = lru_cache(maxsize=64)(self._make_positions)

    def check(self, size: Size) -> str | None:
        return divisible(size, 2 * self._scale)

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        embeds, pooled, _ids = self._pipe.encode_prompt(
            prompt=list(prompts), prompt_2=None, max_sequence_length=self._prompt_tokens
        )
        return apart({"prompt": embeds, "pooled": pooled}, len(prompts))

    def tokens(self, size: Size) -> int:
        height, width = self._grid(size)
        return height * width // 4

    def noise(self, size: Size, generator: torch.Generator) -> torch.Tensor:
        return draw((1, self._channels, *self._grid(size)), generator, self._transformer.dtype)

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        count, channels, height, width = grid.shape
        patches = grid.view(count, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(count, (height // 2) * (width // 2), channels * 4)

    def unpack(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        height, width = self._grid(size)
        count, _tokens, channels = latents.shape
        patches = latents.view(count, height // 2, width // 2, channels // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return patches.reshape(count, channels // 4, height, width)

    def set_timesteps(self, scheduler: Scheduler, steps: int, size: Size) -> None:
        sigmas = None if scheduler.config.get("use_flow_sigmas") else np.linspace(1.0, 1 / steps, steps)
        mu = dynamic_shift(scheduler, self.tokens(size))
        scheduler.set_timesteps(sigmas=sigmas, mu=mu, device=self._transformer.device)

    def phase(self, timestep: float) -> int:
        return 0

    def forward(self, work: Work) -> torch.Tensor:
        embeds, image = work.embedding["prompt"], work.embedding.get("image")
        if self.image_adapter is not None:
            self.image_adapter.attend(work.image_scale)
        image_ids, text_ids = self._positions(work.size, embeds.shape[1])
        answer: torch.Tensor = self._transformer(
            hidden_states=work.latents,
            timestep=work.timesteps.to(work.latents.dtype) / 1000,
            guidance=work.guidance,
            pooled_projections=work.embedding["pooled"],
            encoder_hidden_states=embeds,
            txt_ids=text_ids,
            img_ids=image_ids,
            joint_attention_kwargs={} if image is None else {"ip_adapter_image_embeds": [image]},
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

    def encode_mask(self, mask: Image, size: Size) -> torch.Tensor:
        pooled = pooled_mask(self._pipe, mask, size, self._grid(size))
        return pooled.to(self._transformer.device, self._transformer.dtype).repeat(1, self._channels, 1, 1)

    def _grid(self, size: Size) -> tuple[int, int]:
        unit = 2 * self._scale
        return 2 * (size.height // unit), 2 * (size.width // unit)

    def _make_positions(self, size: Size, text: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of every patch, and zeros for text."""
        height, width = (edge // 2 for edge in self._grid(size))
        ids = torch.zeros(height, width, 3)
        ids[..., 1] += torch.arange(height)[:, None]
        ids[..., 2] += torch.arange(width)[None, :]
        device, dtype = self._transformer.device, self._transformer.dtype
        return ids.reshape(-1, 3).to(device, dtype), torch.zeros(text, 3).to(device, dtype)
