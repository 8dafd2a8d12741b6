import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.bench import sweep as sweeping
from headway.cli.sweep import Waiting, app, values_of
from headway.core.errors import ConfigError

SCENARIO = """
[[pools]]
name = "chat"
replicas = 1
[[workload]]
kind = "synthetic"
name = "talk"
count = 30
arrivals = {kind = "poisson", rate_per_s = 30.0}
slo = {ttft_ms = 60.0}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return str(path)


def test_values_are_numbers_words_or_a_list() -> None:
    assert values_of("pools.chat.replicas=1,2.5,true") == ("pools.chat.replicas", [1, 2.5, True])
    assert values_of("front.router.type=a,b") == ("front.router.type", ["a", "b"])
    assert values_of('x=["a,b", "c"]') == ("x", ["a,b", "c"])


@pytest.mark.parametrize("text", ["x", "=1", "x=", "x=[1,"])
def test_values_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--vary"):
        values_of(text)


def test_a_grid_is_printed_best_first_and_goes_on_from_its_results(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep.html"
    asked = [scenario, "--vary", "pools.chat.replicas=1,2", "--metric", "ttft_ms.p99", "--out", str(out)]
    first = CliRunner().invoke(app, [*asked, "--processes", "1", "--json"])
    assert first.exit_code == 0, first.output
    rows = json.loads(first.stdout)["rows"]
    times = [row["metrics"]["ttft_ms.p99"]["mean"] for row in rows]
    assert times == sorted(times)
    assert "<svg" in out.read_text()
    assert len(out.with_suffix(".jsonl").read_text().splitlines()) == 2

    monkeypatch.setattr(sweeping, "simulate", None)  # nothing is run again
    again = CliRunner().invoke(app, [*asked, "--processes", "1", "--json"])
    assert json.loads(again.stdout)["rows"] == rows


def test_a_search_finds_the_rate_that_holds(scenario: str) -> None:
    asked = [scenario, "--find", "workload.talk.arrivals.rate_per_s", "--between", "20,4000", "--tolerance", "0.3"]
    result = CliRunner().invoke(app, [*asked, "--processes", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (row,) = found["rows"]
    assert row["changes"] == {}
    assert 20 < row["metrics"]["workload.talk.arrivals.rate_per_s"]["mean"] < 4000
    assert row["metrics"]["attainment"]["mean"] >= 0.9
    assert "attainment>=0.9 holds up to workload.talk.arrivals.rate_per_s" in found["notes"][0]


def test_ctrl_c_says_what_is_kept(scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "simulate", interrupt)
    kept = tmp_path / "r.jsonl"
    asked = [scenario, "--vary", "pools.chat.replicas=1,2", "--processes", "1", "--results", str(kept)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 130
    assert f"0 runs are there; the same command goes on from {kept}" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing varies"),
        (["--vary", "seed=1,2"], "seeds by --seeds"),
        (["--vary", "pools.replicas=1", "--vary", "pools.replicas=2"], "names a key twice"),
        (["--vary", "pools.replicas=1", "--seeds", "a"], "write whole numbers"),
        (["--vary", "pools.chat.replica=1"], "replica"),
        (["--find", "front.router.type"], "give the bounds with --between"),
        (["--find", "pools.chat.replicas", "--between", "1"], "write two numbers"),
        (["--find", "pools.chat.replicas", "--hold", "good"], "is no condition"),
    ],
)
def test_what_cannot_be_swept_is_refused(scenario: str, options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, [scenario, *options, "--processes", "1"])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)


def test_without_seeds_a_sweep_runs_the_file_s_own(tmp_path: Path) -> None:
    path, kept = tmp_path / "s.toml", tmp_path / "rows.jsonl"
    path.write_text(f"seed = 3\n{SCENARIO}")
    asked = [str(path), "--vary", "pools.chat.replicas=1", "--results", str(kept), "--processes", "1"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert json.loads(kept.read_text())["changes"]["seed"] == 3


@pytest.mark.parametrize(
    "asked",
    [
        ["--vary", "pools.chat.replicas=1,2", "--metric", "nope"],
        ["--vary", "pools.chat.replicas=1,2", "--show", "ttft_ms.p98"],
        ["--find", "pools.chat.replicas", "--hold", "nope>=1"],
        ["--find", "pools.chat.nope"],
    ],
)
def test_a_name_that_is_none_is_refused_before_the_first_run(
    scenario: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "simulate", None)  # a run would fail otherwise
    done = CliRunner().invoke(app, [scenario, *asked, "--processes", "1"])
    assert isinstance(done.exception, ConfigError)
    assert "nope" in str(done.exception) or "ttft_ms.p98" in str(done.exception)


def test_a_long_run_is_told_of_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:  # SPEC J5
    clock = iter([0.0, 0.0, 9.9, 10.0, 10.0, 19.9, 25.0, 25.0])  # when it looks, and in its line
    waiting = Waiting(2, lambda: next(clock))
    for _ in range(4):
        waiting()
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "0 runs ended in 10 s, up to 2 under way",
        "0 runs ended in 25 s, up to 2 under way",
    ]
