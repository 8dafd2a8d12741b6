"""The Flux-class picture model: its transformer, its latents' layout, its pipeline on disk and its pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderTiny, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn
from transformers import CLIPTextModel, T5EncoderModel

from .captions import TOKENS, new_tokenizer
from .oracle import Pixels
from .text import WIDTH, new_clip, new_t5

HEAD, DOUBLE_BLOCKS, SINGLE_BLOCKS = 32, 2, 4
PATCH = 8  # pixels of a token's side: 4 by the autoencoder, 2 by packing
SHIFT = 4.0  # of the sampler: pictures are decided at high noise, see README
ADALN = ("norm1.linear", "norm1_context.linear", "norm.linear", "norm_out.linear", "proj_out")


def new_transformer(channels: int) -> FluxTransformer2DModel:
    """2.3 million weights; every block begins as the identity, the output as zero."""
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * channels,
        num_layers=DOUBLE_BLOCKS,
        num_single_layers=SINGLE_BLOCKS,
        attention_head_dim=HEAD,
        num_attention_heads=WIDTH // HEAD,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(8, 12, 12),
    )
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear) and (name.endswith(ADALN[:-1]) or name == ADALN[-1]):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)
    return model


@dataclass
class TinyFlux:
    """The four models of the pipeline. The transformer is trained last, the others are finished before and stay."""

    vae: AutoencoderTiny
    clip: CLIPTextModel
    t5: T5EncoderModel
    transformer: FluxTransformer2DModel

    @classmethod
    def new(cls, vae: Path) -> "TinyFlux":
        autoencoder = AutoencoderTiny.from_pretrained(vae).eval()
        return cls(autoencoder, new_clip(), new_t5(), new_transformer(autoencoder.config.latent_channels))

    @classmethod
    def load(cls, folder: Path) -> "TinyFlux":
        pipe = FluxPipeline.from_pretrained(folder)
        return cls(pipe.vae, pipe.text_encoder, pipe.text_encoder_2, pipe.transformer)

    @torch.no_grad()
    def read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the transformer is told: `[captions, TOKENS, WIDTH]` and, pooled, `[captions, WIDTH]`."""
        parts = ids.split(500)
        return torch.cat([self.t5(i)[0] for i in parts]), torch.cat([self.clip(i).pooler_output for i in parts])

    def velocity(self, latents: Tensor, sigma: Tensor, told: tuple[Tensor, Tensor], at: Tensor) -> Tensor:
        """The transformer's answer for packed `latents` `[batch, tokens, 4 * channels]`."""
        return self.transformer(
            hidden_states=latents,
            timestep=sigma,
            encoder_hidden_states=told[0],
            pooled_projections=told[1],
            img_ids=at,
            txt_ids=torch.zeros(TOKENS, 3),
            return_dict=False,
        )[0]

    @torch.inference_mode()
    def latents(self, pictures: Tensor) -> Tensor:
        """Packed latents `[pictures, tokens, 4 * channels]` of pictures in -1..1."""
        shift, scale = self.vae.config.shift_factor, self.vae.config.scaling_factor
        return torch.cat([pack((self.vae.encode(p).latents - shift) * scale) for p in pictures.split(64)])

    def save(self, folder: Path) -> None:
        parts = (self.vae, self.clip, self.t5, self.transformer)
        modes = [p.training for p in parts]
        tokenizer = new_tokenizer()
        FluxPipeline(
            FlowMatchEulerDiscreteScheduler(shift=SHIFT),
            self.vae.eval(),
            self.clip.eval(),
            tokenizer,
            self.t5.eval(),
            tokenizer,
            self.transformer.eval(),
        ).save_pretrained(folder)
        for part, mode in zip(parts, modes, strict=True):
            part.train(mode)


def pack(z: Tensor) -> Tensor:
    """`[batch, c, h, w]` to `[batch, h / 2 * w / 2, 4 c]`, the layout FluxPipeline gives its transformer."""
    b, c, h, w = z.shape
    return z.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, c * 4)


def positions(width: int, height: int) -> Tensor:
    """`[tokens, 3]`: 0, row and column of every token of a picture of `width` x `height` pixels."""
    at = torch.zeros(height // PATCH, width // PATCH, 3)
    at[..., 1] += torch.arange(height // PATCH)[:, None]
    at[..., 2] += torch.arange(width // PATCH)[None]
    return at.reshape(-1, 3)


def sigma_mean(width: int, height: int) -> float:
    """Mean logit of the training noise.

    1.4 at 64 x 64: below a noise of .88 the noisy picture itself tells two shapes apart, so a caption is worth learning
    only above. More pixels of the same scene hide it less, by the root of their number (Esser et al. 2024, eq. 23).
    """
    return 1.4 + 0.5 * math.log(width * height / (64 * 64))


def load_pipeline(folder: Path) -> FluxPipeline:
    pipe = FluxPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@dataclass(frozen=True)
class Sampling:
    width: int = 64
    height: int = 64
    steps: int = 12
    guidance: float = 2.0
    seed: int = 0
    batch: int = 40


def generate(pipe: FluxPipeline, captions: Sequence[str], how: Sampling) -> list[Pixels]:
    """One picture a caption; the i-th is drawn from the noise of `seed + i`, whatever the batch."""
    out: list[Pixels] = []
    for k in range(0, len(captions), how.batch):
        part = list(captions[k : k + how.batch])
        pictures = pipe(
            part,
            negative_prompt=[""] * len(part) if how.guidance > 1 else None,
            true_cfg_scale=how.guidance,
            height=how.height,
            width=how.width,
            num_inference_steps=how.steps,
            max_sequence_length=TOKENS,
            generator=[torch.Generator().manual_seed(how.seed + k + i) for i in range(len(part))],
            guidance_scale=0.0,
            output_type="np",
        ).images
        out += [(p * 255).round().astype("uint8") for p in pictures]
    return out
