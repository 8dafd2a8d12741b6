"""The small models that this repository trains (`models/tiny`): served beside the default model when nothing is said of
models and a checkout has them, so that `headway serve` shows text, pictures and videos."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import headway
from headway.live.config_diffusion import DiffusionSettings
from headway.live.config_layers import Sourced

FOLDER: Final = "models/tiny"
_SAYS_MODELS: Final = ("model.", "models", "upstreams", "discovery.", "diffusion", "engine.kind")
_INDEX: Final = "model_index.json"


def tiny_folder() -> Path | None:
    """Where they lie; None outside of a checkout that has their weights, or without diffusers."""
    folder = Path(headway.__file__).resolve().parents[2] / FOLDER
    has_weights = any((folder / kind / _INDEX).is_file() for kind in ("image", "video"))
    return folder if has_weights and find_spec("diffusers") is not None else None


def is_open(sources: Sequence[Sourced]) -> bool:
    """True when nothing was said of models."""
    return not any(s.origin != "default" and s.key.startswith(_SAYS_MODELS) for s in sources)


def tiny_models(folder: Path) -> tuple[DiffusionSettings, ...]:
    """What lies in that folder, as its README says to call it."""
    found: list[DiffusionSettings] = []
    if (folder / "image" / _INDEX).is_file():
        found.append(
            DiffusionSettings(
                name="tiny-flux",
                folder=str(folder / "image"),
                sizes=("64x64",),  # it is trained on no other yet, and repeats itself on larger ones
                steps=12,
                guidance_scale=2.0,
                masks=True,
                text_tokens=16,
            )
        )
    if (folder / "video" / _INDEX).is_file():
        found.append(
            DiffusionSettings(
                name="tiny-wan",
                folder=str(folder / "video"),
                sizes=("64x64",),
                steps=12,
                guidance_scale=2.0,
                edits=False,
                fps=2,
                multiple=16,
            )
        )
    return tuple(found)
