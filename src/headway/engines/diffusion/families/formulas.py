"""What several families share. Formulas are those of diffusers 0.42 pipelines, cited where they are used."""

from collections.abc import Sequence
from typing import Final

import torch

from headway.engines.diffusion.families.protocol import Embedding, Frames, Image, Pipeline, Scheduler, Size

SHIFTS: Final = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15}


def dynamic_shift(scheduler: Scheduler, tokens: int, max_shift: float = SHIFTS["max_shift"]) -> float:
    """`mu` of flow matching, linear in the length of the sequence (diffusers `calculate_shift`)."""
    known = {**SHIFTS, "max_shift": max_shift}
    found = {name: scheduler.config.get(name, default) for name, default in known.items()}
    slope = (found["max_shift"] - found["base_shift"]) / (found["max_image_seq_len"] - found["base_image_seq_len"])
    return float(tokens * slope + (found["base_shift"] - slope * found["base_image_seq_len"]))


def apart(tensors: Embedding, count: int) -> list[Embedding]:
    """Embeddings of several prompts one by one, each with memory of its own."""
    if count == 1:
        return [tensors]
    return [{name: tensor[n : n + 1].clone() for name, tensor in tensors.items()} for n in range(count)]


def draw(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Standard normal noise on the CPU, so that a seed means one picture on every device (sglang#16612)."""
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")


def clean_latents(encoded: Pipeline, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """What a VAE encoder answered of one picture, for each generator drawn from its distribution where it has one
    (diffusers `retrieve_latents`)."""
    if hasattr(encoded, "latent_dist"):
        return torch.cat([encoded.latent_dist.sample(generator) for generator in generators])
    return torch.cat([encoded.latents for _ in generators])


def shifted_latents(pipe: Pipeline, pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Latents of a prepared picture, for a VAE with one shift and one scale (Flux, Stable Diffusion 3)."""
    vae = pipe.vae
    latents = clean_latents(vae.encode(pixels.to(vae.device, vae.dtype)), generators)
    scaled: torch.Tensor = (latents - vae.config.shift_factor) * vae.config.scaling_factor
    return scaled


def shifted_frames(pipe: Pipeline, grid: torch.Tensor) -> Frames:
    """The way back."""
    latents = (grid / pipe.vae.config.scaling_factor) + pipe.vae.config.shift_factor
    return pictures(pipe, pipe.vae.decode(latents.to(pipe.vae.dtype), return_dict=False)[0])


def statistics(vae: Pipeline, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and reciprocal deviation of the latents of a video VAE, [1, channels, 1, 1, 1]."""
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape).to(like.device, like.dtype)
    inverse = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(like.device, like.dtype)
    return mean, inverse


def pictures(pipeline: Pipeline, decoded: torch.Tensor) -> Frames:
    """uint8 [pictures, 1, height, width, 3] of a decoded batch, rounded as pillow output is."""
    floats = pipeline.image_processor.postprocess(decoded, output_type="np")
    return (floats * 255).round().astype("uint8")[:, None]


def prepared(pipeline: Pipeline, picture: Image, size: Size) -> torch.Tensor:
    """A picture as the VAE takes it: resized, -1 to 1, [1, 3, height, width]."""
    tensor: torch.Tensor = pipeline.image_processor.preprocess(picture, height=size.height, width=size.width)
    return tensor.to(dtype=torch.float32)


def pooled_mask(pipeline: Pipeline, mask: Image, size: Size, grid: tuple[int, int]) -> torch.Tensor:
    """A mask at the resolution of latents, [1, 1, height, width] (diffusers `prepare_mask_latents`)."""
    processor = type(pipeline.image_processor)(
        vae_scale_factor=pipeline.image_processor.config.vae_scale_factor,
        do_normalize=False,
        do_binarize=True,
        do_convert_grayscale=True,
    )
    tensor = processor.preprocess(mask, height=size.height, width=size.width)
    return torch.nn.functional.interpolate(tensor, size=grid)


def divisible(size: Size, unit: int) -> str | None:
    """Say that a size is not a multiple of the latents' patch."""
    if size.height % unit or size.width % unit:
        return f"height and width must be multiples of {unit}, asked are {size.width}x{size.height} (width x height)"
    return None


def prompt_tokens(tokenizer: Pipeline, usual: int) -> int:
    """Tokens of a prompt: what the pipeline takes by itself, or less where the tokenizer was made for less."""
    return min(usual, int(tokenizer.model_max_length))
