"""Stages in processes of their own: the same bytes, beside each other, and what happens when one dies."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.engines.diffusion.asks import STEPS, asked, made, mask, picture, run

from headway.core.errors import ConfigError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.families.protocol import Size, TakesPictures
from headway.engines.diffusion.loading import ROLES, Loaded, LoadSettings, Part, Role, load
from headway.engines.diffusion.pictures import open_picture
from headway.engines.diffusion.stage_pool import SplitStages
from headway.engines.diffusion.stages import latents_from, latents_to, picture_from, picture_to
from headway.engines.diffusion.start import StageCounts, start_engine

TILED = 40 * 40  # frames of more pixels are decoded in tiles
Saved = Callable[..., Path]
Load = Callable[..., Loaded]


def started(folder: Path, counts: StageCounts) -> DiffusionEngine:
    run_settings = RunSettings(cache_mb=0, tile_pixels=TILED)
    return start_engine(LoadSettings(folder, device="cpu"), run_settings, counts, lambda: 0)


@pytest.fixture(scope="module")
def split(saved: Saved) -> Iterator[DiffusionEngine]:
    """One process decodes, one encodes pictures; each takes six CPU-seconds to import what it needs."""
    engine = started(saved("flux"), StageCounts(encode=1, decode=1))
    yield engine
    engine.close()


def test_a_picture_is_the_same_when_it_is_decoded_elsewhere(
    split: DiffusionEngine, engine: Callable[..., DiffusionEngine]
) -> None:
    request = asked(n=2, content=Content("a red circle", "a blue square"))  # sglang#16612
    assert made(split, request) == made(engine("flux"), request)


# SPEC G1
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"mask": mask()}, {"height": 64, "width": 64}])
def test_an_edit_is_the_same_when_its_picture_is_encoded_elsewhere(
    fields: dict[str, Any], split: DiffusionEngine, engine: Callable[..., DiffusionEngine]
) -> None:
    said = Content("a red circle", pictures=(picture(),), mask=fields.pop("mask", None))
    request = asked(strength=0.5, content=said, **fields)
    assert made(split, request) == made(engine("flux", tile_pixels=TILED), request)


def test_pictures_are_encoded_beside_each_other_and_one_that_is_none_fails_alone(split: DiffusionEngine) -> None:
    bodies = [picture(seed=seed) for seed in range(3)]
    requests = [asked(strength=0.5, seed=8, content=Content("a", pictures=(body,))) for body in bodies]
    alone = [made(split, request)[0].body for request in requests]
    bad = asked(strength=0.5, content=Content("a", pictures=(b"none",)))
    stages = split.stages
    assert isinstance(stages, SplitStages)
    before, begun, waited = stages.encoding, list[int](), list[int]()

    def encoding(pixels: Any, generators: Any) -> Callable[[], Any]:
        begun.append(len(waited))
        wait = before(pixels, generators)
        return lambda: (waited.append(1), wait())[1]  # type: ignore[func-returns-value]

    stages.encoding, stages.encodes_max = encoding, 2  # type: ignore[method-assign]
    try:
        done = run(split, [requests[0], bad, *requests[1:]])
    finally:
        stages.encoding, stages.encodes_max = before, 1  # type: ignore[method-assign]
    assert [(row.seq, row.made[0].body) for row in done.made] == list(zip((0, 2, 3), alone, strict=True))
    assert [(failure.seq, failure.code) for failure in done.failed] == [(1, "bad_input")]
    assert begun == [0, 0, 1]  # never more than two are held


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
    assert (here.stage_bytes(), here.decodes_max, split.decodes_max, split.encodes_max) == (0, 1, 1, 1)


# SPEC G1, F1: the engine's own count has what it holds itself, the stage's what encodes the picture
def test_what_a_process_holds_that_encodes_a_picture_is_counted(split: DiffusionEngine) -> None:
    edit = asked(strength=0.5, content=Content("a", pictures=(picture(),)))
    counts = []
    for request in (asked(content=Content("a")), edit):
        row, new = DenoiseRow(0, 0, STEPS, STEPS), NewDenoise(0, request)
        _, seen = split.run_counted(DenoisePlan(1, 0, (row,), 32, 32, new=(new,)))
        counts.append((seen.begin_bytes, split.stages.seen().encode))
    (plain, _), (edited, encoded) = counts
    assert edited >= plain + encoded > plain


def weights(module: Any) -> set[str]:
    """Parts that are there in more than name."""
    return {name.partition(".")[0] for name, parameter in module.named_parameters() if not parameter.is_meta}


PARTS = [("text", set()), ("encode", {"encoder"}), ("decode", {"decoder"}), ("denoise", set())]


@pytest.mark.parametrize(("only", "of_vae"), PARTS)
def test_a_stage_has_only_its_weights(only: Part, of_vae: set[str], saved: Saved) -> None:
    pipeline = load(LoadSettings(saved("flux"), device="cpu"), only=(only,)).pipeline
    assert weights(pipeline.vae) == of_vae
    assert (pipeline.text_encoder_2 is None) is (only != "text")
    assert bool(weights(pipeline.transformer)) is (only == "denoise")


@pytest.mark.parametrize("family", ["sd3", "pixart", "qwen", "wan", "wan2.2"])
@pytest.mark.parametrize("only", ROLES)
def test_every_family_runs_a_stage_with_only_its_weights(family: str, only: Role, saved: Saved, loaded: Load) -> None:
    whole, part = loaded(family).family, load(LoadSettings(saved(family), device="cpu"), only=(only,)).family
    size, generator = Size(32, 32, 5 if whole.makes_videos else 1), torch.Generator()
    with torch.inference_mode():
        match only:
            case "text":
                for ours, theirs in zip(part.encode(["a red", "a"]), whole.encode(["a red", "a"]), strict=True):
                    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
            case "decode":
                grid = whole.noise(size, generator.manual_seed(1))
                assert np.array_equal(part.decode(grid, size), whole.decode(grid, size))
            case "encode":
                if isinstance(whole, TakesPictures) and isinstance(part, TakesPictures):
                    pixels = whole.prepare_picture(open_picture(picture()), size)
                    ours, theirs = (each.encode_picture(pixels, [generator.manual_seed(1)]) for each in (part, whole))
                    assert torch.equal(ours, theirs)


# SPEC G1, rule 8
def test_a_model_that_takes_no_pictures_has_no_processes_that_encode_them(saved: Saved) -> None:
    with pytest.raises(ConfigError, match=r"encode_processes = 1, but .* takes no pictures"):
        started(saved("pixart"), StageCounts(encode=1))


def test_generators_go_on_from_where_a_stage_has_drawn() -> None:
    here, there = ([torch.Generator().manual_seed(seed) for seed in (1, 2)] for _ in range(2))
    pixels, drawing = picture_from(picture_to(torch.zeros(1, 3, 2, 2), there), torch.device("cpu"))
    drawn = torch.stack([torch.randn(3, generator=each) for each in drawing])
    assert torch.equal(latents_from(latents_to(drawn, drawing), torch.device("cpu"), there), drawn)
    assert torch.equal(drawn, torch.stack([torch.randn(3, generator=each) for each in here]))
    assert [torch.randn(1, generator=each) for each in there] == [torch.randn(1, generator=each) for each in here]
    assert pixels.shape == (1, 3, 2, 2)


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
    one = started(saved("flux"), StageCounts(text=1, encode=1, decode=1))
    pipeline = one._loaded.pipeline
    assert (pipeline.text_encoder, weights(pipeline.vae)) == (None, set())
    try:
        stages = one.stages
        assert isinstance(stages, SplitStages)
        edit = asked(deterministic=False, seed=8, strength=0.5, content=Content("a", pictures=(picture(),)))
        requests = [asked(deterministic=False), edit]
        alone = run(engine("flux"), requests).made
        assert run(one, requests).made == alone
        for pool in stages.pools.there:
            os.kill(pool.hosts[0].process.pid, signal.SIGKILL)
            pool.hosts[0].process.wait()
        assert run(one, requests).made == alone
        assert [pool.replaced for pool in stages.pools.there] == [1, 1, 1]
    finally:
        one.close()
