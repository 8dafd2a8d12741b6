"""CPU time of LLM schedulers alone: steady decode and churn, ours beside the naive one of the tests and any peer.

    PYTHONPATH=src:. python benchmarks/scheduler.py [steady] [churn] [pressure] [orders] [--windows N]
        [--running 64,256] [--peer "vllm=ENV/bin/python benchmarks/scheduler_vllm.py"] [--json FILE]
        [--picture docs/img/scheduler.svg]

No engine: results are empty. Every system runs in a process of its own and does windows of 64 steps in turn, so that a
host that is busy for a while is busy for all. Figures: process CPU time per step, fold in one step and plan one.
Every process has the collector of a live replica (live/garbage.py): frozen once it is warm, young objects collected
when they are many, no full passes.
"""

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.scheduler_plot import picture

WINDOW = 64
OURS = f"{shlex.quote(sys.executable)} benchmarks/scheduler_ours.py"
ORDERS = ("fcfs", "priority", "shortest_predicted", "shortest_remaining", "least_slack", "lpm", "fair")


class Cell(NamedTuple):
    """One load."""

    kind: str
    running: int
    block: int
    order: str = "fcfs"
    share: float = 1.0

    def arguments(self, windows: int) -> str:
        """For a system's process. A steady one must not reach a limit; KV room is for 2,048 outputs with churn."""
        tokens = 3048 if self.kind == "churn" else 800 + WINDOW * windows
        words = f"{self.kind} {self.running} {self.block} {tokens}"
        return f"{words} {self.order} {self.share}" if self.order != "fcfs" or self.share != 1.0 else words


class System:
    """A process that does steps when it is told to."""

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.windows: list[list[int]] = []
        while self._line() != "ready":
            pass  # what it says while it starts

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return line.strip()

    def window(self) -> None:
        """Do one."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{WINDOW}\n")
        self.windows.append(json.loads(self._line()))

    def close(self) -> None:
        """End its process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def row(cell: Cell, name: str, windows: Sequence[Sequence[int]]) -> dict[str, object]:
    """Figures in microseconds; `best`: median step of the window in which that is lowest."""
    steps = sorted(ns / 1e3 for window in windows for ns in window)
    middles = [sorted(window)[len(window) // 2] / 1e3 for window in windows]
    count = len(steps)
    return {
        **cell._asdict(),
        "system": name,
        "mean": sum(steps) / count,
        "best": min(middles),
        "p50": steps[count // 2],
        "p99": steps[count * 99 // 100],
        "worst": steps[-1],
        "steps": count,
    }


def measure(cell: Cell, commands: dict[str, str], windows: int) -> list[dict[str, object]]:
    """Start all systems, then let them take turns."""
    with contextlib.ExitStack() as stack:
        systems = []
        for name, command in commands.items():
            systems.append(System(name, f"{command} {cell.arguments(windows)}"))
            stack.callback(systems[-1].close)
        for _ in range(windows):
            for system in systems:
                system.window()
    rows = [row(cell, system.name, system.windows) for system in systems]
    for one in rows:
        figures = "  ".join(f"{key} {one[key]:9.1f}" for key in ("best", "p50", "p99", "mean", "worst"))
        words = " ".join(str(part) for part in (cell.kind, cell.running, cell.block, cell.order))
        print(f"{words:28s} {one['system']:8s} {figures} us", flush=True)
    return rows


def cells(run: str, running: Sequence[int]) -> list[Cell]:
    """The loads of a run."""
    if run == "orders":
        return [Cell(kind, 256, 16, order) for order in ORDERS for kind in ("steady", "churn")]
    if run == "pressure":  # a request ends with about 76 blocks of 16: preemption all the time
        rooms = [(many, (many + many // 8 + 64) * (3048 // 16 + 2)) for many in running]
        return [Cell("churn", many, 16, share=72 * many / room) for many, room in rooms]
    return [Cell(run, many, block) for many in running for block in (16, 64)]


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="any of steady, churn, pressure, orders; steady and churn if none")
    parser.add_argument("--windows", type=int, default=16, help="of 64 steps, per system and load")
    parser.add_argument("--running", default="64,256,1024,4096")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--slow-max", type=int, default=1024, help="most running for the naive scheduler and peers")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    slow = {"naive": f"{OURS} naive", **dict(peer.split("=", 1) for peer in options.peer)}
    print(
        "garbage collector of every system: frozen once warm, young objects from 50,000 on, no full passes", flush=True
    )
    rows: list[dict[str, object]] = []
    for run in options.runs or ("steady", "churn"):
        for cell in cells(run, [int(many) for many in options.running.split(",")]):
            others = slow if run in ("steady", "churn") and cell.running <= options.slow_max else {}
            rows += measure(cell, {"ours": f"{OURS} ours", **others}, options.windows)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.picture:
        options.picture.write_text(picture(rows))


if __name__ == "__main__":
    main()
