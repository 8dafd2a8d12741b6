from pathlib import Path

import pytest

from headway.cli.scenario import Scenario, keys_text, parse_setting, read_config, read_scenario
from headway.core.errors import ConfigError
from headway.live.config_layers import leaves
from headway.sched.registry import PolicyChoice

PLAN = """
[server]
port = 8123
[model]
name = "m"
replicas = 3
[engine]
kind = "synthetic"
kv_blocks = 512
[engine.synthetic]
step_us = 1000
[scheduler]
max_seqs = 8
async_depth = 1
[front.router]
type = "round_robin"
[fleet.migration]
cooldown_s = 1.5
[cost]
base_ns = 1e6
[executor]
failures_max = 7
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text)
    return path


def test_a_scenario_file_is_strict(tmp_path: Path) -> None:  # SPEC M1
    path = tmp_path / "scenario.toml"
    path.write_text("[fleet]\nreplicas = 3\n[workload]\ncount = 5\n[targets]\nttft_ms = 50\n")
    scenario = read_scenario(path, {"fleet.llm.max_seqs": 4})
    assert (scenario.fleet.replicas, scenario.fleet.llm.max_seqs, scenario.workload.count) == (3, 4, 5)
    path.write_text("[fleet]\nreplica = 3\n")
    with pytest.raises(ConfigError, match="replica"):
        read_scenario(path, {})
    path.write_text("[fleet\n")
    with pytest.raises(ConfigError, match="scenario"):
        read_scenario(path, {})


def test_the_nearest_key_is_named(tmp_path: Path) -> None:  # SPEC M1
    with pytest.raises(ConfigError, match=r"unknown key `fleet.llm.max_seq`; did you mean `fleet.llm.max_seqs`"):
        read_scenario(written(tmp_path, "[fleet.llm]\nmax_seq = 3\n"), {})


def test_everything_that_schedules_is_taken_from_a_configuration(tmp_path: Path) -> None:
    fleet = read_scenario(None, {}, read_config(written(tmp_path, PLAN))).fleet
    assert (fleet.replicas, fleet.llm.max_seqs, fleet.llm.async_depth, fleet.worker.credits) == (3, 8, 1, 1)
    assert (fleet.front.router, fleet.belief.base_ns, fleet.worker.failures_max) == (
        PolicyChoice("round_robin"),
        1e6,
        7,
    )
    assert fleet.migration is not None
    assert fleet.migration.cooldown_s == 1.5
    assert (fleet.engine.kv_blocks, fleet.engine.block_size) == (512, 32)
    assert (fleet.truth.base_ns, fleet.truth.token_ns) == (1e6, 20_000.0)


def test_what_only_a_server_uses_is_named_as_ignored(tmp_path: Path) -> None:
    served = read_config(written(tmp_path, PLAN))
    assert served.ignored == ("[server]", "model.name")
    assert served.notes == ()


def test_a_plan_for_a_model_says_what_the_simulator_does_not_know(tmp_path: Path) -> None:
    served = read_config(written(tmp_path, ""))
    assert len(served.notes) == 2
    assert "not from the model" in served.notes[1]


def test_a_configuration_is_checked_under_its_own_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key `scheduler.max_seq`; did you mean `scheduler.max_seqs`"):
        read_config(written(tmp_path, "[scheduler]\nmax_seq = 3\n"))


def test_a_scenario_and_options_win_over_a_configuration(tmp_path: Path) -> None:
    served = read_config(written(tmp_path, PLAN))
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("[fleet.llm]\nmax_seqs = 16\n")
    chosen = read_scenario(scenario, {"fleet.replicas": 5}, served)
    assert (chosen.fleet.llm.max_seqs, chosen.fleet.replicas, chosen.fleet.llm.async_depth) == (16, 5, 1)


def test_a_configuration_in_the_place_of_a_scenario_is_told_where_to_go(tmp_path: Path) -> None:
    path = written(tmp_path, PLAN)
    with pytest.raises(ConfigError, match="headway simulate --config"):
        read_scenario(path, {})


@pytest.mark.parametrize("name", ["scheduler.max_seqs", "fleet.llm.max_seqs"])
def test_a_setting_may_use_either_name(name: str) -> None:
    assert read_scenario(None, {name: 5}).fleet.llm.max_seqs == 5


def test_steps_in_flight_are_one_setting_of_the_configuration() -> None:
    fleet = read_scenario(None, {"scheduler.async_depth": 1}).fleet
    assert (fleet.llm.async_depth, fleet.worker.credits) == (1, 1)


@pytest.mark.parametrize(
    "changes", [{"fleet.replicas": 0}, {"workload.count": 0}, {"workload.tenants": 0}, {"workload.rate_per_s": 0}]
)
def test_a_scenario_without_work_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        read_scenario(None, changes)


def test_every_key_is_in_the_printed_reference() -> None:
    shown = keys_text()
    tables = {part.partition("]")[0]: part for part in shown.split("\n## [")[1:]}
    missing = []
    for key, _ in leaves(Scenario()):
        section, _, name = key.rpartition(".")
        if f"| `{name}` |" not in tables.get(section, ""):
            missing.append(key)
    unset = {"fleet.migration", "fleet.group", "fleet.front.hedge", "fleet.front.scaling", "fleet.front.quota_default"}
    assert [key for key in missing if key not in unset] == []
    assert unset <= set(tables)  # what is unset by default has a table of its own


def test_settings_are_toml_values_or_bare_words() -> None:
    assert parse_setting("a.b=3") == ("a.b", 3)
    assert parse_setting("a=lpm") == ("a", "lpm")
    with pytest.raises(ConfigError, match="name=value"):
        parse_setting("a.b")
