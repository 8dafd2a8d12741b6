"""Who is drawn together: the committed tiny model behind the node of a replica, as `headway serve` joins them."""

import os
import warnings
from pathlib import Path

import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
pytest.importorskip("torch")
with warnings.catch_warnings():  # what the libraries say at import is theirs
    warnings.simplefilter("ignore")
    pytest.importorskip("diffusers")

from benchmarks.diffusion_practice import Studio, asked, crowd, decided, foreign, params

from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.loading import LoadSettings, load

IMAGE = Path(__file__).parents[2] / "models" / "tiny" / "image"


@pytest.fixture(scope="module")
def engine() -> DiffusionEngine:
    return DiffusionEngine(load(LoadSettings(IMAGE, device="cpu")), RunSettings(), lambda: 0)


# SPEC F4; seed 003, 10.2: "mix in a request of another resolution and see whether it forms its own batch"
def test_a_foreign_resolution_forms_its_own_batch(engine: DiffusionEngine) -> None:
    batches = foreign(Studio(engine, params("on", 4), clock=lambda: 0), 64, 96, 64, steps=1)
    first, *others = batches
    assert first == ("req-0",)  # nobody else had come
    assert ("req-4",) in others
    assert sorted(len(batch) for batch in others) == [1, 2, 4, 4]
    drawn_together = [batch for batch in batches if len(batch) > 1]
    assert not any("req-4" in batch for batch in drawn_together)


def test_the_evidence_names_the_batches_that_ran(engine: DiffusionEngine) -> None:
    studio = Studio(engine, params("on", 2), clock=lambda: 0)
    _took, ends = crowd(studio, [asked(number, 64, 64, 1) for number in range(5)], 5)
    assert [len(batch) for batch in studio.batches] == [1, 2, 2]
    assert decided(ends) == {studio.batches[1][0]: 2, studio.batches[2][0]: 2}


def test_without_batching_every_picture_is_a_batch(engine: DiffusionEngine) -> None:
    assert [len(batch) for batch in foreign(Studio(engine, params("off", 1)), 64, 64, 96, steps=1, count=6)] == [1] * 6
