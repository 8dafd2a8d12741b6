"""Was the machine ours during a round? A spin loop of fixed work, steal, and the CPU time of everybody else.

As a program it samples twice a second until its stdin ends, and prints one JSON line per sample.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SPIN = 60_000  # about 2 ms
EVERY_S = 0.5
SPIN_P50, SPIN_P90 = 1.15, 1.5  # times the quiet value
OTHERS, STEAL = 0.06, 0.02  # of all cores; what others may take can be set
IDLE_S = 10.0  # of the look at the idle machine that quiet means
HOPELESS = 3.0  # times what others may take


def spin_ms() -> float:
    """CPU time of the loop: it grows where caches, clock or a core's other thread are shared, not when it must wait."""
    began, x = time.thread_time_ns(), 0
    for k in range(SPIN):
        x += k & 7
    return (time.thread_time_ns() - began) / 1e6


def machine() -> tuple[int, int, int]:
    """Ticks of all cores since boot: busy, stolen, all."""
    user, nice, system, idle, wait, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    busy = user + nice + system + irq + soft
    return busy, steal, busy + idle + wait + steal


def tree(pid: int) -> Iterable[int]:
    """A process and its descendants."""
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in listed.read_text().split():
            yield from tree(int(child))


def ticks(pids: Iterable[int]) -> int:
    """CPU time of these processes and of their children that ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += sum(map(int, fields[11:15]))
    return total


class Verdict(NamedTuple):
    """What a round's canary says; shares of all cores, spin relative to the quiet value."""

    spin_p50: float
    spin_p90: float
    others: float
    steal: float
    others_max: float

    @property
    def passes(self) -> bool:
        """The machine was ours."""
        return (
            self.spin_p50 <= SPIN_P50
            and self.spin_p90 <= SPIN_P90
            and self.others <= self.others_max
            and self.steal <= STEAL
        )

    def told(self) -> str:
        """One line."""
        word = "passes" if self.passes else "FAILS"
        return (
            f"canary {word}: spin p50 {self.spin_p50:.2f} (max {SPIN_P50}) p90 {self.spin_p90:.2f} (max {SPIN_P90}) of "
            f"quiet, others {self.others:.1%} (max {self.others_max:.0%}), steal {self.steal:.1%} (max {STEAL:.0%})"
        )


class Canary:
    """Sits beside a round."""

    def __init__(self, others_max: float = OTHERS) -> None:
        """Looks at the idle machine first, as it will look at rounds: a loop that runs twice a second finds caches and
        clock as others left them, and never comes near the best of many in a row."""
        self._others_max = others_max
        self.quiet_ms = 1.0
        self.quiet_ms = self.alone(IDLE_S).spin_p50

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._own, self._before = ticks(tree(os.getpid())), machine()

    def stop(self) -> Verdict:
        """Call it while the processes of the round still live."""
        own, after = ticks(tree(os.getpid())) - self._own, machine()
        out, _ = self._process.communicate()
        spins = sorted(json.loads(line) for line in out.splitlines())
        busy, steal, every = (b - a for a, b in zip(self._before, after, strict=True))
        return Verdict(
            spins[len(spins) // 2] / self.quiet_ms,
            spins[int(len(spins) * 0.9)] / self.quiet_ms,
            max(0, busy - own) / every,
            steal / every,
            self._others_max,
        )

    def is_hopeless(self) -> bool:
        """Others have taken so much until now that the round cannot pass any more, or hardly."""
        busy, _, every = (b - a for a, b in zip(self._before, machine(), strict=True))
        others = busy - (ticks(tree(os.getpid())) - self._own)
        return others > HOPELESS * self._others_max * every

    def alone(self, seconds: float) -> Verdict:
        """Look at the machine while nothing of ours runs."""
        self.start()
        time.sleep(seconds)
        return self.stop()


def main() -> None:
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        print(spin_ms(), flush=True)


if __name__ == "__main__":
    main()
