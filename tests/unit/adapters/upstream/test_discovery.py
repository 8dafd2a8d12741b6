"""The file of upstreams: changes are seen, a broken one keeps the old state and is told once."""

import os
from pathlib import Path

import pytest

from headway.adapters.upstream.discovery import WatchedFile, read_upstreams
from headway.core.errors import ConfigError

GOOD = '[[upstreams]]\nname = "a"\nurl = "http://a:1"\nkind = "vllm"\n'


def write(path: Path, text: str, second: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(second * 10**9, second * 10**9))


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(GOOD)
    (tmp_path / "f.json").write_text('{"upstreams": [{"name": "a", "url": "http://a:1", "kind": "vllm"}]}')
    assert read_upstreams(tmp_path / "f.toml") == read_upstreams(tmp_path / "f.json")
    assert read_upstreams(tmp_path / "f.toml")[0].kind == "vllm"


def test_a_change_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    write(path, GOOD, 1)
    watched = WatchedFile(path)
    first = watched.changed()
    assert first is not None
    assert watched.changed() is None
    write(path, GOOD + GOOD.replace('"a"', '"b"'), 2)
    second = watched.changed()
    assert second is not None
    assert [upstream.name for upstream in second] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[upstreams]", "f.toml:"),
        ('[[upstreams]]\nname = "a"\n', "missing required field `url`"),
        (GOOD + "wrong = 1\n", "unknown field `wrong`"),
        (GOOD + GOOD, "are both 'a'"),
    ],
)
def test_a_broken_file_is_told_once_and_forgotten_when_it_is_mended(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "f.toml"
    write(path, GOOD, 1)
    watched = WatchedFile(path)
    watched.changed()
    write(path, text, 2)
    with pytest.raises(ConfigError) as caught:
        watched.changed()
    assert said in str(caught.value)
    assert watched.changed() is None
    assert watched.error == str(caught.value)
    write(path, GOOD, 3)
    assert watched.changed() is not None
    assert watched.error is None


def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    write(path, GOOD, 1)
    watched = WatchedFile(path)
    watched.changed()
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        watched.changed()
    assert watched.changed() is None
    write(path, GOOD, 1)
    assert watched.changed() is not None  # it may be another one of the same time
