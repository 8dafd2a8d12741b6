from pathlib import Path

import pytest

from headway.adapters.models import DEFAULT_MODEL, ModelError, list_models, pull, resolve, store
from headway.adapters.models.manifest import sha256_of


@pytest.fixture
def cache(tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, with the tiny file in the place of the wheel's."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "installed_source", lambda: tiny_gguf)
    monkeypatch.setattr(store, "SOURCE_SHA256", sha256_of(tiny_gguf))
    monkeypatch.setattr("headway.adapters.models.wheel.SOURCE_SHA256", sha256_of(tiny_gguf))
    return tmp_path / "cache"


def test_converts_the_default_model_once(cache: Path) -> None:
    steps: list[str] = []
    first = pull(DEFAULT_MODEL, steps.append)
    written = first.weights[0].stat().st_mtime_ns
    assert steps
    steps.clear()
    assert pull(DEFAULT_MODEL, steps.append) == first
    assert (steps, first.weights[0].stat().st_mtime_ns) == ([], written)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "headway-manifest.json"])
def test_rebuilds_a_cache_with_a_damaged_file(cache: Path, name: str) -> None:
    folder = resolve().folder
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    steps: list[str] = []
    pull(DEFAULT_MODEL, steps.append)
    assert steps[0].startswith("rebuilding")
    assert (folder / name).read_bytes() == whole


def test_rebuilds_a_cache_with_a_missing_file(cache: Path) -> None:
    folder = resolve().folder
    (folder / "config.json").unlink()
    assert resolve().config.is_file()


def test_leaves_nothing_but_the_model_behind(cache: Path) -> None:
    folder = resolve().folder
    assert [path.name for path in folder.parent.iterdir()] == [DEFAULT_MODEL]


def test_leaves_no_folder_when_the_source_is_not_the_pinned_one(cache: Path, tiny_gguf: Path) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes() + b"x")
    with pytest.raises(ModelError, match="has sha256"):
        resolve()
    assert list((cache / "models").iterdir()) == []


def test_lists_the_default_model_as_ready_only_after_conversion(cache: Path) -> None:
    assert [model.is_ready for model in list_models()] == [False]
    resolve()
    assert [model.is_ready for model in list_models()] == [True]


def test_takes_a_local_folder_under_its_own_name(cache: Path, tmp_path: Path) -> None:
    folder = resolve().folder.rename(tmp_path / "mine")
    assert resolve(str(folder)).name == "mine"


def test_refuses_a_name_that_is_no_model(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"neither .* nor an existing folder, nor a hub id"):
        resolve("no such model")
