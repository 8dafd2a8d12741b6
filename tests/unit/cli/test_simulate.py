import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.bench import results
from headway.bench.scenarios import read_scenario
from headway.bench.simulated import config_hash
from headway.cli.compare import app as compare_app
from headway.cli.scenario import keys_text, parse_setting, scenario_of
from headway.cli.simulate import DEFAULTS, app
from headway.core.errors import ConfigError, InvariantError
from headway.workload.spec import Synthetic

SMALL = ["--requests", "12", "--rate", "50", "--set", "workload.output.mean=8", "--set", "workload.prompt.mean=20"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*SMALL, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_prints_percentiles_and_replicas() -> None:  # SPEC J1
    shown = run()
    assert "12 of 12 completed" in shown
    for word in ("ttft", "tpot", "p99", "pool", "preempted"):
        assert word in shown


def test_the_same_seed_writes_the_same_log(tmp_path: Path) -> None:  # SPEC J6
    first, second, other = (tmp_path / name for name in ("a", "b", "c"))
    run("--seed", "3", "--log", str(first))
    run("--seed", "3", "--log", str(second))
    run("--seed", "4", "--log", str(other))
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
    assert json.loads(first.read_text().splitlines()[0])["node"]


def test_json_is_the_summary() -> None:
    assert json.loads(run("--json", "--router", "round_robin"))["completed"] == 12


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:  # SPEC A1
    with pytest.raises(ConfigError, match="least_tokens"):
        CliRunner().invoke(app, [*SMALL, "--router", "best"], catch_exceptions=False)


def test_a_failed_simulation_says_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC J6
    def broken(*_: object, **__: object) -> None:
        raise InvariantError("replica rep-0: 3 stays, 2 requests")

    monkeypatch.setattr("headway.bench.simulated.simulate", broken)
    result = CliRunner().invoke(app, [*SMALL, "--seed", "7", "--router", "round_robin"])
    assert result.exit_code == 1
    assert "3 stays, 2 requests" in result.stderr
    command = result.stderr.partition("again: headway simulate ")[2]
    changes = dict(parse_setting(word) for word in shlex.split(command) if word != "--set")
    again = scenario_of(None, changes)
    assert (again.seed, again.front.router.type) == (7, "round_robin")
    assert config_hash(again) in result.stderr


def test_a_configuration_of_serve_is_simulated_and_says_what_it_ignores(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text("[server]\nport = 1\n[model]\nreplicas = 3\n")
    result = CliRunner().invoke(app, [*SMALL, "--config", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "pool                  3" in result.stdout
    assert "ignored here: [server]" in result.stderr


@pytest.mark.parametrize("option", ["--replicas", "--requests"])
def test_nothing_to_simulate_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=r"expected integer \(≥ 1.*, got 0"):
        CliRunner().invoke(app, [option, "0"], catch_exceptions=False)


def test_help_shows_defaults_and_section_names() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "[[pools]], [[workload]], [targets]" in shown
    assert "cost_aware, or what a file says" in shown


def test_keys_are_printed_without_a_run() -> None:
    assert CliRunner().invoke(app, ["--keys"], catch_exceptions=False).output == keys_text()


def test_out_leaves_a_whole_folder_that_compare_takes(tmp_path: Path) -> None:  # SPEC I4, J5
    for name, router in (("a", "round_robin"), ("b", "least_tokens")):
        assert f"headway compare {tmp_path / name} OTHER" in run("--router", router, "--out", str(tmp_path / name))
    found = {path.name.partition(".")[0] for path in (tmp_path / "a").iterdir()}
    assert found == {"summary", "requests", "decisions", "series", "scenario", "report"}
    compared = CliRunner().invoke(compare_app, [str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert compared.exit_code == 0, compared.output
    answer = json.loads(compared.output)
    assert answer["paired"] == [True, True]
    assert answer["config"] == {"front.router.type": ["round_robin", "least_tokens"]}


def test_without_pyarrow_it_is_said_where_the_requests_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "has_pyarrow", lambda: False)
    result = CliRunner().invoke(app, [*SMALL, "--out", str(tmp_path / "a")], catch_exceptions=False)
    assert "requests go to requests.jsonl: Parquet needs the extra `parquet` (pyarrow)" in result.stderr
    assert len((tmp_path / "a" / "requests.jsonl").read_bytes().splitlines()) == 12


def test_the_defaults_that_help_shows_are_those_of_a_scenario() -> None:
    whole = read_scenario(None, {})
    (pool,), (workload,) = whole.pools, whole.workload
    assert isinstance(workload, Synthetic)
    assert {
        "rate": workload.arrivals.rate_per_s,
        "requests": workload.count,
        "replicas": pool.replicas,
        "router": whole.front.router.type,
        "order": pool.scheduler.order.type,
        "seed": whole.seed,
    } == DEFAULTS
