"""Tiny random pipelines of every family, saved as diffusers saves them."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
with warnings.catch_warnings():  # what the libraries say at import is theirs
    warnings.simplefilter("ignore")
    diffusers = pytest.importorskip("diffusers")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("av")
    pytest.importorskip("PIL")

from tests.unit.engines.diffusion.fresh import Fresh, forking  # noqa: E402
from tests.unit.engines.diffusion.pipelines import PIPELINES  # noqa: E402

from headway.engines.diffusion.engine import DiffusionEngine, RunSettings  # noqa: E402
from headway.engines.diffusion.loading import Loaded, LoadSettings, load  # noqa: E402

FAMILIES = tuple(PIPELINES)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a family's tiny pipeline, made once per seed."""
    root, made = tmp_path_factory.mktemp("pipelines"), {}

    def folder(family: str, seed: int = 0) -> Path:
        if (family, seed) not in made:
            path = made[family, seed] = root / f"{family}-{seed}"
            torch.manual_seed(seed)
            PIPELINES[family]().save_pretrained(path)
        return made[family, seed]

    return folder


@pytest.fixture(scope="session")
def loaded(saved: Callable[..., Path]) -> Callable[..., Loaded]:
    """The same, loaded by the engine's loader."""
    kept: dict[tuple[str, int], Loaded] = {}

    def one(family: str, seed: int = 0) -> Loaded:
        if (family, seed) not in kept:
            kept[family, seed] = load(LoadSettings(saved(family, seed), device="cpu", threads=1))
        return kept[family, seed]

    return one


@pytest.fixture
def engine(loaded: Callable[..., Loaded]) -> Callable[..., DiffusionEngine]:
    """A fresh engine on a loaded pipeline."""

    def make(family: str, seed: int = 0, **settings: Any) -> DiffusionEngine:
        ticks = iter(range(10**9))
        return DiffusionEngine(loaded(family, seed), RunSettings(**settings), lambda: next(ticks))

    return make


@pytest.fixture(scope="session")
def fresh() -> Iterator[Fresh]:
    """Runs scripts in fresh processes."""
    with forking() as interpreter:
        yield interpreter
