"""No order that comes from a set reaches a decision: the same worlds leave byte-identical logs under other hash seeds.

Here is what lets `tools/run_tests.py` run the long tests of the ring under one hash seed only: the worlds that make a
decision of every kind, and every example, in processes of their own.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.sim.systems import ran
from tests.sim.test_decision_layers import WORLDS

from headway.cli.scenario import scenario_of

ROOT: Final = Path(__file__).parents[2]
SHORT: Final[dict[str, object]] = {"workload.count": 60, "sim.until_s": 40.0}
SHORTER: Final[dict[str, dict[str, object]]] = {"flux_100qps": {**SHORT, "sim.until_s": 0.5}}  # hundreds of devices
SCRIPT: Final = "from tests.sim.test_hash_order import digests; print(*digests(), sep='\\n')"
SHUFFLED: Final = "print(*{f'rep-{number}' for number in range(20)}, sep='\\n')"


def digests() -> list[str]:
    """One line per world: its name and the digest of the event log that it leaves."""
    worlds = {name: build().sim.log for name, build in WORLDS.items()}
    for path in sorted((ROOT / "examples").glob("*.toml")):
        worlds[path.stem] = ran(scenario_of(path, SHORTER.get(path.stem, SHORT)), log=True)[0].sim.log
    assert all(len(log.lines) > 50 for log in worlds.values()), {name: len(log.lines) for name, log in worlds.items()}
    return [f"{name} {log.digest()}" for name, log in worlds.items()]


def printed(script: str, hash_seed: str) -> list[str]:
    """What a process with this hash seed prints, line by line."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "src:."}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )


def test_every_kind_of_decision_and_every_example_leaves_the_same_log_under_other_hash_seeds() -> None:  # SPEC J6
    first, second = printed(SCRIPT, "1"), printed(SCRIPT, "2")
    assert first == second
    assert len(first) > 10


def test_the_two_hash_seeds_do_order_sets_differently() -> None:  # so the test above can fail
    first, second = printed(SHUFFLED, "1"), printed(SHUFFLED, "2")
    assert first != second
    assert sorted(first) == sorted(second)
