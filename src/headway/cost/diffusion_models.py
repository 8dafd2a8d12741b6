"""The catalogue of diffusion models: sizes from their published configurations, each entry with source and date.

Products per token are counted from the blocks (d: width). A two-stream block (FLUX, SD3, Qwen-Image, HunyuanVideo)
multiplies each token, of picture or prompt, with 12 d^2 weights (q, k, v, out 4, MLP 8); a one-stream block of FLUX
with 12 d^2; a Wan block with 6 d^2 (self-attention 4, q and out of cross-attention 2) and 2 d f of its MLP. Modulation
(6 d^2 a stream, 3 d^2 in a one-stream block) runs once per picture: it is in the weights, not in the products.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from headway.core.errors import ConfigError

IMAGE_VAE_BYTES: Final = 272e3  # traffic per pixel: seed 003 5's 100 ms for 1024^2 on an H100 (3.35 TB/s at 0.85)
IMAGE_VAE_PEAK: Final = 2048.0  # bytes per pixel: seed 003 5's 2-8 GiB for 1024^2-2048^2
VIDEO_VAE_PEAK: Final = 1440.0  # bytes per pixel and frame: seed 003 5's 100 GiB for 81 frames of 720p


class DiffusionModel(msgspec.Struct, frozen=True, kw_only=True):
    """One denoiser with its text encoders and VAE."""

    name: str
    parameters: float  # of the denoiser that is resident while steps run
    token_parameters: float  # that one token of the sequence is multiplied with
    blocks: int
    hidden: int
    attention_blocks: int  # full attention over the sequence
    patch: int = 16  # pixels per latent token, each way: VAE factor times patch size
    frame_stride: int = 1
    text_tokens: int = 0  # in the sequence
    cross_tokens: int = 0  # prompt tokens that cross-attention looks at
    text_parameters: float  # of the text encoders
    text_length: int  # tokens that they encode
    passes: int = 1  # 2: guided by a second pass
    steps: int  # recommended
    fps: int = 0
    vae_bytes_per_pixel: float = IMAGE_VAE_BYTES
    vae_peak_bytes_per_pixel: float = IMAGE_VAE_PEAK
    experts: int = 1  # denoisers that take turns over the steps; all are resident
    source: str
    date: str  # of the source

    @property
    def weight_bytes(self) -> float:
        """Of the denoiser in bfloat16; what a merge or a cold start moves."""
        return 2 * self.parameters * self.experts

    @property
    def text_bytes(self) -> float:
        """Of the text encoders in bfloat16."""
        return 2 * self.text_parameters

    def flops(self, tokens: int) -> tuple[float, float]:
        """Return FLOPs of products and of attention of one forward pass over `tokens`."""
        cross = 4 * self.blocks * self.cross_tokens * self.hidden
        linear = tokens * (2 * self.token_parameters + cross)
        return linear, 4.0 * self.attention_blocks * self.hidden * tokens * tokens

    def vae_peak_bytes(self, height: int, width: int, frames: int = 1, tiles: int = 1) -> float:
        """Memory that the VAE decode takes at its peak; `tiles` parts are decoded one after the other."""
        return self.vae_peak_bytes_per_pixel * height * width * frames / tiles


_T5_XXL: Final = 4.76e9  # encoder of T5 v1.1 XXL
_CLIP_L: Final = 0.12e9
_CLIP_G: Final = 0.69e9
_FLUX_TOKEN: Final = 57 * 12 * 3072.0**2
_WAN_14B_TOKEN: Final = 40 * (6 * 5120.0**2 + 2 * 5120 * 13824)

_ENTRIES: Final = (
    DiffusionModel(
        name="FLUX.1-dev",
        parameters=11.9e9,
        token_parameters=_FLUX_TOKEN,
        blocks=57,
        hidden=3072,
        attention_blocks=57,
        text_tokens=512,
        text_parameters=_T5_XXL + _CLIP_L,
        text_length=512,
        steps=28,
        source="black-forest-labs/flux src/flux/util.py (19 + 38 blocks, d 3072); 28 steps: seed 003",
        date="2024-08",
    ),
    DiffusionModel(
        name="FLUX.1-schnell",
        parameters=11.9e9,
        token_parameters=_FLUX_TOKEN,
        blocks=57,
        hidden=3072,
        attention_blocks=57,
        text_tokens=256,
        text_parameters=_T5_XXL + _CLIP_L,
        text_length=256,
        steps=4,
        source="black-forest-labs/flux src/flux/util.py; 4 steps and 256 prompt tokens: its model card",
        date="2024-08",
    ),
    DiffusionModel(
        name="SD3.5-large",
        parameters=8.06e9,
        token_parameters=38 * 12 * 2432.0**2,
        blocks=38,
        hidden=2432,
        attention_blocks=38,
        text_tokens=333,
        text_parameters=_T5_XXL + _CLIP_L + _CLIP_G,
        text_length=333,
        passes=2,
        steps=28,
        source="stabilityai/stable-diffusion-3.5-large transformer/config.json (38 blocks, 38 heads of 64), model card",
        date="2024-10",
    ),
    DiffusionModel(
        name="SD3.5-medium",
        parameters=2.47e9,
        # 13 of its 24 blocks attend twice, the second time among picture tokens only (counted for all tokens)
        token_parameters=(24 * 12 + 13 * 4) * 1536.0**2,
        blocks=24,
        hidden=1536,
        attention_blocks=37,
        text_tokens=333,
        text_parameters=_T5_XXL + _CLIP_L + _CLIP_G,
        text_length=333,
        passes=2,
        steps=40,
        source="stabilityai/stable-diffusion-3.5-medium transformer/config.json (24 blocks, d 1536), model card",
        date="2024-10",
    ),
    DiffusionModel(
        name="Qwen-Image",
        parameters=20.4e9,
        token_parameters=60 * 12 * 3072.0**2,
        blocks=60,
        hidden=3072,
        attention_blocks=60,
        text_tokens=64,  # its pipeline passes prompts at their own length
        text_parameters=7.6e9,  # Qwen2.5-VL-7B
        text_length=98,  # a prompt in its template
        passes=2,
        steps=50,
        source="Qwen/Qwen-Image transformer/config.json (60 blocks, 24 heads of 128), model card",
        date="2025-08",
    ),
    DiffusionModel(
        name="Wan2.1-14B",
        parameters=14.3e9,
        token_parameters=_WAN_14B_TOKEN,
        blocks=40,
        hidden=5120,
        attention_blocks=40,
        frame_stride=4,
        cross_tokens=512,
        text_parameters=5.7e9,  # umT5-XXL encoder
        text_length=512,
        passes=2,
        steps=50,
        fps=16,
        vae_peak_bytes_per_pixel=VIDEO_VAE_PEAK,
        source="Wan-Video/Wan2.1 wan/configs/wan_t2v_14B.py (40 blocks, d 5120, f 13824)",
        date="2025-02",
    ),
    DiffusionModel(
        name="Wan2.1-1.3B",
        parameters=1.42e9,
        token_parameters=30 * (6 * 1536.0**2 + 2 * 1536 * 8960),
        blocks=30,
        hidden=1536,
        attention_blocks=30,
        frame_stride=4,
        cross_tokens=512,
        text_parameters=5.7e9,
        text_length=512,
        passes=2,
        steps=50,
        fps=16,
        vae_peak_bytes_per_pixel=VIDEO_VAE_PEAK,
        source="Wan-Video/Wan2.1 wan/configs/wan_t2v_1_3B.py (30 blocks, d 1536, f 8960)",
        date="2025-02",
    ),
    DiffusionModel(
        name="Wan2.2-A14B",
        parameters=14.3e9,
        token_parameters=_WAN_14B_TOKEN,
        blocks=40,
        hidden=5120,
        attention_blocks=40,
        frame_stride=4,
        cross_tokens=512,
        text_parameters=5.7e9,
        text_length=512,
        passes=2,
        steps=40,
        fps=16,
        vae_peak_bytes_per_pixel=VIDEO_VAE_PEAK,
        experts=2,  # one for high noise, one for low
        source="Wan-Video/Wan2.2 wan/configs/wan_t2v_A14B.py (two denoisers of Wan2.1-14B's shape)",
        date="2025-07",
    ),
    DiffusionModel(
        name="Wan2.2-5B",
        parameters=5.0e9,
        token_parameters=30 * (6 * 3072.0**2 + 2 * 3072 * 14336),
        blocks=30,
        hidden=3072,
        attention_blocks=30,
        patch=32,
        frame_stride=4,
        cross_tokens=512,
        text_parameters=5.7e9,
        text_length=512,
        passes=2,
        steps=50,
        fps=24,
        vae_peak_bytes_per_pixel=VIDEO_VAE_PEAK,
        source="Wan-Video/Wan2.2 wan/configs/wan_ti2v_5B.py (30 blocks, d 3072, f 14336; VAE factor 16, patch 2)",
        date="2025-07",
    ),
    DiffusionModel(
        name="HunyuanVideo",
        parameters=12.8e9,
        token_parameters=60 * 12 * 3072.0**2,
        blocks=60,
        hidden=3072,
        attention_blocks=60,
        frame_stride=4,
        text_tokens=256,
        text_parameters=8.0e9 + _CLIP_L,  # an 8B LLaVA
        text_length=256,
        steps=50,
        fps=24,
        vae_peak_bytes_per_pixel=VIDEO_VAE_PEAK,
        source="Tencent/HunyuanVideo hyvideo/modules/models.py (20 + 40 blocks, d 3072)",
        date="2024-12",
    ),
)

DIFFUSION_MODELS: Final[Mapping[str, DiffusionModel]] = {entry.name: entry for entry in _ENTRIES}


def diffusion_model(name: str, more: Mapping[str, DiffusionModel] | None = None) -> DiffusionModel:
    """Return a model by name, `more` (a user's) before the catalogue. Raises ConfigError."""
    found = (more or {}).get(name) or DIFFUSION_MODELS.get(name)
    if found is None:
        known = ", ".join([*(more or {}), *DIFFUSION_MODELS])
        raise ConfigError(f"diffusion model {name!r} is in no catalogue; known are {known}; a user file may add it")
    return found
