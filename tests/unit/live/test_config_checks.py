"""What cannot work is refused before anything is loaded: `headway config validate` says it too."""

from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.live.config import Host, layers, resolve, set_layer

HOST = Host(cores=8)


# SPEC M1, B6
@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["scheduler.step_tokens=2"], ("step_tokens = 2", "max_seqs = 64")),
        (["scheduler.chunk.type=nonsense"], ("chunk.type", "nonsense", "tpot_budget")),
        (["scheduler.order.type=lpm", "scheduler.prefix_cache=false"], ("lpm", "prefix_cache")),
        (["scheduler.swap=true"], ("swap = true", "host_slots")),
        (["scheduler.pool=counting", "scheduler.prefix_cache=false"], ("scheduler.pool", "engine.kind")),
        (["front.router.type=nope"], ("router.type", "least_tokens")),
        (["front.admission.type=nope"], ("admission.type", "bounded")),
        (["executor.pace.type=nope"], ("pace.type", "on_launch")),
        (
            ["executor.pace.type=just_in_time", "scheduler.async_depth=1"],
            ("executor.pace.type = 'just_in_time'", "scheduler.async_depth >= 2"),
        ),
        (
            ["executor.buckets.rows=[8, 600]", "scheduler.step_tokens=512"],
            ("executor.buckets.rows = [8, 600]", "scheduler.step_tokens = 512"),
        ),
        (
            ["model.replicas=2", "front.pools.prefill=['rep-0']", "front.pools.decode=['rep-2']"],
            ("front.pools.decode names rep-2", "model.replicas = 2"),
        ),
        (["slo./v1/foo.ttft_ms=3"], ('slo."/v1/foo"', "/v1/completions")),
        (["auth.anonymous=x"], ("auth.anonymous", "auth.keys")),
        (["cost.memory_steps=0"], ("cost.memory_steps",)),
        (["front.in_flight_max=-1"], ("front.in_flight_max",)),
        (["model.name=/no/such"], ("model.name = '/no/such'", "no such folder")),
        (
            ["engine.kv_blocks=4", "engine.block_size=16", "engine.max_model_len=65"],
            ("engine.max_model_len = 65", "engine.kv_blocks = 4"),
        ),
        (["front.stream_bytes_max=63"], ("front.stream_bytes_max = 63", "front.stream_bytes_per_token = 64")),
        (["front.pools.prefill=['rep-0']", "front.pools.decode=['rep-0']"], ("front.pools.prefill", "both name rep-0")),
        (["model.name=./owner"], ("model.name = './owner'", "no such folder")),
        (["model.name=smollm2-135m"], ("model.name", "did you mean 'SmolLM2-135M-Instruct'?")),
        (["engine.threads=9", "engine.device=cpu"], ("engine.threads = 9", "8 core(s)")),
        (["scheduler.watermark=4", "engine.kv_blocks=4"], ("[scheduler]", "watermark = 4", "kv_blocks = 4")),
        (["slo./v1/chat.ttft_ms=3"], ('did you mean `[slo."/v1/chat/completions"]`?',)),
        (["auth.keys=[{hash = 'abc', tenant = 'a'}]"], ("auth.keys[0].hash", "sha256:<64 hex digits>")),
    ],
)
def test_what_cannot_work_is_refused_naming_its_keys(assignments: list[str], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve([set_layer(assignment) for assignment in assignments], HOST)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_synthetic_engine_runs_on_a_counting_pool() -> None:
    wanted = ["engine.kind=synthetic", "scheduler.pool=counting", "scheduler.prefix_cache=false"]
    assert resolve([set_layer(each) for each in wanted], HOST).config.scheduler.pool == "counting"


def test_pools_of_replicas_that_are_there_are_taken() -> None:
    wanted = ["model.replicas=2", "front.pools.prefill=['rep-0']", "front.pools.decode=['rep-1']"]
    assert resolve([set_layer(each) for each in wanted], HOST).config.front.pools.decode == ("rep-1",)


# SPEC M1
@pytest.mark.parametrize(
    ("assignments", "unread"),
    [
        (["engine.kind=synthetic", "engine.dtype=float32", "model.name=x"], ["model.name", "engine.dtype"]),
        (["engine.threads=1", "engine.device=cpu", "engine.synthetic.step_us=5"], ["engine.synthetic.step_us"]),
        (["engine.kind=synthetic", "engine.synthetic.step_us=5"], []),
        (
            ["engine.threads=1", "engine.device=cpu", "engine.kv_blocks=9", "engine.kv_memory_mb=9"],
            ["engine.kv_memory_mb"],
        ),
    ],
)
def test_a_value_that_the_engine_does_not_read_is_told(assignments: list[str], unread: list[str]) -> None:
    adjusted = resolve([set_layer(assignment) for assignment in assignments], HOST).adjustments
    assert [adjustment.key for adjustment in adjusted if "without effect" in adjustment.reason] == unread


def test_a_model_of_the_hub_is_not_asked_for() -> None:
    assert resolve([set_layer("model.name=no-such-owner/no-such-model")], HOST).adjustments


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.name: .*has no config\.json"):
        resolve([set_layer(f"model.name={tmp_path}")], HOST)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[scheduler]\nstep_tokens = 2\n", "step_tokens"),
        ("[front.pools]\nprefill = ['rep-1']\ndecode = ['rep-0']\n", "front.pools.prefill"),
        ("[slo.'/v1/x']\nttft_ms = 3\n", "slo"),
        ("[telemetry]\notlp_endpoint = 'x'\n", "telemetry.otlp_endpoint"),
    ],
)
def test_a_combination_that_cannot_work_names_the_file(text: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(layers(file, {}, []), HOST)
    assert str(caught.value).startswith(f"{file}: ")
    assert key in str(caught.value)


UPSTREAM = "upstreams=[{name='a', url='http://127.0.0.1:1'}]"


def processes(*assignments: str) -> int:
    given = [set_layer(assignment) for assignment in ("server.processes=3", *assignments)]
    return resolve(given, HOST).config.server.processes


def test_several_processes_need_something_to_relay() -> None:
    assert processes(UPSTREAM) == 3
    with pytest.raises(ConfigError, match=r"server\.processes = 3: only requests to upstreams are spread"):
        processes("engine.kind=synthetic")


def test_several_processes_need_a_system_that_spreads_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match=r"server\.processes = 3: only Linux"):
        processes(UPSTREAM)


def test_supervision_of_further_processes_counts_without_own_models() -> None:
    more = set_layer("supervisor.drain_s=3")
    alone = resolve([set_layer(UPSTREAM), more], HOST)
    several = resolve([set_layer(UPSTREAM), more, set_layer("server.processes=2")], HOST)
    assert "supervisor.drain_s" in [one.key for one in alone.adjustments]
    assert "supervisor.drain_s" not in [one.key for one in several.adjustments]
