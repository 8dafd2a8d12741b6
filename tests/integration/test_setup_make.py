"""The make targets pass on what they are given; nothing is run (`make -n`)."""

import os
import shutil
import subprocess

import pytest
from tools.run_tests import TYPES
from tools.setup_env import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


def planned(*arguments: str) -> list[str]:
    command = ["make", "-n", "--no-print-directory", *arguments]
    # What the make that runs this test was given is not for this one.
    outer = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "VENV", "PORT", "ARGS")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return [" ".join(line.split()) for line in answer.stdout.splitlines()]


def test_serve_sets_up_and_then_becomes_the_server() -> None:
    assert planned("serve") == ["python3 tools/setup_env.py --venv .venv serve", "exec .venv/bin/headway serve"]


def test_port_and_arguments_pass_through() -> None:
    serve = planned("serve", "PORT=8123", "ARGS=--model DIR")[-1]
    assert serve == "exec .venv/bin/headway serve --port 8123 --model DIR"


def test_an_interpreter_and_an_environment_can_be_named() -> None:
    first, last = planned("serve", "PYTHON=/opt/py/python3", "VENV=mine")
    assert first == "/opt/py/python3 tools/setup_env.py --venv mine --python /opt/py/python3 serve"
    assert last == "exec mine/bin/headway serve"


def test_every_test_is_run_by_one_tool() -> None:
    assert planned("test")[-1] == ".venv/bin/python tools/run_tests.py --types"
    assert planned("pytest", "ARGS=tests/arch")[-1] == ".venv/bin/python tools/run_tests.py tests/arch"


def test_lint_checks_style_types_and_imports() -> None:
    tools = [line.split()[0].removeprefix(".venv/bin/") for line in planned("lint")[1:]]
    assert tools == ["ruff", "mypy", "mypy", "lint-imports"]


def test_what_is_proven_is_linted_too() -> None:
    words = [line.removeprefix(".venv/bin/") for line in planned("test")[1:]]
    assert words == ["ruff check .", "lint-imports", "python tools/run_tests.py --types"]
    types = [line.removeprefix(".venv/bin/") for line in planned("lint") if "mypy" in line]
    assert types == [" ".join(each) for each in TYPES]
