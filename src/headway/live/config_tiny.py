"""The small models that this repository trains (`models/tiny`): served beside the default model when nothing is said of
models and a checkout has them, so that `headway serve` shows text, pictures and videos."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import headway
from headway.live.config_diffusion import DiffusionSettings
from headway.live.config_layers import Sourced
from headway.sched.config import RouteConfig

FOLDER: Final = "models/tiny"
TINY_REASON: Final = f"{FOLDER} is here and nothing was said of models"
FLUX: Final = "tiny-flux"
FLUX_FAST: Final = "tiny-flux-fast"
_SAYS_MODELS: Final = ("model.", "models", "upstreams", "discovery.", "diffusion", "engine.kind")
_INDEX: Final = "model_index.json"
_SIZES: Final = ("64x64", "96x64", "64x96", "128x128", "256x256")  # those that both picture models are trained on


def tiny_folder() -> Path | None:
    """Where they lie; None outside of a checkout that has their weights, or without diffusers."""
    folder = Path(headway.__file__).resolve().parents[2] / FOLDER
    has_weights = any((folder / kind / _INDEX).is_file() for kind in ("image", "image_student", "video"))
    return folder if has_weights and find_spec("diffusers") is not None else None


def is_open(sources: Sequence[Sourced]) -> bool:
    """True when nothing was said of models."""
    return not any(s.origin != "default" and s.key.startswith(_SAYS_MODELS) for s in sources)


def tiny_models(folder: Path) -> tuple[DiffusionSettings, ...]:
    """What lies in that folder, as its README says to call it."""
    known = {
        "image": _flux(FLUX, folder / "image", 12, 2.0),
        "image_student": _flux(FLUX_FAST, folder / "image_student", 4, 1.0),  # its guidance is learned
        "video": _wan(folder),
    }
    return tuple(model for kind, model in known.items() if (folder / kind / _INDEX).is_file())


def tiny_routes(models: Sequence[DiffusionSettings], routes: Mapping[str, RouteConfig]) -> dict[str, RouteConfig]:
    """`routes`, in which the student answers for its teacher where a client allows it and nothing else is said."""
    names = {model.name for model in models}
    if not {FLUX, FLUX_FAST} <= names or FLUX in routes:
        return dict(routes)
    return {**routes, FLUX: RouteConfig(fallbacks=(FLUX_FAST,))}


def _flux(name: str, folder: Path, steps: int, guidance: float) -> DiffusionSettings:
    return DiffusionSettings(
        name=name,
        folder=str(folder),
        size=_SIZES[0],
        sizes=_SIZES,
        steps=steps,
        guidance_scale=guidance,
        masks=True,
        text_tokens=16,
    )


def _wan(folder: Path) -> DiffusionSettings:
    return DiffusionSettings(
        name="tiny-wan",
        folder=str(folder / "video"),
        size="64x64",
        sizes=("64x64",),
        steps=12,
        guidance_scale=2.5,
        edits=False,
        fps=2,
        multiple=16,
        context_frames=4,
        chunk_frames=4,
    )
