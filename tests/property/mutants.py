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
PLAY = """
from random import Random
from tests.property.differential import DifferentialWorld
from tests.property.llm_world import ORDERS, World, random_config
from tests.property.pool_model import PoolDriver
for seed in range(700):
    rng = Random(f"mutant-{seed}")
    kind = World if seed % 3 == 0 else DifferentialWorld
    kind(rng, random_config(rng, (ORDERS[seed % len(ORDERS)],))).play()
    if seed % 20 == 0:
        driver = PoolDriver(Random(seed), 12, weak=seed % 40 == 0)
        for turn in range(400):
            driver.turn()
        driver.drain()
"""


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


def survives(mutant: Mutant | None) -> bool:
    """True when the worlds notice nothing; None plays the tree as it is.

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
        command = [sys.executable, "-c", PLAY]
        return subprocess.run(command, cwd=copy, env=env, capture_output=True, check=False).returncode == 0
