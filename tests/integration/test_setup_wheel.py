"""A wheel of the tree, in an empty folder and an environment that holds only what it declares (no torch)."""

import json
import subprocess
from pathlib import Path

import pytest
from tools.acceptance import fetch, own_environment, serving
from tools.scratch_env import build_wheel, make_env

from headway.cli import available_commands

TORCH_FREE = {
    "simulate": ["simulate", "--requests", "20"],
    "policies": ["policies"],
    "config": ["config", "show"],
    "models": ["models"],
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel and its declared packages."""
    folder = tmp_path_factory.mktemp("wheel")
    return make_env(folder / "env", build_wheel(folder))


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = own_environment(folder / "state") | {"HOME": str(folder)}
    command = [str(installed / "headway"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_torch_is_not_there(installed: Path, tmp_path: Path) -> None:
    answer = subprocess.run([installed / "python", "-c", "import torch"], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in answer.stderr


def test_installed_help_offers_every_command(installed: Path, tmp_path: Path) -> None:
    answer = run(installed, tmp_path, "--help")
    assert answer.returncode == 0, answer.stderr
    assert [name for name in available_commands() if f"\n  {name} " not in answer.stdout] == []


def test_doctor_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    answer = run(installed, tmp_path, "doctor", "--json")
    assert answer.returncode == 1, answer.stderr
    states = {finding["name"]: finding["state"] for finding in json.loads(answer.stdout)["findings"]}
    assert states["torch"] == "missing"
    assert states["python"] == "ok"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_command_runs_without_torch(name: str, installed: Path, tmp_path: Path) -> None:
    answer = run(installed, tmp_path, *TORCH_FREE[name])
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout


def test_bench_measures_a_synthetic_server_without_torch(installed: Path, tmp_path: Path) -> None:
    with serving([str(installed / "headway"), "serve", "--engine", "synthetic"], tmp_path) as url:
        model = json.loads(fetch(f"{url}/v1/models")[1])["data"][0]["id"]
        answer = run(installed, tmp_path, "bench", url, "--model", model, "--requests", "4", "--max-tokens", "8")
    assert answer.returncode == 0, answer.stderr
    assert "TTFT" in answer.stdout.upper()


@pytest.mark.parametrize("name", list(available_commands()))
def test_every_command_explains_itself_without_torch(name: str, installed: Path, tmp_path: Path) -> None:
    answer = run(installed, tmp_path, name, "--help")
    assert answer.returncode == 0, answer.stderr
