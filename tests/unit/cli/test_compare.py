import json
from pathlib import Path

import pytest
from tests.unit.bench.test_compare_runs import ends, write
from tests.unit.bench.test_routing_study import HEAD
from typer.testing import CliRunner

from headway.bench import routing_plan, routing_study
from headway.bench.routing_plan import Plan
from headway.cli.compare import app


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_plan, "KNEE_LOADS", {2: (2_000.0, 60_000.0)})
    monkeypatch.setattr(routing_study, "REQUESTS", {2: 18})
    cells = (("exact", 2, "past"),)
    plan = Plan("quick", ("least_tokens", "cost_aware"), (2,), ((cells, (1,)),), (), is_tuned=False)
    monkeypatch.setattr(routing_plan, "QUICK", plan)


@pytest.mark.usefixtures("tiny")
def test_writes_a_report_and_keeps_its_runs(tmp_path: Path) -> None:
    out, notes = tmp_path / "report.html", tmp_path / "notes.html"
    notes.write_text("<p>by hand</p>")
    options = ["routing", "--quick", "--trace", str(HEAD), "--out", str(out), "--processes", "1"]
    result = CliRunner().invoke(app, [*options, "--notes", str(notes)])
    assert result.exit_code == 0, result.output
    assert "<svg" in out.read_text() or "<table" in out.read_text()
    assert "by hand" in out.read_text()
    runs = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert [run["job"]["table"] for run in runs] == ["knee", "knee", "routing", "routing"]
    again = CliRunner().invoke(app, [*options, "--as-is"])
    assert "2 of the 2 runs" in out.read_text()
    assert again.exit_code == 0
    assert len(out.with_suffix(".jsonl").read_text().splitlines()) == 4


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = ["routing", "--trace", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "r.html")]
    result = CliRunner().invoke(app, [*options, "--processes", "1"])
    assert result.exit_code != 0
    assert "none.jsonl" in str(result.exception)


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return [str(write(tmp_path / name, ends(shift))) for name, shift in (("a", 5.0), ("b", 0.0))]


def test_folders_alone_are_compared(folders: list[str], tmp_path: Path) -> None:
    out = tmp_path / "compare.html"
    result = CliRunner().invoke(app, [*folders, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "b less a (the same requests)" in result.output
    assert "<svg" in out.read_text()


def test_options_may_stand_before_the_folders(folders: list[str]) -> None:
    result = CliRunner().invoke(app, ["--json", *folders])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["runs"] == ["a", "b"]


def test_one_folder_or_none_is_refused(folders: list[str], tmp_path: Path) -> None:
    alone = CliRunner().invoke(app, folders[:1])
    assert "name two folders or more" in str(alone.exception)
    missing = CliRunner().invoke(app, [folders[0], str(tmp_path / "none")])
    assert "there is no summary.json" in str(missing.exception)
