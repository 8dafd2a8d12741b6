"""Wan 2.1 and 2.2: text to video; 2.2 has a second transformer for low noise, or one timestep per token.

Follows `WanPipeline` of diffusers 0.42, but for the number of frames: the VAE makes 1 + k * m of them, of latent frames
that fill whole tokens, and where a request asks for others the next larger number is made and cut, so that the duration
is the one asked for.
"""

from collections.abc import Sequence
from typing import Final, Literal

import torch
from diffusers.pipelines.wan.pipeline_wan import prompt_clean

from headway.engines.diffusion.families.formulas import apart, draw, prompt_tokens, statistics
from headway.engines.diffusion.families.protocol import Embedding, Frames, Pipeline, Reader, Scheduler, Size, Work

PROMPT_TOKENS: Final = 512  # of the pipeline's own call


class WanFamily:
    """Stages of a `WanPipeline`."""

    pair: Literal["apart", "joined"] = "apart"
    pads_prompts = True
    makes_videos = True
    is_guided_by_pairs = True
    guidance_scale = 5.0
    empty_prompt = ""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipe, self._vae = pipeline, pipeline.vae
        self._transformers = [pipeline.transformer, pipeline.transformer_2]
        self._first = pipeline.transformer if pipeline.transformer is not None else pipeline.transformer_2
        ratio = pipeline.config.boundary_ratio
        self._boundary = None if ratio is None else ratio * pipeline.scheduler.config.num_train_timesteps
        self._prompt_tokens = prompt_tokens(pipeline.tokenizer, PROMPT_TOKENS)
        self.readers = (Reader("UMT5", pipeline.tokenizer, self._prompt_tokens, prompt_clean),)

    def check(self, size: Size) -> str | None:
        _time, rows, columns = self._first.config.patch_size
        scale = self._pipe.vae_scale_factor_spatial
        if size.height % (scale * rows) or size.width % (scale * columns):
            return (
                f"height must be a multiple of {scale * rows} and width of {scale * columns}, asked are "
                f"{size.width}x{size.height} (width x height)"
            )
        return None

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        embeds, _negative = self._pipe.encode_prompt(
            prompt=list(prompts), do_classifier_free_guidance=False, max_sequence_length=self._prompt_tokens
        )
        return apart({"prompt": embeds.to(self._first.dtype)}, len(prompts))

    def tokens(self, size: Size) -> int:
        time, rows, columns = self._first.config.patch_size
        frames, height, width = self._grid(size)
        return int((frames // time) * (height // rows) * (width // columns))

    def noise(self, size: Size, generator: torch.Generator) -> torch.Tensor:
        return draw((1, self._first.config.in_channels, *self._grid(size)), generator, torch.float32)

    def pack(self, grid: torch.Tensor) -> torch.Tensor:
        return grid

    def unpack(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        return latents

    def set_timesteps(self, scheduler: Scheduler, steps: int, size: Size) -> None:
        scheduler.set_timesteps(steps, device=self._first.device)

    def phase(self, timestep: float) -> int:
        """1: the transformer for low noise (Wan 2.2)."""
        return int(self._boundary is not None and timestep < self._boundary)

    def forward(self, work: Work) -> torch.Tensor:
        transformer = self._transformers[self.phase(float(work.timesteps[0]))]
        timesteps = work.timesteps
        if self._pipe.config.expand_timesteps:
            timesteps = timesteps[:, None].expand(-1, self.tokens(work.size))
        answer: torch.Tensor = transformer(
            hidden_states=work.latents.to(transformer.dtype),
            timestep=timesteps,
            encoder_hidden_states=work.embedding["prompt"],
            attention_kwargs=None,
            return_dict=False,
        )[0]
        return answer

    def combine(self, positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
        return negative + scale * (positive - negative)

    def output(self, prediction: torch.Tensor) -> torch.Tensor:
        return prediction

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        latents = grid.to(self._vae.dtype)
        mean, inverse = statistics(self._vae, latents)
        video = self._vae.decode(latents / inverse + mean, return_dict=False)[0]
        floats = self._pipe.video_processor.postprocess_video(video, output_type="np")
        return (floats * 255).round().astype("uint8")[:, : size.frames]

    def _grid(self, size: Size) -> tuple[int, int, int]:
        scale = self._pipe.vae_scale_factor_spatial
        made = -(-(size.frames - 1) // self._pipe.vae_scale_factor_temporal) + 1
        time = self._first.config.patch_size[0]
        return -(-made // time) * time, size.height // scale, size.width // scale
