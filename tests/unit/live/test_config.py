from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.live.config import Config, Host, flag_layer, gateway_settings, layers, resolve, set_layer

HOST = Host(cores=8)


def test_no_file_gives_a_configuration_that_works() -> None:
    # SPEC M1
    resolved = resolve([], HOST)
    assert {sourced.origin for sourced in resolved.sources} == {"default"}
    assert resolved.config.server.port == 8000


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    # SPEC M1
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 1\nhost = 'h'\n")
    config = resolve(layers(file, {}, [flag_layer("--port", "server.port", 2)]), HOST).config
    assert (config.server.host, config.server.port) == ("h", 2)


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[model]\nreplicas = 3\n")
    assert resolve(layers(None, {"HEADWAY_CONFIG": str(file)}, []), HOST).config.model.replicas == 3


def test_keys_may_come_from_the_environment_and_only_they() -> None:
    # SPEC M5
    keys = f'[{{hash = "sha256:{0:064x}", tenant = "a"}}]'
    config = resolve(layers(None, {"HEADWAY__AUTH__KEYS": keys}, []), HOST).config
    assert [key.tenant for key in gateway_settings(config).auth.keys] == ["a"]
    with pytest.raises(ConfigError, match=r"secrets only \(auth\.keys, jobs\.url"):
        layers(None, {"HEADWAY__MODEL__NAME": "x"}, [])


def test_an_error_about_a_secret_does_not_show_it() -> None:
    # SPEC M5
    with pytest.raises(ConfigError) as caught:
        resolve(layers(None, {"HEADWAY__AUTH__KEYS": "hunter2"}, []), HOST)
    assert "hunter2" not in str(caught.value)
    assert "auth.keys" in str(caught.value)


def test_threads_left_open_are_shared_among_replicas_and_the_adjustment_is_told() -> None:
    resolved = resolve([set_layer("model.replicas=2")], HOST)
    assert resolved.config.engine.threads == 4
    assert ("engine.threads", 4) in [(a.key, a.value) for a in resolved.adjustments]


def test_threads_given_are_not_adjusted() -> None:
    resolved = resolve([set_layer("engine.threads=3"), set_layer("engine.device=cpu")], HOST)
    assert (resolved.config.engine.threads, resolved.adjustments) == (3, ())


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("model.served_name=dir", "dir"),
        ("model.served_name='a b'", "a b"),
        ("model.served_name=owner/name", "owner/name"),
    ],
)
def test_set_takes_toml_values_and_bare_words(assignment: str, value: str) -> None:
    assert resolve([set_layer(assignment)], HOST).config.model.served_name == value


def test_set_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="key=value"):
        set_layer("model.name")


def test_every_section_refuses_unknown_keys() -> None:
    for section in Config.__struct_fields__:
        if section in ("slo", "aliases"):
            continue
        if section in ("models", "upstreams", "diffusion", "prices"):
            with pytest.raises(ConfigError, match=rf"unknown key `{section}\[0\].no_such_key`"):
                resolve([set_layer(f"{section}=[{{no_such_key=1}}]")], HOST)
            continue
        with pytest.raises(ConfigError, match=f"unknown key `{section}.no_such_key`"):
            resolve([set_layer(f"{section}.no_such_key=1")], HOST)


@pytest.mark.parametrize(("has_cuda", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_device_that_was_left_open_is_found_and_told(has_cuda: bool, device: str) -> None:
    resolved = resolve([], Host(cores=8, has_cuda=has_cuda))
    assert resolved.config.engine.device == device
    assert ("engine.device", device) in [(a.key, a.value) for a in resolved.adjustments]


def test_a_device_that_was_named_is_not_adjusted() -> None:
    resolved = resolve([set_layer("engine.device=cpu")], Host(cores=8, has_cuda=True))
    assert resolved.config.engine.device == "cpu"
    assert "engine.device" not in [a.key for a in resolved.adjustments]


# SPEC M1
@pytest.mark.parametrize(
    ("assignments", "keys"),
    [
        (("engine.kind=synthetic", "engine.device=cuda"), ("engine.kind", "engine.device")),
        (("engine.kernels=native", "engine.device=cuda"), ("engine.kernels", "engine.device")),
    ],
)
def test_what_no_engine_can_do_is_refused_naming_both_keys(assignments: tuple[str, ...], keys: tuple[str, str]) -> None:
    given = [set_layer(assignment) for assignment in assignments]
    with pytest.raises(ConfigError) as caught:
        resolve(given, HOST)
    assert all(key in str(caught.value) for key in keys)
