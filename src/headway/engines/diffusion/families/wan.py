"""Wan 2.1 and 2.2: text to video; 2.2 has a second transformer for low noise, or one timestep per token.

Follows `WanPipeline` of diffusers 0.42, but for the number of frames: the VAE makes 1 + k * m of them, of latent frames
that fill whole tokens, and where a request asks for others the next larger number is made and cut, so that the duration
is the one asked for.

A chunk goes on from clean latents of the frames before it: they stand before the noisy ones with timestep 0 at each of
their tokens, as Wan 2.2 TI2V does with its first frame, and are decoded with them, since the VAE is causal in time.
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
        frames, height, width = self._grid(size)
        fresh = frames - self._latent_frames(size.given)
        return draw((1, self._first.config.in_channels, fresh, height, width), generator, torch.float32)

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
        latents, timesteps, given = work.latents, work.timesteps, work.given
        if self._pipe.config.expand_timesteps or given is not None:
            timesteps = timesteps[:, None].expand(-1, self.tokens(work.size))
        if given is not None:
            latents = torch.cat([given, latents], 2)
            clean = self.tokens(work.size) * given.shape[2] // latents.shape[2]
            timesteps = torch.cat([torch.zeros_like(timesteps[:, :clean]), timesteps[:, clean:]], 1)
        answer: torch.Tensor = transformer(
            hidden_states=latents.to(transformer.dtype),
            timestep=timesteps,
            encoder_hidden_states=work.embedding["prompt"],
            attention_kwargs=None,
            return_dict=False,
        )[0]
        return answer if given is None else answer[:, :, given.shape[2] :]

    def combine(self, positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
        return negative + scale * (positive - negative)

    def output(self, prediction: torch.Tensor) -> torch.Tensor:
        return prediction

    def decode(self, grid: torch.Tensor, size: Size) -> Frames:
        latents = grid.to(self._vae.dtype)
        mean, inverse = statistics(self._vae, latents)
        video = self._vae.decode(latents / inverse + mean, return_dict=False)[0]
        floats = self._pipe.video_processor.postprocess_video(video, output_type="np")
        return (floats * 255).round().astype("uint8")[:, size.given : size.frames]

    def check_chunk(self, frames: int, given: int, hand_on: int) -> str | None:
        """Whole tokens are given and handed on, and the frames of every latent are shown."""
        for name, count in (("frames", frames), ("given_frames", given), ("hand_on", hand_on)):
            whole = self._decoded(self._latent_frames(count))
            if count != whole:
                time, ratio = self._first.config.patch_size[0], self._pipe.vae_scale_factor_temporal
                return (
                    f"{name} of a chunk is {count}; this model goes on from latents of 1 frame, then {ratio} each, "
                    f"that fill tokens of {time}: the next such number is {whole}"
                )
        return None

    def latents_of(self, frames: int, size: Size) -> tuple[int, ...]:
        """[1, channels, frames, height, width]"""
        _frames, height, width = self._grid(size)
        return 1, self._first.config.in_channels, self._latent_frames(frames), height, width

    def _decoded(self, latents: int) -> int:
        """Frames of so many latent ones."""
        return 1 + (latents - 1) * int(self._pipe.vae_scale_factor_temporal) if latents else 0

    def _latent_frames(self, frames: int) -> int:
        """That hold so many frames in whole tokens."""
        if not frames:
            return 0
        made = -(-(frames - 1) // self._pipe.vae_scale_factor_temporal) + 1
        time: int = self._first.config.patch_size[0]
        whole: int = -(-made // time) * time
        return whole

    def _grid(self, size: Size) -> tuple[int, int, int]:
        scale = self._pipe.vae_scale_factor_spatial
        return self._latent_frames(size.frames), size.height // scale, size.width // scale
