"""PixArt-alpha and -sigma: one T5, latents on the grid, a noise-predicting transformer with learned variance.

Follows `PixArtSigmaPipeline` of diffusers 0.42 without its binning of resolutions: a request gets the size it asks for.
"""

from collections.abc import Sequence
from typing import Final, Literal

import torch

from headway.engines.diffusion.families.formulas import apart, divisible, draw, pictures, prompt_tokens
from headway.engines.diffusion.families.protocol import Embedding, Frames, Pipeline, Reader, Scheduler, Size, Work

PROMPT_TOKENS: Final = {"PixArtAlphaPipeline": 120, "PixArtSigmaPipeline": 300}


class PixArtFamily:
    """Stages of a `PixArtSigmaPipeline` or `PixArtAlphaPipeline`."""

    pair: Literal["apart", "joined"] = "joined"
    pads_prompts = True
    makes_videos = False
    is_guided_by_pairs = True
    guidance_scale = 4.5
    empty_prompt = ""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipe = pipeline
        self._transformer, self._vae = pipeline.transformer, pipeline.vae
        self._prompt_tokens = prompt_tokens(pipeline.tokenizer, PROMPT_TOKENS[type(pipeline).__name__])
        self.readers = (Reader("T5", pipeline.tokenizer, self._prompt_tokens, lambda prompt: prompt.lower().strip()),)

    def check(self, size: Size) -> str | None:
        return divisible(size, self._pipe.vae_scale_factor * self._transformer.config.patch_size)

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        embeds, mask, _negative, _mask = self._pipe.encode_prompt(
            list(prompts), do_classifier_free_guidance=False, max_sequence_length=self._prompt_tokens
        )
        return apart({"prompt": embeds, "mask": mask}, len(prompts))

    def tokens(self, size: Size) -> int:
        height, width = self._grid(size)
        return int(height * width // self._transformer.config.patch_size**2)

    def noise(self, size: Size, generator: torch.Generator) -> torch.Tensor:
        channels = self._transformer.config.in_channels
        return draw((1, channels, *self._grid(size)), generator, self._transformer.dtype)

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        return grid

    def unpack(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        return latents

    def set_timesteps(self, scheduler: Scheduler, steps: int, size: Size) -> None:
        scheduler.set_timesteps(steps, device=self._transformer.device)

    def phase(self, timestep: float) -> int:
        return 0

    def forward(self, work: Work) -> torch.Tensor:
        answer: torch.Tensor = self._transformer(
            work.latents,
            encoder_hidden_states=work.embedding["prompt"],
            encoder_attention_mask=work.embedding["mask"],
            timestep=work.timesteps,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            return_dict=False,
        )[0]
        return answer

    def combine(self, positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
        return negative + scale * (positive - negative)

    def output(self, prediction: torch.Tensor) -> torch.Tensor:
        """The first half where the transformer predicts a variance, too."""
        config = self._transformer.config
        return prediction.chunk(2, dim=1)[0] if config.out_channels // 2 == config.in_channels else prediction

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        latents = grid.to(self._vae.dtype) / self._vae.config.scaling_factor
        return pictures(self._pipe, self._vae.decode(latents, return_dict=False)[0])

    def _grid(self, size: Size) -> tuple[int, int]:
        scale = self._pipe.vae_scale_factor
        return size.height // scale, size.width // scale
