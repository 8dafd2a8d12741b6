"""Tables of rotary cosines and sines, with the frequency scalings we know."""

import math

import torch

from headway.engines.llm.config import ModelConfig, RopeScaling


def rope_tables(config: ModelConfig, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, float32, each [length, head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos().contiguous().to(device), angles.sin().contiguous().to(device)


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, the band between interpolated."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    waves = 2 * math.pi / frequencies
    low_wave = scaling.original_max_position / scaling.low_freq_factor
    high_wave = scaling.original_max_position / scaling.high_freq_factor
    spread = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (scaling.original_max_position / waves - scaling.low_freq_factor) / spread
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    stretched = torch.where(waves > low_wave, frequencies / scaling.factor, frequencies)
    return torch.where((waves <= low_wave) & (waves >= high_wave), between, stretched)
