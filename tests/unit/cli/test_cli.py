import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import click
import pytest
from typer.main import get_command

from headway import __version__
from headway.cli import COMMANDS, EXIT_OK, EXIT_USAGE, available_commands, help_text, main

HEAVY = (
    *("torch", "diffusers", "numpy", "pyarrow", "PIL", "sqlalchemy", "obstore", "ray"),
    *("aiohttp", "starlette", "uvicorn", "jinja2", "transformers", "tokenizers", "huggingface_hub"),
    *("rich", "urllib.request"),
    *("opentelemetry", "headway.sim.driver", "headway.sched.nodes", "headway.live.config", "headway.adapters.gateway"),
)


def exit_code(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return stopped.value.code


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, resource\n"
        "from headway.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])\n"
        "print('CPU', resource.getrusage(resource.RUSAGE_SELF).ru_utime)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    sys.stdout.write(f"{answer.stdout.splitlines()[-1]} s of user time for `headway --help`\n")
    assert "HEAVY []" in answer.stdout.splitlines()


def test_help_of_no_command_imports_what_only_running_it_needs() -> None:
    """One process for all: `sys.modules` only grows, so what is clean at the end was clean for each."""
    program = (
        "import sys\n"
        "from headway.cli import available_commands, main\n"
        "for name in available_commands():\n"
        "    try:\n        main([name, '--help'])\n    except SystemExit as stop:\n        assert not stop.code\n"
        f"    print('HEAVY', name, [each for each in {HEAVY!r} if each in sys.modules])\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    told = [line for line in answer.stdout.splitlines() if line.startswith("HEAVY")]
    assert told == [f"HEAVY {name} []" for name in available_commands()]


def test_help_lists_exactly_the_commands_whose_module_exists() -> None:
    text = help_text()
    listed = [name for name in COMMANDS if f"\n  {name} " in text]
    assert listed == list(available_commands())


def test_a_command_without_a_module_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.find_spec", lambda name: None)
    assert available_commands() == {}
    assert exit_code("doctor") == EXIT_USAGE


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == EXIT_OK
    assert capsys.readouterr().out.strip() == __version__


def test_no_command_prints_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == EXIT_USAGE
    assert "Usage: headway COMMAND" in capsys.readouterr().err


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("docter") == EXIT_USAGE
    assert "unknown command `docter`; did you mean `doctor`?" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(available_commands()))
def test_every_offered_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(name, "--help") == EXIT_OK
    assert f"headway {name}" in capsys.readouterr().out


def shown_options(command: click.Command) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        yield parameter.name or "", getattr(parameter, "help", None) or ""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from shown_options(inner)


@pytest.mark.parametrize("name", list(available_commands()))
def test_help_pages_are_plain_text_and_no_command_installs_completion(name: str) -> None:
    options = dict(shown_options(get_command(import_module(f"headway.cli.{name}").app)))
    assert "install_completion" not in options
    assert {key: text for key, text in options.items() if "\\" in text} == {}, "pages have no markup to escape from"
