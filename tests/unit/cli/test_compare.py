import json
from pathlib import Path

import pytest
from tests.unit.bench.test_routing_study import HEAD
from typer.testing import CliRunner

from headway.bench import routing_plan, routing_study
from headway.bench.routing_plan import Plan
from headway.cli import compare
from headway.cli.compare import app


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_plan, "KNEE_LOADS", {2: (2_000.0, 60_000.0)})
    monkeypatch.setattr(routing_study, "REQUESTS", {2: 18})
    cells = (("exact", 2, "past"),)
    plan = Plan("quick", ("least_tokens", "cost_aware"), (2,), ((cells, (1,)),), (), is_tuned=False)
    monkeypatch.setattr(compare, "QUICK", plan)


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
