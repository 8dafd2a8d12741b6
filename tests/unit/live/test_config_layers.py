from pathlib import Path

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.live.config_layers import Layer, build, env_layers, file_layer, nested


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    port: int = 8000
    host: str = "localhost"


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    server: Inner = Inner()
    extra: Inner | None = None
    names: tuple[str, ...] = ()
    tables: dict[str, Inner] = {}


def origins(*layers: Layer) -> dict[str, tuple[object, str]]:
    return {sourced.key: (sourced.value, sourced.origin) for sourced in build(Outer, layers)[1]}


def test_a_later_layer_wins_and_is_named_as_origin() -> None:
    # SPEC M1
    file = Layer("a.toml", {"server": {"port": 1, "host": "h"}})
    found = origins(file, Layer("flag --port", nested("server.port", 2)))
    assert found["server.port"] == (2, "flag --port")
    assert found["server.host"] == ("h", "a.toml")
    assert found["names"] == ((), "default")


def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_known() -> None:
    with pytest.raises(ConfigError, match=r"a\.toml: unknown key `server\.prot`; did you mean `server\.port`\?"):
        build(Outer, [Layer("a.toml", {"server": {"prot": 1}})])


def test_a_key_like_no_other_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match="known here: extra, names, server, tables"):
        build(Outer, [Layer("a.toml", {"zzz": 1})])


def test_a_value_of_the_wrong_type_names_key_and_origin() -> None:
    with pytest.raises(ConfigError, match=r"a\.toml: key `server\.port`: expected integer, got text"):
        build(Outer, [Layer("a.toml", {"server": {"port": "x"}})])


def test_a_value_where_a_section_belongs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"key `server`: expected a table"):
        build(Outer, [Layer("a.toml", {"server": 3})])


def test_an_optional_section_is_checked_like_any_other() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `extra\.hots`; did you mean `extra\.host`"):
        build(Outer, [Layer("a.toml", {"extra": {"hots": "x"}})])
    assert origins(Layer("a.toml", {"extra": {"port": 3}}))["extra.port"] == (3, "a.toml")


def test_the_environment_holds_secrets_only() -> None:
    assert env_layers({"HW__AUTH__KEY": "s", "PATH": "x"}, "HW", ["auth.key"]) == [
        Layer("environment HW__AUTH__KEY", {"auth": {"key": "s"}})
    ]
    with pytest.raises(ConfigError, match=r"HW__SERVER__PORT: the environment holds secrets only"):
        env_layers({"HW__SERVER__PORT": "1"}, "HW", ["auth.key"])


@pytest.mark.parametrize(("key", "tree"), [("a.b", {"a": {"b": 1}}), ('a."/v1.5/x".b', {"a": {"/v1.5/x": {"b": 1}}})])
def test_a_part_of_a_key_may_be_quoted(key: str, tree: dict[str, object]) -> None:
    assert nested(key, 1) == tree


def test_two_layers_add_to_one_table_of_tables() -> None:
    file = Layer("a.toml", {"tables": {"x": {"port": 1}, "y": {"port": 2}}})
    built, sources = build(Outer, [file, Layer("flag --set", nested("tables.y.host", "h"))])
    assert built.tables == {"x": Inner(port=1), "y": Inner(port=2, host="h")}
    assert {"a.toml, flag --set"} == {sourced.origin for sourced in sources if sourced.key == "tables"}


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "x.toml"
    broken.write_text("server = [")
    with pytest.raises(ConfigError, match=r"x\.toml is not TOML"):
        file_layer(broken)
    with pytest.raises(ConfigError, match="cannot be read"):
        file_layer(tmp_path / "none.toml")
