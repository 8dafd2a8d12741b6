"""Stages in processes of their own: the same bytes, beside each other, and what happens when one dies."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.engines.diffusion.asks import STEPS, asked, made, run

from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.loading import LoadSettings, load
from headway.engines.diffusion.stage_pool import SplitStages
from headway.engines.diffusion.start import StageCounts, start_engine

TILED = 40 * 40  # frames of more pixels are decoded in tiles
Saved = Callable[..., Path]


def started(folder: Path, counts: StageCounts) -> DiffusionEngine:
    run_settings = RunSettings(cache_mb=0, tile_pixels=TILED)
    return start_engine(LoadSettings(folder, device="cpu"), run_settings, counts, lambda: 0)


@pytest.fixture(scope="module")
def split(saved: Saved) -> Iterator[DiffusionEngine]:
    """One process decodes; it takes six CPU-seconds to import what it needs."""
    engine = started(saved("flux"), StageCounts(decode=1))
    yield engine
    engine.close()


def test_a_picture_is_the_same_when_it_is_decoded_elsewhere(
    split: DiffusionEngine, engine: Callable[..., DiffusionEngine]
) -> None:
    request = asked(n=2, content=Content("a red circle", "a blue square"))  # sglang#16612
    assert made(split, request) == made(engine("flux"), request)


def test_a_stage_elsewhere_decodes_in_tiles_as_it_is_told(
    split: DiffusionEngine, engine: Callable[..., DiffusionEngine]
) -> None:
    request = asked(height=64, width=64)  # vllm-omni PR#7774: one type of stage ignored the mode
    tiled = made(split, request)
    assert tiled == made(engine("flux", tile_pixels=TILED), request)
    assert tiled != made(engine("flux"), request)


# SPEC G1, L-2
def test_what_a_process_of_a_stage_holds_is_counted(
    split: DiffusionEngine, engine: Callable[..., DiffusionEngine]
) -> None:
    request = asked()
    row, new = DenoiseRow(0, 0, STEPS, STEPS), NewDenoise(0, request)
    plan = DenoisePlan(1, 0, (row,), request.height, request.width, new=(new,))
    here = engine("flux")
    _, apart = split.run_counted(plan)
    _, together = here.run_counted(plan)
    assert apart.decode_bytes >= together.decode_bytes > 0  # and the latents and frames that travel
    assert split.stage_bytes() > 50 << 20  # its weights, and the libraries that every process loads
    assert (here.stage_bytes(), here.decodes_max, split.decodes_max) == (0, 1, 1)


@pytest.mark.parametrize(("only", "absent"), [("text", "vae"), ("decode", "text_encoder_2")])
def test_a_stage_has_only_its_weights(only: str, absent: str, saved: Saved) -> None:
    pipeline = load(LoadSettings(saved("flux"), device="cpu"), only=only).pipeline  # type: ignore[arg-type]
    assert getattr(pipeline, absent) is None
    assert next(pipeline.transformer.parameters()).is_meta


@pytest.mark.parametrize("family", ["sd3", "pixart", "qwen", "wan", "wan2.2"])
@pytest.mark.parametrize("only", ["text", "decode"])
def test_every_family_loads_one_stage(family: str, only: str, saved: Saved) -> None:
    found = load(LoadSettings(saved(family), device="cpu"), only=only)  # type: ignore[arg-type]
    assert next(found.pipeline.transformer.parameters()).is_meta
    if only == "text":
        assert [each["prompt"].shape[0] for each in found.family.encode(["a red circle", "a"])] == [1, 1]


def test_a_failure_in_a_stage_fails_its_row_only(split: DiffusionEngine) -> None:
    before = split.stages.decoding
    split.stages.decoding = lambda grid, size: before(grid[:, :1], size)  # type: ignore[method-assign]  # too few channels
    try:
        done = run(split, [asked()])
    finally:
        split.stages.decoding = before  # type: ignore[method-assign]
    assert [failure.code for failure in done.failed] == ["engine_failed"]
    assert made(split, asked())[0].kind == "picture"


@pytest.mark.slow
def test_processes_that_die_are_replaced_and_their_work_is_done_again(
    saved: Saved, engine: Callable[..., DiffusionEngine]
) -> None:
    one = started(saved("flux"), StageCounts(text=1, decode=2))
    assert one._loaded.pipeline.text_encoder is None
    try:
        stages = one.stages
        assert isinstance(stages, SplitStages)
        requests = [asked(deterministic=False), asked(deterministic=False, seed=8)]
        alone = run(engine("flux"), requests).made
        for _ in range(2):
            assert run(one, requests).made == alone
            for pool in (stages._text, stages._decode):
                assert pool is not None
                os.kill(pool.hosts[0].process.pid, signal.SIGKILL)
                pool.hosts[0].process.wait()
        assert stages._text is not None
        assert stages._text.replaced == 1
    finally:
        one.close()
