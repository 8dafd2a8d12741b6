"""The files that make a model servable, and how a Hugging Face folder presents them."""

import json
from pathlib import Path

import msgspec

from headway.adapters.models.errors import ModelError


class ModelFiles(msgspec.Struct, frozen=True):
    """A model on disk. `name` is what clients see; `weights` are safetensors in the order of the index."""

    name: str
    folder: Path
    config: Path
    tokenizer: Path
    weights: tuple[Path, ...]
    chat_template: str | None


def files_in(folder: Path, name: str) -> ModelFiles:
    """The files of a Hugging Face folder; a missing one is named."""
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise ModelError(f"{folder} has no {needed}; a Hugging Face folder with safetensors weights is expected")
    return ModelFiles(
        name=name,
        folder=folder,
        config=folder / "config.json",
        tokenizer=folder / "tokenizer.json",
        weights=_weights(folder),
        chat_template=_chat_template(folder),
    )


def _weights(folder: Path) -> tuple[Path, ...]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if not index.is_file():
        raise ModelError(f"{folder} has neither {single.name} nor {index.name}; other weight formats are not read")
    shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} of {len(shards)} shards, the first is {missing[0]}")
    return tuple(folder / shard for shard in shards)


def _chat_template(folder: Path) -> str | None:
    if (jinja := folder / "chat_template.jinja").is_file():
        return jinja.read_text(encoding="utf-8")
    if not (config := folder / "tokenizer_config.json").is_file():
        return None
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return None if template is None else str(template)
