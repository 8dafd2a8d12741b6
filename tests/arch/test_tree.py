"""The tree names no machine, the test run is strict, the import contract covers every package."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.arch.rules import ROOT, SOURCE, exceptions, machine_text

# Kept apart from what follows them below, so that this file does not offend itself.
SLASH, DOT = "/", "."
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEXT_SUFFIXES = frozenset({".py", ".toml", ".md", ".yml", ".yaml", ".txt", ".json", ".c", ".cpp", ".h", ".sh", ""})


def tracked_files() -> list[Path]:
    """Return the files under version control; in an unpacked archive, those of the source folders."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    folders = ("src", "tests", "tools", "docs", "benchmarks")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in found if path.is_file() and path.suffix != ".pyc"]


def contracts() -> list[dict[str, list[str]]]:
    return list(PROJECT["tool"]["importlinter"]["contracts"])


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    found: dict[str, list[str]] = {}
    for path in tracked_files():
        if path.suffix in TEXT_SUFFIXES:
            lines = list(machine_text(path.read_text(encoding="utf-8", errors="replace")))
            if lines:
                found[path.relative_to(ROOT).as_posix()] = lines
    allowed = exceptions()["machine_text"]
    assert {place: lines for place, lines in found.items() if len(lines) > allowed.get(place, 0)} == {}
    assert [place for place in allowed if place not in found] == []


@pytest.mark.parametrize(
    "line",
    [f"open('{SLASH}work/x')", f"see {SLASH}home/me", f"'{SLASH}tmp/abc'", f"pypi{DOT}org/simple", f"{SLASH}opt/pypi"],
)
def test_machine_text_bites(line: str) -> None:
    assert list(machine_text(line)) != []


def test_machine_text_lets_relative_paths_pass() -> None:
    assert list(machine_text("../shared/checks, ~/.cache/headway, /v1/models, /usr/bin/env")) == []


def is_trained_here(path: Path) -> bool:
    return path.suffix == ".safetensors" and (ROOT / "models") in path.parents


def test_no_tracked_file_is_large() -> None:
    files = [path for path in tracked_files() if not is_trained_here(path)]
    assert [str(path) for path in files if path.stat().st_size > 2 * 1024 * 1024] == []


def test_weights_trained_here_stay_under_25_megabytes() -> None:
    files = {path.resolve() for path in tracked_files() if is_trained_here(path)}
    assert sum(path.stat().st_size for path in files) < 25_000_000


def test_pytest_is_strict() -> None:
    options = PROJECT["tool"]["pytest"]["ini_options"]
    assert {"--strict-markers", "--strict-config", "--import-mode=importlib"} <= set(options["addopts"])
    assert options["xfail_strict"] is True
    assert options["filterwarnings"][0] == "error"


def test_torch_is_not_a_core_dependency() -> None:
    names = [re.split(r"[<>=\[; ]", line)[0] for line in PROJECT["project"]["dependencies"]]
    assert not {"torch", "torchvision", "safetensors", "transformers", "diffusers", "gguf"} & set(names)


def test_every_slice_of_sched_is_in_the_independence_contract() -> None:
    slices = {f"headway.sched.{path.name}" for path in (SOURCE / "sched").iterdir() if (path / "__init__.py").is_file()}
    declared = {name for contract in contracts() if contract["type"] == "independence" for name in contract["modules"]}
    assert slices == declared


def test_every_package_has_an_import_contract() -> None:
    packages = {f"headway.{path.name}" for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    layered = [contract for contract in contracts() if "headway.cli" in contract.get("forbidden_modules", [])]
    sources = {name for contract in layered for name in contract["source_modules"]}
    assert packages - sources == {"headway.cli"}


def test_test_folders_have_no_init_files() -> None:
    assert [str(path) for path in (ROOT / "tests").rglob("__init__.py")] == []
