"""Durable jobs under many random kills of gateway and workers (SPEC H3): lost, doubled and wrong jobs are counted.

    PYTHONPATH=src:. python benchmarks/soak.py --kills 200 --seed 7 --log benchmarks/results/soak.log

With `--engine torch` the tiny picture model makes pictures. Each line of the log is one round of kills on a fresh
folder: the tally of `tests/e2e/job_chaos.py`. The last line adds them up.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

import msgspec
from tests.e2e.job_chaos import Storm, Tally, ride

ROUND: Final = 25  # kills on one folder


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--engine", choices=("synthetic", "torch"), default="synthetic")
    asked = parser.parse_args()
    asked.log.parent.mkdir(parents=True, exist_ok=True)
    total = Tally()
    with asked.log.open("w") as log:
        for number in range(-(-asked.kills // ROUND)):
            kills = min(ROUND, asked.kills - number * ROUND)
            with tempfile.TemporaryDirectory(prefix="hw-soak-") as folder:
                tally = ride(Path(folder), _storm(asked.engine, kills, asked.seed * 1000 + number))
            _add(total, tally)
            line = f"round {number + 1}: {_text(tally)}"
            print(line, file=log, flush=True)
            print(line, flush=True)
        line = f"total: {_text(total)}"
        print(line, file=log)
        print(line)
    return int(bool(total.lost or total.doubled or total.wrong))


def _storm(engine: Literal["synthetic", "torch"], kills: int, seed: int) -> Storm:
    """Beside the kills the gateway is ended in order now and then. A start of torch takes a while, so do its jobs."""
    if engine == "synthetic":
        return Storm(kills, seed, end_share=0.2)
    return Storm(kills, seed, engine, gateway_share=0.3, jobs_per_kill=1, steps=40, pause_s=3.0, end_share=0.2)


def _add(total: Tally, tally: Tally) -> None:
    for name in Tally.__struct_fields__:
        setattr(total, name, getattr(total, name) + getattr(tally, name))


def _text(tally: Tally) -> str:
    shown = msgspec.structs.asdict(tally)
    for name in ("lost", "doubled", "wrong"):
        shown[name] = len(shown[name])
    return ", ".join(f"{name} {value}" for name, value in shown.items())


if __name__ == "__main__":
    sys.exit(main())
