"""A random IP-Adapter for a small Flux, with its image encoder, as they are published."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers

TOKENS, EMBEDDED = 4, 24  # per picture; of the encoder


def save_adapter(folder: Path, seed: int = 0, width: int = 32, blocks: int = 1) -> Path:
    """`folder` with weights in XLabs' names for a transformer of that width, and `image_encoder` beside them."""
    torch.manual_seed(seed)
    weights = {
        "ip_adapter_proj_model.proj.weight": torch.randn(TOKENS * width, EMBEDDED),
        "ip_adapter_proj_model.proj.bias": torch.randn(TOKENS * width),
        "ip_adapter_proj_model.norm.weight": torch.randn(width),
        "ip_adapter_proj_model.norm.bias": torch.randn(width),
    }
    for number in range(blocks):
        for name in ("k_proj", "v_proj"):
            stem = f"double_blocks.{number}.processor.ip_adapter_double_stream_{name}"
            weights[f"{stem}.weight"] = torch.randn(width, width)
            weights[f"{stem}.bias"] = torch.randn(width)
    folder.mkdir(parents=True)
    safetensors.torch.save_file(weights, folder / "ip_adapter.safetensors")
    encoder().save_pretrained(folder / "image_encoder")
    return folder


def encoder() -> Any:
    config = transformers.CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=32,
        projection_dim=EMBEDDED,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=30,
        patch_size=10,
    )
    return transformers.CLIPVisionModelWithProjection(config).eval()
