from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.adapters.gateway.tenants import KeyTable
from headway.cli.config import app
from headway.core.errors import ConfigError
from headway.live.config import Config, Host, gateway_settings, layers, resolve
from headway.live.config_reference import REFERENCE_HEAD, reference

RUN = CliRunner()


def test_validate_names_the_key_and_leaves_with_the_usage_code(tmp_path: Path) -> None:
    # SPEC M1
    file = tmp_path / "a.toml"
    file.write_text("[server]\nprot = 1\n")
    result = RUN.invoke(app, ["validate", str(file)])
    assert result.exit_code == 2
    assert "did you mean `server.port`" in result.output
    assert "more may be found" in result.output


def test_validate_says_how_much_was_given(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 1\n")
    result = RUN.invoke(app, ["validate", str(file)])
    assert (result.exit_code, result.output.split(",")[0]) == (0, "valid: 1 value(s) given")


def test_show_tells_origin_and_adjustments(tmp_path: Path) -> None:
    # SPEC M1
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 1\n")
    lines = RUN.invoke(app, ["show", str(file), "--set", "server.host=h"]).output.splitlines()
    shown = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert shown["server.port"] == ["1", str(file)]
    assert shown["server.host"] == ['"h"', "flag", "--set"]
    assert shown["engine.threads"][0] == "="


def test_show_keeps_keys_to_itself() -> None:
    # SPEC M5
    keys = f'[{{hash = "sha256:{"abcdef":0<64}", tenant = "a"}}]'
    output = RUN.invoke(app, ["show"], env={"HEADWAY__AUTH__KEYS": keys}).output
    assert "abcdef" not in output
    assert "environment HEADWAY__AUTH__KEYS" in output


def test_a_hashed_key_opens_what_its_plain_form_asks_for(tmp_path: Path) -> None:
    # SPEC M5
    file = tmp_path / "a.toml"
    line = RUN.invoke(app, ["hash-key"], input="sk-abc\n").output
    file.write_text(f"[[auth.keys]]\n{line}tenant = 'team'\n")
    keys = KeyTable(gateway_settings(resolve(layers(file, {}, []), Host(1)).config).auth)
    assert keys.tenant("Bearer sk-abc").id == "team"


@pytest.mark.parametrize("key", ["", "\n", "a b", "schlüssel"])
def test_what_cannot_travel_in_a_header_is_no_key(key: str) -> None:
    result = RUN.invoke(app, ["hash-key"], input=key)
    assert isinstance(result.exception, ConfigError)


def test_a_key_is_never_taken_from_the_command_line() -> None:
    # SPEC M5
    assert RUN.invoke(app, ["hash-key", "sk-abc"]).exit_code == 2


def test_reference_prints_the_page() -> None:
    assert RUN.invoke(app, ["reference"]).output == reference(Config, REFERENCE_HEAD)
