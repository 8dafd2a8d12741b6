from pathlib import Path

import msgspec
import pytest

from headway.bench.scenarios import read_scenario
from headway.core.errors import ConfigError
from headway.live.config_layers import Layer
from headway.sched.registry import PolicyChoice
from headway.workload.spec import Azure


def written(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text)
    return path


TWO = """
[[pools]]
name = "chat"
[[pools]]
name = "code"
model = "other"
replicas = 3
"""


def test_a_scenario_file_is_strict(tmp_path: Path) -> None:  # SPEC M1
    path = written(tmp_path, "[[pools]]\nreplicas = 3\n[targets]\nttft_ms = 50\n")
    scenario = read_scenario(path, {"pools.scheduler.max_seqs": 4})
    assert (scenario.pools[0].replicas, scenario.pools[0].scheduler.max_seqs, scenario.targets.ttft_ms) == (3, 4, 50)
    with pytest.raises(ConfigError, match=r"unknown key `pools\[0\].replica`; did you mean `pools\[0\].replicas`"):
        read_scenario(written(tmp_path, "[[pools]]\nreplica = 3\n"), {})
    with pytest.raises(ConfigError, match="is not TOML"):
        read_scenario(written(tmp_path, "[pools\n"), {})


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("pools", (7, 7)), ("pools[0]", (7, 3)), ("pools[code]", (1, 7)), ("pools[1]", (1, 7)), ("pools.code", (1, 7))],
)
def test_a_change_reaches_all_entries_of_a_list_or_one(tmp_path: Path, name: str, replicas: tuple[int, ...]) -> None:
    scenario = read_scenario(written(tmp_path, TWO), {f"{name}.replicas": 7})
    assert tuple(pool.replicas for pool in scenario.pools) == replicas


def test_a_key_is_not_taken_for_the_name_of_an_entry(tmp_path: Path) -> None:
    path = written(tmp_path, '[[pools]]\nname = "scheduler"\n[[pools]]\nname = "b"\nmodel = "other"\n')
    scenario = read_scenario(path, {"pools.scheduler.max_seqs": 7, "pools[scheduler].replicas": 2})
    assert [pool.scheduler.max_seqs for pool in scenario.pools] == [7, 7]
    assert [pool.replicas for pool in scenario.pools] == [2, 1]


def test_a_change_of_an_entry_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pools\[cod\]: there is no such entry.*0 to 1, or its name: chat, code"):
        read_scenario(written(tmp_path, TWO), {"pools[cod].replicas": 7})


def test_the_command_line_is_named_when_it_is_to_blame(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"command line: .*pools\[0\].replicas"):
        read_scenario(written(tmp_path, TWO), {"pools.replicas": 0})
    with pytest.raises(ConfigError, match=r"^command line: key `network.client_ms`"):
        read_scenario(written(tmp_path, TWO), {"network.client_ms": -1})


def test_one_table_in_place_of_a_list_is_a_list_of_one(tmp_path: Path) -> None:
    assert read_scenario(written(tmp_path, "[pools]\nreplicas = 4\n"), {}).pools[0].replicas == 4


