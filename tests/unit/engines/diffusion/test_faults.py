"""An error of any kind at any place of one row: that row fails, precisely, and nobody else."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL.Image import DecompressionBombError
from safetensors import SafetensorError
from tests.unit.engines.diffusion.asks import STEPS, asked, pixels

from headway.core.artifacts import Denoised
from headway.core.errors import EngineError, InvariantError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest
from headway.engines.diffusion import engine as engine_module
from headway.engines.diffusion.embeddings import embedding_bytes
from headway.engines.diffusion.engine import DiffusionEngine
from headway.engines.diffusion.solver import Solver

Make = Callable[..., DiffusionEngine]
PROMPTS = ("a red circle", "a blue square on white", "the background")
KINDS = [
    AssertionError,
    AttributeError,
    DecompressionBombError,
    EngineError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    SafetensorError,
    StopIteration,
    TypeError,
    ValueError,
    ZeroDivisionError,
]
SEEDS = [11, 12, 13]
ASKED: list[DiffusionRequest] = [
    asked(seed=seed, deterministic=False, content=Content(prompt)) for seed, prompt in zip(SEEDS, PROMPTS, strict=True)
]


class Broken:
    """Something that raises for one row, found by sequence, seed, prompt or latents."""

    def __init__(self, engine: DiffusionEngine, seq: int, error: Exception) -> None:
        self.engine, self.seq, self.error = engine, seq, error
        self.gone: dict[int, Any] = {}  # rows that the engine has let go of before their decode

    def encode(self, prompts: Any) -> bool:
        return PROMPTS[self.seq] in prompts

    def noise(self, size: Any, generator: torch.Generator) -> bool:
        return generator.initial_seed() == SEEDS[self.seq]

    def predict(self, rows: Any, most: Any = None) -> bool:
        return self.of_row(*rows)

    def of_row(self, *things: Any) -> bool:
        return any(getattr(thing, "seq", None) == self.seq for thing in things)

    def of_solver(self, solver: Solver, *_: Any) -> bool:
        row = self.engine._rows.get(self.seq)
        return row is not None and row.solver is solver

    def of_step(self, solver: Solver, prediction: torch.Tensor, latents: torch.Tensor, step: int) -> bool:
        row = self.engine._rows.get(self.seq)
        return row is not None and (row.solver is solver or len(latents) > 1)  # together, by the solver of one of them

    def unpack(self, latents: torch.Tensor, size: Any) -> bool:
        row = self.engine._rows.get(self.seq)
        return row is not None and row.latents is latents

    def decoding(self, grid: torch.Tensor, size: Any) -> bool:
        row = (self.gone | self.engine._rows).get(self.seq)
        if row is None or row.done != STEPS:
            return False
        mark = self.engine._family.unpack(row.latents, row.size)
        return any(torch.equal(each, mark[0]) for each in grid)


PLACES: dict[str, Callable[[Broken], tuple[object, str, Callable[..., bool]]]] = {
    "encode": lambda broken: (broken.engine.stages, "encode", broken.encode),
    "noise": lambda broken: (broken.engine._family, "noise", broken.noise),
    "predict": lambda broken: (broken.engine._batcher, "predict", broken.predict),
    "solve": lambda broken: (Solver, "step", broken.of_step),
    "clean": lambda broken: (Solver, "clean", broken.of_solver),
    "preview": lambda broken: (engine_module, "preview", broken.of_row),
    "save": lambda broken: (engine_module, "save", broken.of_row),
    "unpack": lambda broken: (broken.engine._family, "unpack", broken.unpack),
    "decoding": lambda broken: (broken.engine.stages, "decoding", broken.decoding),
    "finished": lambda broken: (engine_module, "finished", broken.of_row),
}


@contextmanager
def breaking(broken: Broken, place: str) -> Iterator[None]:
    owner, name, is_meant = PLACES[place](broken)
    whole: Callable[..., Any] = getattr(owner, name)

    def maybe(*args: Any, **others: Any) -> Any:
        if is_meant(*args, **others):
            raise broken.error
        return whole(*args, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, maybe)
        yield


def painted(engine: DiffusionEngine, seqs: list[int], broken: Broken | None = None) -> dict[int, Any]:
    """Two plans of two steps, with previews and checkpoints between; the failures, and the pictures of the others."""
    told: dict[int, Any] = {}
    for start in (0, 2):
        rows = tuple(DenoiseRow(seq, start, 2, STEPS) for seq in seqs)
        new = tuple(NewDenoise(seq, ASKED[seq]) for seq in seqs) if not start else ()
        among = tuple(seqs) if not start else ()
        if broken is not None:
            broken.gone = dict(engine._rows)
        done: Denoised = engine.run(DenoisePlan(1, 0, rows, 32, 32, new=new, save=among, show=among))
        told |= {failure.seq: failure for failure in done.failed}
        seqs = [seq for seq in seqs if seq not in told]
        if not start:
            kinds = [(row.seq, thing.kind) for row in done.made for thing in row.made]
            assert kinds == [(seq, kind) for seq in seqs for kind in ("checkpoint", "preview")]
    return told | {row.seq: pixels(row.made[0].body).astype(int) for row in done.made}


@pytest.fixture(scope="module")
def alone(loaded: Callable[..., Any]) -> dict[int, Any]:
    made = {}
    for seq in range(3):
        one = DiffusionEngine(loaded("flux"), engine_module.RunSettings(), lambda: 0)
        made |= painted(one, [seq])
    return made


# SPEC G1, L-2 (vllm-omni#4634)
@given(place=st.sampled_from(sorted(PLACES)), seq=st.integers(0, 2), kind=st.sampled_from(KINDS))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_the_row_that_is_wrong_fails(
    engine: Make, alone: dict[int, Any], place: str, seq: int, kind: type[Exception]
) -> None:
    one = engine("flux")
    broken = Broken(one, seq, kind("a fault"))
    with breaking(broken, place):
        told = painted(one, [0, 1, 2], broken)
    failure = told.pop(seq)
    assert failure.code == "engine_failed"
    assert kind.__name__ in failure.message
    assert "a fault" in failure.message
    assert failure.message.startswith("request req-1 ")
    assert sorted(told) == [other for other in range(3) if other != seq]
    for other, picture in told.items():
        assert np.abs(picture - alone[other]).max() <= 1
    assert one.held == 0
    assert one._batcher._batch is None
    assert one.embeddings.bytes == sum(embedding_bytes(kept) for kept in one.embeddings._kept.values())
    again = painted(one, [0, 1, 2])
    assert all(np.abs(again[n] - alone[n]).max() <= 1 for n in range(3))


def test_what_nobody_foresaw_is_logged_with_its_trace(engine: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = engine("flux")
    with breaking(broken := Broken(one, 1, IndexError("a fault")), "noise"), caplog.at_level(logging.ERROR):
        painted(one, [0, 1], broken)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.getMessage() == "request req-1 could not begin"


def test_a_bug_of_ours_is_no_fault_of_a_row(engine: Make) -> None:
    one = engine("flux")
    with breaking(Broken(one, 1, InvariantError("a bug")), "save"), pytest.raises(InvariantError):
        painted(one, [0, 1])
    assert one.held == 0
