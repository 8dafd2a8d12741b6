from pathlib import Path

import pytest

from headway.cli.scenario import keys_text, parse_setting, read_config, scenario_of
from headway.core.errors import ConfigError
from headway.live.config_layers import leaves
from headway.sched.registry import PolicyChoice
from headway.sim.scenario import Scenario

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


def test_everything_that_schedules_is_taken_from_a_configuration(tmp_path: Path) -> None:
    scenario = scenario_of(None, {}, read_config(written(tmp_path, PLAN)))
    (pool,) = scenario.pools
    assert (pool.replicas, pool.scheduler.max_seqs, pool.scheduler.async_depth, pool.worker.credits) == (3, 8, 1, 1)
    assert pool.belief is not None
    assert (scenario.front.router, pool.belief.base_ns, pool.worker.failures_max) == (
        PolicyChoice("round_robin"),
        1e6,
        7,
    )
    assert scenario.migration is not None
    assert scenario.migration.cooldown_s == 1.5
    assert (pool.engine.kv_blocks, pool.engine.block_size) == (512, 32)
    assert (pool.cost, pool.linear.step_us, pool.linear.token_us, pool.linear.kv_ns) == ("linear", 1000, 20.0, 0.0)


def test_what_only_a_server_uses_is_named_as_ignored(tmp_path: Path) -> None:
    served = read_config(written(tmp_path, PLAN))
    assert served.ignored == ("[server]",)
    assert served.notes == ()


def test_the_model_of_a_server_is_looked_up_by_its_name_on_the_hub(tmp_path: Path) -> None:
    for name in ("", '[model]\nname = "HuggingFaceTB/SmolLM2-135M-Instruct"\n'):  # the default has a short name
        served = read_config(written(tmp_path, name))
        assert scenario_of(None, {}, served).pools[0].model == "smollm2-135m"
        assert served.notes == (
            "steps take what smollm2-135m takes on H100-SXM, or what pools.hardware says, not on this machine",
        )


def test_the_model_of_a_server_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    config = tmp_path / "mine" / "config.json"
    config.write_text("{}")
    scenario = scenario_of(None, {}, read_config(written(tmp_path, f'[model]\nname = "{tmp_path / "mine"}"\n')))
    assert scenario.pools[0].model == "mine"
    assert scenario.catalogue.hf_configs == {"mine": str(config)}


def test_a_model_that_nobody_knows_is_said(tmp_path: Path) -> None:
    (note,) = read_config(written(tmp_path, '[model]\nname = "nobody/knows"\n')).notes
    assert note.startswith("nobody/knows is in no catalogue: steps take what llama-3.1-8b takes on H100-SXM")


def test_a_configuration_is_checked_under_its_own_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key `scheduler.max_seq`; did you mean `scheduler.max_seqs`"):
        read_config(written(tmp_path, "[scheduler]\nmax_seq = 3\n"))


def test_a_scenario_and_options_win_over_a_configuration(tmp_path: Path) -> None:
    served = read_config(written(tmp_path, PLAN))
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("[[pools]]\nscheduler.max_seqs = 16\n")
    (pool,) = scenario_of(scenario, {"pools.replicas": 5}, served).pools
    assert (pool.scheduler.max_seqs, pool.replicas, pool.scheduler.async_depth) == (16, 5, 1)


@pytest.mark.parametrize("name", ["scheduler.max_seqs", "pools.scheduler.max_seqs"])
def test_a_setting_may_use_either_name(name: str) -> None:
    assert scenario_of(None, {name: 5}).pools[0].scheduler.max_seqs == 5


def test_steps_in_flight_are_one_setting_of_the_configuration() -> None:
    (pool,) = scenario_of(None, {"scheduler.async_depth": 1}).pools
    assert (pool.scheduler.async_depth, pool.worker.credits) == (1, 1)


def test_every_key_is_in_the_printed_reference() -> None:
    shown = keys_text()
    parts = shown.replace("\n## [[", "\n## [").split("\n## [")[1:]
    tables = {part.partition("\n")[0].rstrip("]"): part for part in parts}
    unset = {"migration", "front.hedge", "front.scaling", "front.quota_default"}
    missing = []
    for key, _ in leaves(Scenario()):
        section, _, name = key.rpartition(".")
        if section and f"| `{name}` |" not in tables.get(section, ""):
            missing.append(key)
    assert [key for key in missing if key not in unset] == []
    assert unset <= set(tables)  # what is unset by default has a table of its own
    assert "| `replicas` |" in tables["pools"]


def test_settings_are_toml_values_or_bare_words() -> None:
    assert parse_setting("a.b=3") == ("a.b", 3)
    assert parse_setting("a=lpm") == ("a", "lpm")
    with pytest.raises(ConfigError, match="name=value"):
        parse_setting("a.b")
