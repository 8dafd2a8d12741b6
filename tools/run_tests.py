"""Runs every test of `make test` in two lanes beside each other, and closes with one line about all of them.

    python tools/run_tests.py [arguments of pytest]

The ring's tests (pure, one process, no clock) run in one lane, first under hash seed 1 and then under 0: an order that
comes from a set would show as a difference. All others run in the other lane under hash seed 0. With arguments of your
own there is one lane, and they say what runs.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RING: Final = ("tests/unit/core", "tests/unit/cost", "tests/unit/sched", "tests/sim", "tests/property")
MARKS: Final = "not slow and not device and not peer"
_CLOSING: Final = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s")
_ORDER: Final = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error", "errors")


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


def started(arguments: Sequence[str], hash_seed: int, out: int | None) -> subprocess.Popen[bytes]:
    """Start one run; `out`: a file for what it prints, None: ours."""
    return subprocess.Popen(command(*arguments), cwd=ROOT, env=environment(hash_seed), stdout=out, stderr=out)


def ring() -> tuple[str, ...]:
    """The folders of the ring's tests that this tree has."""
    return tuple(folder for folder in RING if (ROOT / folder).is_dir())


def lane(runs: Sequence[tuple[Sequence[str], int]], out: int) -> int:
    """Run one after the other into a file; return the first exit code that is not 0."""
    codes = [started(arguments, seed, out).wait() for arguments, seed in runs]
    return next((code for code in codes if code), 0)


def both() -> int:
    """Run both lanes; show the second while it runs and the first when it is over."""
    began = time.monotonic()
    pure = ring()
    codes: dict[str, int] = {}
    with tempfile.TemporaryFile() as beside, tempfile.TemporaryFile() as here:
        runs = [(("-q", "-p", "no:cacheprovider", *pure), 1), (("-q", "-p", "no:cacheprovider", *pure), 0)]
        other = threading.Thread(target=lambda: codes.update(ring=lane(runs, beside.fileno())))
        other.start()
        rest = started(["--durations=10", *(f"--ignore={folder}" for folder in pure), "tests"], 0, here.fileno())
        shown = 0
        while rest.poll() is None:
            time.sleep(0.5)
            shown = _show(here.fileno(), shown)
        _show(here.fileno(), shown)
        codes["rest"] = rest.returncode
        other.join()
        print(f"\nThe ring's tests ({' '.join(pure)}), under hash seeds 1 and 0:", flush=True)
        _show(beside.fileno(), 0)
        counts = sum((_counts(file) for file in (here.fileno(), beside.fileno())), Counter[str]())
    print(closing(counts, time.monotonic() - began), flush=True)
    return next((code for code in codes.values() if code), 0)


def _show(file: int, since: int) -> int:
    """Print what was written since a place; return the place of the end."""
    news = os.pread(file, 1 << 24, since)
    sys.stdout.buffer.write(news)
    sys.stdout.flush()
    return since + len(news)


def _counts(file: int) -> Counter[str]:
    text = os.pread(file, 1 << 28, 0).decode(errors="replace")
    return sum((counted(line) for line in text.splitlines()), Counter[str]())


def main(arguments: Sequence[str]) -> int:
    """Run what is asked, or everything."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt themselves, and their children
    if arguments:
        return subprocess.run(command(*arguments), cwd=ROOT, env=environment(0), check=False).returncode
    return both()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
