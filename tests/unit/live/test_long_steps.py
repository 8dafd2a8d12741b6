"""Steps that are too long for an orderly end are told with both figures."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from headway.cli.doctor_state import long_steps
from headway.core.ids import NodeId
from headway.core.messages import Report
from headway.core.reports import ReplicaReport
from headway.cost.diffusion import step_ns
from headway.live.board import Board
from headway.live.config_diffusion import DiffusionSettings, SyntheticDenoise, believed_cost, probes_of
from headway.live.long_steps import tell_long_steps, too_long
from headway.live.stores import TelemetrySettings, Timeline
from headway.sched.diffusion.params import DiffusionParams

NODE = NodeId("rep-0")


def model(step_ms: float, steps_per_plan: int = 1) -> DiffusionSettings:
    scheduler = DiffusionParams(steps_per_plan=steps_per_plan)
    synthetic = SyntheticDenoise(step_ms=step_ms, megapixel_ms=0.0)
    named = DiffusionSettings(name="wan", engine="synthetic", fps=2, seconds=(4, 8), size="32x32")
    return msgspec.structs.replace(named, scheduler=scheduler, synthetic=synthetic)


@pytest.mark.parametrize(("step_ms", "at_once", "is_told"), [(2000, 1, False), (3000, 1, True), (1500, 2, True)])
def test_two_plans_must_fit_the_one_under_way_and_the_one_that_is_saved(
    step_ms: float, at_once: int, is_told: bool
) -> None:
    found = model(step_ms, at_once)
    story = too_long(found, believed_cost(found), 5.0)
    assert (story is not None) is is_told
    if story is not None:
        assert f"takes {step_ms / 1000:.3g} s" in story
        assert "takes up to 6 s, and server.shutdown_s = 5." in story


def test_it_is_told_at_the_start_and_kept_for_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STATE", str(tmp_path / "state"))
    slow = model(3000)
    board = Board({NODE: "wan"}, Timeline(TelemetrySettings()), lambda *_: None)
    board.replicas[NODE].incarnation = 1
    report = ReplicaReport(NODE, 1, 1, 0, "diffusion", "wan", *[0] * 7, denoise_cost=believed_cost(slow))
    board.heard(NODE, Report(report))
    said: list[str] = []
    asyncio.run(tell_long_steps([slow], board, 5.0, tmp_path / "state", said.append))
    assert len(said) == 1
    assert long_steps() == tuple(said)
    asyncio.run(tell_long_steps([slow], board, 60.0, tmp_path / "state", said.append))
    assert len(said) == 1
    assert long_steps() == ()


# SPEC F6: jobs of a batch are saved when its step is over, which takes longer than that of one
@pytest.mark.parametrize(("batch_max", "gain_min", "seconds"), [(1, 1.05, None), (4, 1.05, 2.5), (4, 2.0, None)])
def test_the_largest_batch_that_forms_is_what_must_fit(batch_max: int, gain_min: float, seconds: float | None) -> None:
    scheduler = DiffusionParams(batch_max=batch_max, gain_min=gain_min)
    found = msgspec.structs.replace(model(1000), scheduler=scheduler)
    one = msgspec.structs.replace(believed_cost(found), floor_ns=0.0, token_ns=1.0)
    longest = max(step_ns(one, shape) for shape, _ in probes_of(found).batches)
    cost = msgspec.structs.replace(one, floor_ns=0.5e9, token_ns=0.5e9 / longest)  # 1 s alone, 2.5 s with four
    story = too_long(found, cost, 4.5)
    if seconds is None:
        assert story is None
    else:
        assert story is not None
        assert f", a batch of 4, takes {seconds:.3g} s" in story
        assert "takes up to 5 s" in story


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    board = Board({NODE: "wan"}, Timeline(TelemetrySettings()), lambda *_: None)
    said: list[str] = []
    asyncio.run(tell_long_steps([], board, 5.0, tmp_path / "state", said.append))
    assert len(said) == 1
    assert "will not know" in said[0]


@pytest.mark.parametrize("body", [None, "no JSON"])
def test_what_nobody_left_or_cannot_be_read_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None
) -> None:
    monkeypatch.setenv("HEADWAY_STATE", str(tmp_path))
    if body is not None:
        (tmp_path / "long_steps.json").write_text(body)
    assert long_steps() == ()