def test_a_configuration_in_the_place_of_a_scenario_is_told_where_to_go(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="headway simulate --config"):
        read_scenario(written(tmp_path, "[server]\nport = 1\n"), {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pools = []", "at least one entry"),
        ('[[pools]]\nname="a"\n[[pools]]\nname="a"', "'a' is given twice"),
        ('[[pools]]\nname="a"\nrole="prefill"', "needs a prefill and a decode pool"),
        ('[[pools]]\nname="a"\nrole="prefill"\n[[pools]]\nname="b"', "roles mixed, prefill"),
        ('[[pools]]\nname="a"\n[[pools]]\nname="b"\nengine.block_size=32', "block_size is 16, 32"),
        ('[front.pools]\nprefill=["x"]\ndecode=["y"]', "by `role` of its pools"),
        ("[network]\nnode_us = -1", "node_us"),
        ("[sim]\nuntil_s = 5\nwarmup_s = 5", "leaves nothing of sim.until_s"),
        ("[[pools]]\nscheduler.async_depth = 1", "async_depth = 1 and worker.credits = 2"),
        ('[front.routes.a]\nfallbacks = ["b"]', "front.routes.a: .*leave fallbacks out"),
        ('[front.routes.a]\ntransfers_to = ["b"]', "transfers_to names 'b', which no pool serves"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, words: str) -> None:  # SPEC B6
    with pytest.raises(ConfigError, match=words):
        read_scenario(written(tmp_path, text), {})


def test_paths_begin_in_the_folder_of_the_file(tmp_path: Path) -> None:
    text = """
[[pools]]
cost = "fit.json"
[[pools]]
name = "b"
cost = "linear"
[[workload]]
kind = "azure"
path = "trace.csv"
[catalogue.hf_configs]
mine = "/models/mine/config.json"
other = "other/config.json"
"""
    scenario = read_scenario(written(tmp_path, text), {})
    assert [pool.cost for pool in scenario.pools] == [str(tmp_path / "fit.json"), "linear"]
    (trace,) = scenario.workload
    assert isinstance(trace, Azure)
    assert trace.path == str(tmp_path / "trace.csv")
    assert scenario.catalogue.hf_configs == {
        "mine": "/models/mine/config.json",
        "other": str(tmp_path / "other/config.json"),
    }


def test_the_scenario_that_a_run_left_is_the_scenario_that_ran(tmp_path: Path) -> None:  # SPEC J6
    text = (
        TWO
        + "[[workload]]\nkind = 'azure'\npath = 'trace.csv'\n[front.router]\ntype = 'preble'\n[targets]\nttft_ms = 5\n"
    )
    scenario = read_scenario(written(tmp_path, text), {"pools[code].replicas": 7, "seed": 3})
    left = tmp_path / "scenario.json"
    left.write_bytes(msgspec.json.encode(scenario))
    assert read_scenario(left, {}) == scenario
    left.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_scenario(left, {})


def test_a_table_of_a_tenant_or_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    sending = '[[workload]]\nkind = "synthetic"\ntenant = "acme"\ntenants = 2\n'
    told = f"{sending}[tenants.acme-1]\nttft_ms = 50\n[front.quotas.acme-0]\nconcurrent = 3\n"
    assert read_scenario(written(tmp_path, told), {}).tenants["acme-1"].ttft_ms == 50
    for wrong, near in (
        ("tenants.acme", "acme-"),
        ("tenants.nobody", "acme-0, acme-1"),
        ("front.quotas.x", "known"),
    ):
        with pytest.raises(ConfigError, match=rf"key `{wrong}`.*no \[\[workload\]\] sends as.*{near}"):
            read_scenario(written(tmp_path, f"{sending}[{wrong}]\n"), {})
    with pytest.raises(ConfigError, match=r"key `front.routes.other`: 'other' is a model that no pool serves"):
        read_scenario(None, {"front.routes.other.transfers_to": []})


def test_a_server_s_tenants_and_models_need_not_all_be_simulated() -> None:
    base = Layer("serve.toml", {"front": {"quotas": {"acme": {"concurrent": 3}}, "routes": {"other": {}}}})
    assert "acme" in read_scenario(None, {}, base).front.quotas


def test_a_recording_says_itself_who_sends(tmp_path: Path) -> None:
    replay = '[[workload]]\nkind = "replay"\npath = "run.jsonl"\n'
    assert read_scenario(written(tmp_path, f"{replay}[tenants.acme]\nttft_ms = 50\n"), {}).tenants
    with pytest.raises(ConfigError, match="known here: fixed"):
        read_scenario(written(tmp_path, f'{replay}tenant = "fixed"\n[tenants.acme]\nttft_ms = 50\n'), {})


@pytest.mark.parametrize("text", ["", "# nothing but this\n"])
def test_a_file_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"file.toml says nothing; leave it out"):
        read_scenario(written(tmp_path, text), {})


def test_a_change_of_what_is_no_entry_and_no_key_names_both(tmp_path: Path) -> None:
    path = written(tmp_path, TWO)
    with pytest.raises(ConfigError, match=r"key `pools.cod.replicas`.*\(chat, code\).*did you mean `pools.code`"):
        read_scenario(path, {"pools.cod.replicas": 7})
    with pytest.raises(ConfigError, match=r"did you mean `pools.scheduler`"):
        read_scenario(path, {"pools.schedular.max_seqs": 7})
    assert read_scenario(None, {"pools.pool.replicas": 7}).pools[0].replicas == 7  # the name that it has by default


def test_parameters_without_a_type_are_those_of_the_default_policy() -> None:
    scenario = read_scenario(None, {"pools.scheduler.chunk.params.tokens": 64, "front.router.params.decode": 0.5})
    assert scenario.pools[0].scheduler.chunk == PolicyChoice("constant", {"tokens": 64})
    assert scenario.front.router == PolicyChoice("cost_aware", {"decode": 0.5})


def test_a_folder_is_answered_with_the_scenario_in_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; name a file: it has none"):
        read_scenario(tmp_path, {})
    (tmp_path / "scenario.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"such as .*scenario\.json"):
        read_scenario(tmp_path, {})
