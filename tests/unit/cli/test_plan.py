import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.bench.plan_search import Watched
from headway.bench.planning import Planner
from headway.cli.plan import Told, app
from headway.core.errors import ConfigError

SCENARIO = """
[[pools]]
name = "chat"
cost = "linear"
linear = { step_us = 10000.0, token_us = 50.0, kv_ns = 0.0 }
scheduler = { prefix_cache = false }
truth = { scale = 1.0, jitter = 0.0, spread = 0.0 }
[[workload]]
kind = "synthetic"
count = 40
arrivals = { kind = "poisson", rate_per_s = 25.0 }
prompt = { mean = 400.0, cv = 0.5, longest = 4096 }
output = { mean = 40.0, cv = 0.5 }
is_cacheable = false
[targets]
ttft_ms = 400.0
tpot_ms = 40.0
[front]
admission = { type = "open" }
[plan]
tp = [1]
devices_max = 8
confirm = 1.0
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return str(path)


def test_the_answer_is_printed(scenario: str) -> None:
    result = CliRunner().invoke(app, [scenario, "--processes", "1"])
    assert result.exit_code == 0, result.output
    assert "answer     " in result.stdout
    assert "seeds 1, 2, 3, the same for all" in result.stdout


def test_json_has_everything(scenario: str) -> None:
    result = CliRunner().invoke(app, [scenario, "--processes", "1", "--json"])
    found = json.loads(result.stdout)
    assert found["rows"][0]["state"] == "proven"
    assert {"losses", "refused", "rules", "runs", "seeds"} <= set(found)


def test_nothing_that_holds_is_exit_code_1(scenario: str) -> None:
    result = CliRunner().invoke(app, [scenario, "--processes", "1", "--set", "targets.tpot_ms=5"])
    assert result.exit_code == 1
    assert "answer     none" in result.stdout
    assert "TPOT" in result.stdout


def test_progress_goes_to_stderr(scenario: str) -> None:
    result = CliRunner().invoke(app, [scenario, "--processes", "1", "--progress"])
    assert "1 of 1 layouts" in result.stderr
    assert "1 of 1 layouts" not in result.stdout


def test_a_log_gets_a_line_every_ten_seconds_while_runs_end_or_none_does(  # SPEC J5
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = iter([0.0, 0.0, 4.0, 9.9, 11.0, 11.0, 30.0, 30.0, 30.1, 39.9, 60.0, 60.0])  # paced, then in its line
    told = Told(is_each=False, clock=lambda: next(clock))
    for _ in range(3):
        told.ran(None)
    told.waited()
    told.waited()
    told.searched(Watched(2, 6, "A100 x 1 4", "last"))
    told.waited()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "first layout, 3 runs ended in 11 s",
        "first layout, 3 runs ended in 30 s",
        "2 of 6 layouts, 3 runs ended in 60 s, about 120 s left; best: A100 x 1 4",
    ]


def test_the_page_needs_nothing_beside_it(scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "plan.html"
    result = CliRunner().invoke(app, [scenario, "--processes", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    page = out.read_text()
    assert page.count("<svg") == 2
    assert "Ranking" in page
    assert "src=" not in page
    assert "href=" not in page


def test_ctrl_c_prints_the_ranking_so_far(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Planner) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Planner, "run", stopped)
    result = CliRunner().invoke(app, [scenario, "--processes", "1"])
    assert result.exit_code == 130
    assert "none: nothing that was tried holds the target so far" in result.stdout
    assert "interrupted" in result.stderr


def test_an_unknown_key_is_named(scenario: str) -> None:
    result = CliRunner().invoke(app, [scenario, "--set", "plan.attainmnt=0.9"])
    assert isinstance(result.exception, ConfigError)
    assert "attainment" in str(result.exception)
