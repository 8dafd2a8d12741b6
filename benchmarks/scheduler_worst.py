"""The slowest steps of the LLM machine with churn, and what was done in them.

    PYTHONPATH=src:. python benchmarks/scheduler_worst.py [--running 4096] [--block 16] [--steps 1024] [--replays 3]
        [--slowest 20]

The world of `benchmarks/scheduler.py churn`, the same in every replay. Each replay is a process of its own; a step's
time is the least CPU time that any of them took for it, so that a busy host tells little. Per step: sequences
that ended, began, had a chunk and joined the decodes; blocks granted, entered in the prefix index and evicted; bytes of
tables that grew; microseconds of the garbage collector; page faults.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.scheduler_ours import Churn, done
from benchmarks.scheduler_serve import NEVER, YOUNG_MAX

from headway.core.events import Stopped

Row = dict[str, int]
clock = time.thread_time_ns


def page_faults() -> int:
    """Of this process, without input."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Watched(Churn):
    """Churn that says what each step did."""

    def __init__(self, running: int, block: int) -> None:
        super().__init__("ours", running, block, 3048, "fcfs", 1.0)
        self.pause_ns = 0

    def observe(self, phase: str, _facts: dict[str, int]) -> None:
        """A callback of the collector."""
        self.pause_ns += clock() if phase == "stop" else -clock()

    def tables(self) -> list[int]:
        """Bytes of what could grow in a step."""
        machine = self.system.machine
        assert machine is not None
        m = machine.state
        return [
            sys.getsizeof(one)
            for one in (*m.pool.index._heads.dicts, m.pool.free, m.seqs, m.calendar, m.dues, *m.wheel)
        ]

    def row(self) -> Row:
        """One step; arrivals are no part of it."""
        machine = self.system.machine
        assert machine is not None
        self.now += 1
        event = done(self.now, tuple(Stopped(seq) for seq in self.ends.pop(self.now, ()) if seq in self.system.seqs))
        pool, tables, pauses = machine.state.pool, self.tables(), self.pause_ns
        evicted, last = pool.evicted, pool.index._last
        before = page_faults(), clock()
        machine.step_done(event)
        folded = clock(), page_faults()
        self.arrive()
        again = page_faults(), clock()
        plan = machine.plan(self.now)
        planned = clock(), page_faults()
        assert plan is not None
        row = {
            "step": self.now,
            "ns": folded[0] - before[1] + planned[0] - again[1],
            "ended": len(event.stopped),
            "began": len(plan.new),
            "chunks": len(plan.chunks),
            "joined": len(plan.join),
            "granted": len(plan.grant),
            "entered": pool.index._last - last,
            "evicted": pool.evicted - evicted,
            "grown": sum(max(0, now - then) for now, then in zip(self.tables(), tables, strict=True)),
            "gc_us": (self.pause_ns - pauses) // 1000,
            "faults": folded[1] - before[0] + planned[1] - again[0],
        }
        for ended in event.stopped:
            del self.requests[ended.seq]
        self.draw([chunk.seq for chunk in plan.chunks if chunk.start == 0])
        if self.now % 2 == 0:
            self.system.report()
        return row


def replay(running: int, block: int, steps: int) -> list[Row]:
    """What a process prints."""
    load = Watched(running, block)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, NEVER, NEVER)
    gc.callbacks.append(load.observe)
    return [load.row() for _ in range(steps)]


def least(replays: Sequence[Sequence[Row]]) -> list[Row]:
    """Of each step, the replay that took least."""
    return [min(rows, key=lambda row: row["ns"]) for rows in zip(*replays, strict=True)]


def main() -> None:
    """Replay, and show the slowest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("running", 4096), ("block", 16), ("steps", 1024), ("replays", 3), ("slowest", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if not given.replays:  # a replay's own process
        print(json.dumps(replay(given.running, given.block, given.steps)))
        return
    words = [sys.executable, __file__, "--replays", "0"]
    words += [word for name in ("running", "block", "steps") for word in (f"--{name}", str(getattr(given, name)))]
    rows = least([json.loads(subprocess.check_output(words)) for _ in range(given.replays)])
    rows.sort(key=lambda row: -row["ns"])
    middle, high = rows[len(rows) // 2]["ns"] / 1e6, rows[len(rows) // 100]["ns"] / 1e6
    print(f"least of {given.replays}: p50 {middle:.3f} p99 {high:.3f} worst {rows[0]['ns'] / 1e6:.3f} ms")
    for row in rows[: given.slowest]:
        print(f"{row['ns'] / 1e6:7.3f} ms  " + "  ".join(f"{name} {row[name]}" for name in row if name != "ns"))


if __name__ == "__main__":
    main()
