"""Runs every test of `make test` in lanes beside each other, and closes with one line about all of them.

    python tools/run_tests.py [--types] [arguments of pytest]

Two lanes take one job after the other: first their own, then what is left of the common ones, so both end at about the
same time. One begins with the tests that start servers, so that those have a core to themselves and never meet each
other; the other begins with mypy (`--types`) and the simulations. Servers wait for half of their time, and a third lane
of the lowest priority lives on that: the rest of the ring's tests (pure, one process, no clock). All run under hash
seed 0, and the ring's unit tests again under 1. That no order which comes from a set reaches a decision is
tests/sim/test_hash_order.py's to show: byte-identical logs under other hash seeds, of worlds that make a decision of
every kind; and tests/property/test_policy_laws.py's, of every policy. The long runs of tests/sim and tests/property
would only repeat those at ten times the price. With arguments of your own there is one lane, and they say what runs.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
UNITS: Final = ("tests/unit/core", "tests/unit/cost", "tests/unit/sched")
SIMULATIONS: Final = "tests/sim"
RING: Final = (*UNITS, SIMULATIONS, "tests/property")
SERVERS: Final = ("tests/e2e", "tests/integration")
OTHERS: Final = ("tests",)  # but what has a job of its own
COMMON: Final = (  # the longest first, none so long that a lane waits for another at the end
    ("tests/unit/engines/diffusion",),
    OTHERS,
    ("tests/unit/engines/llm",),
    ("tests/unit/bench",),
    ("tests/unit/cli",),
    ("tests/unit/adapters",),
)
TYPES: Final = (("mypy",), ("mypy", "--explicit-package-bases", "tools"))
QUIET: Final = ("-q", "-p", "no:cacheprovider", "--durations=5", "--durations-min=3")
MARKS: Final = "not slow and not device and not peer"
HEARTBEAT_S: Final = 30.0
LOWEST: Final = 19  # priority, as `nice` counts
UNHURRIED: Final = {"CI": "true"}  # with it, hypothesis sets no deadline
NOTHING_COLLECTED: Final = 5  # exit code of pytest
_CLOSING: Final = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s")
_ORDER: Final = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error", "errors")


class Job(NamedTuple):
    """One process of a lane."""

    name: str
    command: tuple[str, ...]
    hash_seed: int = 0


def counted(line: str) -> Counter[str]:
    """Return what pytest's closing line counts; nothing for any other line."""
    found = _CLOSING.match(line.strip())
    if found is None:
        return Counter()
    return Counter({name: int(number) for number, name in (part.split() for part in found[1].split(", "))})


def closing(counts: Counter[str], seconds: float) -> str:
    """Return one line about all runs, as pytest would print it."""
    shown = ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])
    return f"===== {shown or 'no tests ran'} in {seconds:.2f}s ====="


def command(*arguments: str) -> list[str]:
    """Return how pytest is called."""
    return [sys.executable, "-m", "pytest", "-m", MARKS, *arguments]


def environment(hash_seed: int) -> dict[str, str]:
    """One thread per process: tests share few cores, and torch's pool would only fight over them."""
    return {**os.environ, "PYTHONHASHSEED": f"{hash_seed}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def jobs(name: str, folders: Sequence[str], hash_seed: int = 0) -> list[Job]:
    """The job that runs some folders, if this tree has one of them."""
    there = [folder for folder in folders if (ROOT / folder).is_dir()]
    return [Job(name, tuple(command(*QUIET, *there)), hash_seed)] if there else []


class Plan(NamedTuple):
    """What each lane begins with, and what two of them share."""

    live: list[Job]
    pure: list[Job]
    patient: list[Job]
    shared: deque[Job]


def plan(types: bool) -> Plan:
    """Of all the tests in this tree."""
    live = [job for folder in SERVERS for job in jobs(folder, (folder,))]
    checks = [Job(" ".join(words), (sys.executable, "-m", *words)) for words in TYPES] if types else []
    rest = tuple(folder for folder in RING if folder not in (SIMULATIONS, *UNITS))
    patient = [*jobs(" ".join(rest), rest), *jobs("the ring's units", UNITS)]
    patient += jobs("the ring's units, under hash seed 1", UNITS, hash_seed=1)
    apart = [f"--ignore={folder}" for folders in (RING, SERVERS, *COMMON) for folder in folders if folders != OTHERS]
    others = Job("all others", tuple(command(*QUIET, *apart, *OTHERS)))
    shared = [[others] if folders == OTHERS else jobs(" ".join(folders), folders) for folders in COMMON]
    return Plan(
        live, [*checks, *jobs(SIMULATIONS, (SIMULATIONS,))], patient, deque(job for some in shared for job in some)
    )


class Lane:
    """Runs its own jobs and then common ones, one after the other; shows what a job said when it is over."""

    def __init__(self, own: Sequence[Job], shared: deque[Job], priority: int = 0) -> None:
        self.now = ""
        self.codes: list[int] = []
        self.counts = Counter[str]()
        self._own, self._shared, self._priority = deque(own), shared, priority

    def run(self) -> None:
        """Run until nothing is left."""
        while (job := self._next()) is not None:
            began, self.now = time.monotonic(), job.name
            with tempfile.TemporaryFile() as out:
                given = {**environment(job.hash_seed), **(UNHURRIED if self._priority else {})}
                process = subprocess.Popen(job.command, cwd=ROOT, env=given, stdout=out, stderr=out)
                if self._priority:
                    os.setpriority(os.PRIO_PROCESS, process.pid, self._priority)
                code = process.wait()
                said = os.pread(out.fileno(), 1 << 28, 0)
            self.codes.append(0 if code == NOTHING_COLLECTED else code)
            text = said.decode(errors="replace")
            self.counts += sum((counted(line) for line in text.splitlines()), Counter[str]())
            print(f"\n[tests] {job.name}: {time.monotonic() - began:.0f} s\n{text}", end="", flush=True)
        self.now = ""

    def _next(self) -> Job | None:
        for waiting in (self._own, self._shared):
            with contextlib.suppress(IndexError):
                return waiting.popleft()
        return None


def every(types: bool) -> int:
    """Run all lanes to their end; return the first exit code that is not 0."""
    began = time.monotonic()
    live, pure, patient, shared = plan(types)
    lanes = [Lane(live, shared), Lane(pure, shared), Lane(patient, deque(), LOWEST)]
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(HEARTBEAT_S)
            running = ", ".join(lane.now for lane in lanes if lane.now)
            if running:
                print(f"[tests] {time.monotonic() - began:.0f} s, under way: {running}", flush=True)
    print(closing(sum((lane.counts for lane in lanes), Counter[str]()), time.monotonic() - began), flush=True)
    return next((code for lane in lanes for code in lane.codes if code), 0)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked, or everything."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt themselves, and their children
    types, asked = arguments[:1] == ["--types"], [each for each in arguments if each != "--types"]
    if not asked:
        return every(types)
    checks = [[sys.executable, "-m", *words] for words in TYPES] if types else []
    runs = [*checks, command(*asked)]
    codes = [subprocess.run(words, cwd=ROOT, env=environment(0), check=False).returncode for words in runs]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
