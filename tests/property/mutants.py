"""Broken rules that the worlds must notice: one change each, played in a copy of the tree by a process of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ENOUGH = 2  # worlds that notice: one may do so by luck


class Mutant(NamedTuple):
    """Replace `old` by `new` once in a file of `sched/llm`."""

    claim: str
    file: str
    old: str
    new: str


def load() -> tuple[Mutant, ...]:
    """The table beside this file."""
    entries = tomllib.loads((ROOT / "tests/property/mutants.toml").read_text())["mutant"]
    return tuple(Mutant(**entry) for entry in entries)


MUTANTS = load()


def noticed(mutant: Mutant | None, enough: int = ENOUGH) -> list[str]:
    """The worlds that notice, up to so many (0: all of them); None plays the tree as it is.

    Raises ValueError when the text to break is not there exactly once.
    """
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        shutil.copytree(ROOT / "src", copy / "src")
        shutil.copytree(ROOT / "tests/property", copy / "tests/property")
        if mutant is not None:
            target = copy / "src/headway/sched/llm" / mutant.file
            text = target.read_text()
            if text.count(mutant.old) != 1:
                raise ValueError(f"{mutant.claim}: {mutant.old!r} occurs {text.count(mutant.old)} times")
            target.write_text(text.replace(mutant.old, mutant.new))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."]), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "tests.property.mutant_worlds", str(enough)]
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, check=False, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.splitlines()


if __name__ == "__main__":  # how many worlds notice each
    for one in MUTANTS:
        if len(sys.argv) < 2 or one.claim in sys.argv[1:]:
            print(f"{len(noticed(one, 0)):4}  {one.claim}", flush=True)  # noqa: T201  a command
