"""Every command that writes a file refuses an impossible place at once, with one line."""

from pathlib import Path

import pytest
import typer

from headway.cli import EXIT_USAGE, main
from headway.cli.outputs import check_writable, writing
from headway.core.errors import ConfigError

WRITERS = [
    ("trace", "export", "--url", "http://127.0.0.1:1", "-o"),
    ("bench", "http://127.0.0.1:1", "--model", "m", "--out"),
    ("simulate", "--log"),
]


@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
@pytest.mark.parametrize("place", ["no/such/folder/f.json", "."])
def test_an_impossible_output_is_one_line_and_a_usage_error(
    command: tuple[str, ...], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, str(tmp_path / place)])
    told = capsys.readouterr()
    assert (stopped.value.code, told.out, len(told.err.splitlines())) == (EXIT_USAGE, "", 1)
    assert str(tmp_path) in told.err


def test_the_check_leaves_no_file_and_keeps_an_old_one(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("kept")
    check_writable("--out", tmp_path / "new")
    check_writable("--out", old)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "kept"


def test_a_file_as_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_writable("--out", tmp_path / "f" / "g")


def test_a_disk_that_fails_is_one_line_and_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stopped, writing("--out", tmp_path / "b.json"):
        raise OSError(28, "No space left on device")
    assert stopped.value.exit_code == 1
    assert capsys.readouterr().err == f"headway: --out {tmp_path / 'b.json'}: No space left on device\n"
