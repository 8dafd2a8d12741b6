"""Qwen-Image: a vision-language model as text encoder, packed patches, a video VAE, guidance of equal norm.

Follows `QwenImagePipeline` and `QwenImageImg2ImgPipeline` of diffusers 0.42. Prompts differ in length;
a batch pads them.
"""

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import torch

from headway.engines.diffusion.families.formulas import (
    clean_latents,
    divisible,
    draw,
    dynamic_shift,
    prepared,
    statistics,
)
from headway.engines.diffusion.families.formulas import pictures as finished
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

PROMPT_TOKENS: Final = 512  # of the pipeline's own call
DISTILLED_GUIDANCE: Final = 1.0


class QwenImageFamily:
    """Stages of a `QwenImagePipeline`."""

    pair: Literal["apart", "joined"] = "apart"
    pads_prompts = False  # each has its own length, so that those of a guided step seldom share a pass
    makes_videos = False
    empty_prompt = " "  # the model card's

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipe = pipeline
        begun = pipeline.prompt_template_encode_start_idx
        self.readers = (
            Reader("Qwen2.5-VL", pipeline.tokenizer, PROMPT_TOKENS, pipeline.prompt_template_encode.format, begun),
        )
        self._transformer, self._vae = pipeline.transformer, pipeline.vae
        self._channels = self._transformer.config.in_channels // 4
        self.is_guided_by_pairs = not self._transformer.config.guidance_embeds
        self.guidance_scale = 4.0 if self.is_guided_by_pairs else DISTILLED_GUIDANCE

    def check(self, size: Size) -> str | None:
        return divisible(size, 2 * self._pipe.vae_scale_factor)

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        return [self._encode(prompt) for prompt in prompts]  # they differ in length

    def _encode(self, prompt: str) -> Embedding:
        embeds, mask = self._pipe.encode_prompt(prompt=prompt, max_sequence_length=PROMPT_TOKENS)
        return {"prompt": embeds} if mask is None else {"prompt": embeds, "mask": mask}

    def tokens(self, size: Size) -> int:
        height, width = self._grid(size)
        return height * width // 4

    def noise(self, size: Size, generator: torch.Generator) -> torch.Tensor:
        return draw((1, self._channels, 1, *self._grid(size)), generator, self._transformer.dtype)

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        count, channels, _frames, height, width = grid.shape
        patches = grid.view(count, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(count, (height // 2) * (width // 2), channels * 4)

    def unpack(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        height, width = self._grid(size)
        count, _tokens, channels = latents.shape
        patches = latents.view(count, height // 2, width // 2, channels // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return patches.reshape(count, channels // 4, 1, height, width)

    def set_timesteps(self, scheduler: Scheduler, steps: int, size: Size) -> None:
        mu = dynamic_shift(scheduler, self.tokens(size))
        sigmas = np.linspace(1.0, 1 / steps, steps)
        scheduler.set_timesteps(sigmas=sigmas, mu=mu, device=self._transformer.device)

    def phase(self, timestep: float) -> int:
        return 0

    def forward(self, work: Work) -> torch.Tensor:
        height, width = self._grid(work.size)
        answer: torch.Tensor = self._transformer(
            hidden_states=work.latents,
            timestep=work.timesteps.to(work.latents.dtype) / 1000,
            guidance=work.guidance,
            encoder_hidden_states_mask=work.embedding.get("mask"),
            encoder_hidden_states=work.embedding["prompt"],
            img_shapes=[[(1, height // 2, width // 2)]] * len(work.latents),
            attention_kwargs={},
            return_dict=False,
        )[0]
        return answer

    def combine(self, positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
        """Guided, and as long as the prediction with the prompt is."""
        together = negative + scale * (positive - negative)
        norm = torch.norm(positive, dim=-1, keepdim=True) / torch.norm(together, dim=-1, keepdim=True)
        scaled: torch.Tensor = together * norm
        return scaled

    def output(self, prediction: torch.Tensor) -> torch.Tensor:
        return prediction

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        latents = grid.to(self._vae.dtype)
        mean, inverse = statistics(self._vae, latents)
        decoded = self._vae.decode(latents / inverse + mean, return_dict=False)[0][:, :, 0]
        return finished(self._pipe, decoded)

    def prepare_picture(self, picture: Image, size: Size) -> torch.Tensor:
        return prepared(self._pipe, picture, size)

    def encode_picture(self, pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
        video = pixels.to(self._vae.device, self._vae.dtype).unsqueeze(2)
        latents = clean_latents(self._vae.encode(video), generators)
        mean, inverse = statistics(self._vae, latents)
        scaled: torch.Tensor = (latents - mean) * inverse
        return scaled

    def _grid(self, size: Size) -> tuple[int, int]:
        unit = 2 * self._pipe.vae_scale_factor
        return 2 * (size.height // unit), 2 * (size.width // unit)
