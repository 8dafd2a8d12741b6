"""A random IP-Adapter for the tiny Flux, with its image encoder, as they are published."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers

WIDTH, TOKENS, EMBEDDED = 32, 4, 24  # of the transformer; per picture; of the encoder


def save_adapter(folder: Path, seed: int = 0) -> Path:
    """`folder` with weights in XLabs' names, and `image_encoder` beside them."""
    torch.manual_seed(seed)
    block = "double_blocks.0.processor.ip_adapter_double_stream_"
    weights = {
        "ip_adapter_proj_model.proj.weight": torch.randn(TOKENS * WIDTH, EMBEDDED),
        "ip_adapter_proj_model.proj.bias": torch.randn(TOKENS * WIDTH),
        "ip_adapter_proj_model.norm.weight": torch.randn(WIDTH),
        "ip_adapter_proj_model.norm.bias": torch.randn(WIDTH),
    }
    for name in ("k_proj", "v_proj"):
        weights[f"{block}{name}.weight"] = torch.randn(WIDTH, WIDTH)
        weights[f"{block}{name}.bias"] = torch.randn(WIDTH)
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
