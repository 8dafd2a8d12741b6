"""What a folder must be, and what tells one model from another."""

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import diffusers
import pytest
import torch
from tests.unit.engines.diffusion.conftest import FAMILIES

from headway.core.errors import ConfigError
from headway.engines.diffusion.loading import LoadSettings, load, pipeline_class
from headway.engines.diffusion.solver import check_scheduler
from headway.live.pipeline_sizes import own_size

Saved = Callable[..., Path]


def loaded_hashes(folder: Path) -> tuple[bytes, bytes]:
    found = load(LoadSettings(folder, device="cpu"))
    return found.encoder_hash, found.model_hash


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (None, "no diffusers pipeline"),
        ("{", "no diffusers pipeline"),
        ({"_class_name": "KolorsPipeline"}, "served are"),
    ],
)
def test_another_folder_is_refused(index: object, words: str, tmp_path: Path) -> None:
    if index is not None:
        (tmp_path / "model_index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    with pytest.raises(ConfigError, match=words):
        load(LoadSettings(tmp_path))


def test_a_pipeline_without_its_weights_is_refused(saved: Saved, tmp_path: Path) -> None:
    folder = shutil.copytree(saved("flux"), tmp_path / "flux")
    shutil.rmtree(folder / "vae")
    with pytest.raises(ConfigError, match="cannot be loaded as a FluxPipeline"):
        load(LoadSettings(folder))


def test_a_device_that_is_not_there_is_refused(saved: Saved) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ConfigError, match="sees no CUDA"):
        load(LoadSettings(saved("flux"), device="cuda"))


def test_linked_parts_are_hashed_as_what_they_are(saved: Saved, tmp_path: Path) -> None:
    whole = saved("flux")
    folder = tmp_path / "student"
    folder.mkdir()
    for part in whole.iterdir():
        (folder / part.name).symlink_to(part)
    assert loaded_hashes(folder) == loaded_hashes(whole)
    (folder / "text_encoder").unlink()
    shutil.copytree(saved("flux", 1) / "text_encoder", folder / "text_encoder")
    assert not set(loaded_hashes(folder)) & set(loaded_hashes(whole))
    assert loaded_hashes(folder)[0] != loaded_hashes(saved("flux", 1))[0]  # its second encoder is the first's


def test_schedulers_that_cannot_resume_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 times per step"):
        check_scheduler(diffusers.FlowMatchHeunDiscreteScheduler())
    with pytest.raises(ConfigError, match="draws noise"):
        check_scheduler(diffusers.FlowMatchEulerDiscreteScheduler(stochastic_sampling=True))


# SPEC F8
@pytest.mark.parametrize("family", FAMILIES)
def test_the_size_that_is_warm_by_default_is_the_pipelines_own(family: str, saved: Saved) -> None:
    folder = saved(family)
    cls = getattr(diffusers, pipeline_class(folder))
    if family.startswith("wan"):
        call = inspect.signature(cls.__call__).parameters
        assert own_size(folder) == (call["width"].default, call["height"].default)
    else:
        pipe = cls.from_pretrained(folder, local_files_only=True)
        latents = getattr(pipe, "default_sample_size", None) or pipe.transformer.config.sample_size
        assert own_size(folder) == (latents * pipe.vae_scale_factor,) * 2
