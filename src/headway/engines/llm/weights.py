"""Reads safetensors by their Hugging Face names and checks that none is missing or of another shape."""

import json
from pathlib import Path

import torch

from headway.core.errors import ConfigError
from headway.engines.llm.config import ModelConfig


class Checkpoint:
    """Tensors of a model folder, read when asked for (the files are mapped, not loaded)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _files_by_name(folder)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        from safetensors import safe_open

        if name not in self._files:
            raise ConfigError(f"{self._folder} has no tensor {name}, which its config.json calls for")
        with safe_open(self._files[name], framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
        if tuple(found.shape) != shape:
            raise ConfigError(f"{self._folder}: {name} has shape {tuple(found.shape)}, its config.json says {shape}")
        return found


def fused(checkpoint: Checkpoint, names: list[str], rows: list[int], columns: int | None) -> torch.Tensor:
    """Matrices (or biases, `columns` None) of the same input, stacked along their outputs."""
    tail = () if columns is None else (columns,)
    return torch.cat([checkpoint.tensor(name, count, *tail) for name, count in zip(names, rows, strict=True)])


def head_name(config: ModelConfig) -> str:
    return "model.embed_tokens.weight" if config.tied_head else "lm_head.weight"


def _files_by_name(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        with single.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return {name: single for name in header if name != "__metadata__"}
    if not index.is_file():
        raise ConfigError(f"{folder} has neither {single.name} nor {index.name}")
    weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return {name: folder / str(file) for name, file in weight_map.items()}
