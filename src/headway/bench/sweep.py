"""Runs many scenarios on the cores and keeps each summary as a JSON line: what is there is not run again.

A scenario is found again by the hash of everything that it says, its seed included. Cells of a grid share their seeds,
so that differences between them are not those of their arrivals (common random numbers).
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from multiprocessing import TimeoutError as NoneEndedError
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from headway.bench.run_summary import RunSummary
from headway.bench.simulated import config_hash, simulate
from headway.core.errors import ConfigError, HeadwayError, InvariantError
from headway.sim.scenario import Scenario

if TYPE_CHECKING:
    from multiprocessing.pool import IMapIterator

Changes = Mapping[str, object]
WAIT_S: Final = 1.0


class Cell(msgspec.Struct, frozen=True):
    """One scenario of a sweep and what makes it differ from the others."""

    changes: dict[str, object]
    scenario: Scenario

    @property
    def key(self) -> str:
        """What its result is stored under."""
        return config_hash(self.scenario)


class Result(msgspec.Struct, frozen=True):
    """What came of a cell: numbers, or the reason why it cannot run."""

    key: str
    changes: dict[str, object]
    summary: RunSummary | None
    error: str | None = None


class Progress(msgspec.Struct, frozen=True):
    """Where an evaluation is. `left_s`: of wall time, from what the runs before took; None: none has ended."""

    done: int
    total: int
    left_s: float | None
    last: Result


class Store:
    """Results in a file, a JSON line each: a crash loses the runs that were under way, no others."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: in memory only."""
        self._path = path
        self.results: dict[str, Result] = {}
        self._is_cut = False
        if path is None or not path.exists():
            return
        content = path.read_bytes()
        self._is_cut = bool(content) and not content.endswith(b"\n")
        for line in content.splitlines():
            try:
                result = msgspec.json.decode(line, type=Result)
            except msgspec.DecodeError:  # cut off by a crash
                continue
            self.results[result.key] = result

    def add(self, result: Result) -> None:
        """Keep a result."""
        self.results[result.key] = result
        if self._path is None:
            return
        with self._path.open("ab") as file:
            file.write((b"\n" if self._is_cut else b"") + msgspec.json.encode(result) + b"\n")
        self._is_cut = False


def grid(vary: Mapping[str, Sequence[object]], seeds: Sequence[int], make: Callable[[Changes], Scenario]) -> list[Cell]:
    """Return every combination of values with every seed. Raises ConfigError for one that cannot be built."""
    cells = []
    for values in product(*vary.values()):
        changes = dict(zip(vary, values, strict=True))
        cells += [cell_of(changes, seed, make) for seed in seeds]
    return cells


def cell_of(changes: Changes, seed: int, make: Callable[[Changes], Scenario]) -> Cell:
    """Return the cell of some changes with a seed. Raises ConfigError naming the changes."""
    try:
        scenario = make({**changes, "seed": seed})
    except ConfigError as error:
        words = ", ".join(f"{name}={value}" for name, value in changes.items())
        raise ConfigError(f"with {words}: {error}") from None
    return Cell({**changes, "seed": seed}, scenario)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the group: the parent ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and this is how
    os.nice(5)


def run_cell(cell: Cell) -> Result | InvariantError:
    """Run one cell in this process."""
    try:
        return Result(cell.key, cell.changes, simulate(cell.scenario).summary)
    except InvariantError as error:
        return InvariantError(f"{error} (with {cell.changes})")
    except HeadwayError as error:
        return Result(cell.key, cell.changes, None, str(error))


class Sweep:
    """Evaluates cells, in processes. `run`: what evaluates one. `wait` is called while none ends for `WAIT_S`."""

    def __init__(
        self,
        store: Store,
        processes: int,
        watch: Callable[[Progress], None] = lambda _: None,
        run: Callable[[Cell], Result | InvariantError] = run_cell,
    ) -> None:
        if processes < 1:
            raise ConfigError(f"{processes} processes can run nothing")
        self.store = store
        self.processes, self.watch, self._run_cell = processes, watch, run
        self.wait: Callable[[], None] = lambda: None

    def evaluate(self, cells: Sequence[Cell]) -> list[Result]:
        """Run what is not stored; return the results in the order of the cells. KeyboardInterrupt leaves what ended.

        Raises InvariantError for a run that found a bug, after the others.
        """
        missing = {cell.key: cell for cell in cells if cell.key not in self.store.results}
        began, bugs = time.monotonic(), []
        for done, result in enumerate(self._run(list(missing.values())), 1):
            if isinstance(result, InvariantError):
                bugs.append(result)
                continue
            self.store.add(result)
            left = len(missing) - done
            self.watch(Progress(done, len(missing), (time.monotonic() - began) / done * left, result))
        if bugs:
            raise bugs[0]
        found = self.store.results
        # A result that was stored by another sweep is shown with the changes of this one.
        return [msgspec.structs.replace(found[cell.key], changes=cell.changes) for cell in cells]

    def _run(self, cells: Sequence[Cell]) -> Iterator[Result | InvariantError]:
        if self.processes == 1 or len(cells) < 2:
            for cell in cells:
                with self._waited():
                    result = self._run_cell(cell)
                yield result
            return
        with get_context("fork").Pool(min(self.processes, len(cells)), _begin_worker) as pool:
            ended = pool.imap_unordered(self._run_cell, cells)  # leaving the block ends the processes, Ctrl-C too
            for _ in cells:
                yield self._next(ended)

    @contextmanager
    def _waited(self) -> Iterator[None]:
        """Call `wait` now and then from a thread: this one runs a cell."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(WAIT_S):
                self.wait()

        thread = threading.Thread(target=tell, name="sweep-wait", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()  # so that nobody is told twice at a time

    def _next(self, ended: "IMapIterator[Result | InvariantError]") -> Result | InvariantError:
        while True:
            try:
                return ended.next(WAIT_S)
            except NoneEndedError:
                self.wait()
