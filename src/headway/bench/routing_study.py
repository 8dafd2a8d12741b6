"""The routing study: which runs there are, and the runner that keeps each result as one JSON line."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Final, Literal

import msgspec

from headway.bench.routing import RoutingSummary, Window, run
from headway.core.errors import ConfigError
from headway.sim.hardware import LLAMA_70B
from headway.sim.routing_fleet import Setup
from headway.workload.mooncake import Deadlines, Slice, TraceRow, read_trace, requests
from headway.workload.offered import Offered

Table = Literal["knee", "tune", "routing", "admission", "whole"]
SLO: Final = Deadlines(ttft_ms=1000.0, ttft_ms_per_1k=125.0, tpot_ms=100.0)
REQUESTS: Final = {8: 512, 16: 640}  # by replicas; other sizes 64 for each


class Job(msgspec.Struct, frozen=True):
    """One run. `load` is relative to the knee of its fleet, `tokens_per_s` what that is per replica."""

    table: Table
    scenario: str
    setup: Setup
    load: float
    tokens_per_s: float
    seed: int
    config: int = 0  # of a sweep

    @property
    def key(self) -> str:
        """What a stored result is found by: everything that decides it."""
        return msgspec.json.encode(self).decode()

    @property
    def count(self) -> int:
        """Requests of the run."""
        return REQUESTS.get(self.setup.replicas, 64 * self.setup.replicas)

    def part(self, rows: int) -> Slice:
        """The slice of a trace of so many rows: another one for each seed."""
        return Slice(
            skip=1400 * self.seed % max(1, rows - self.count + 1),
            count=self.count,
            prompt_tokens_per_s=self.tokens_per_s * self.setup.replicas,
            seed=self.seed,
            deadlines=SLO,
        )


class Result(msgspec.Struct, frozen=True):
    """A job, what it measured, and what it took."""

    job: Job
    summary: RoutingSummary
    cpu_s: float


def window(job: Job) -> Window:
    """A third of the requests warms the caches, a sixteenth keeps the load up at the end."""
    return Window(warm=job.count // 3, cool=job.count // 16)


@lru_cache(maxsize=1)
def _trace(path: Path) -> list[TraceRow]:
    return read_trace(path)


@lru_cache(maxsize=2)
def _offered(path: Path, part: Slice) -> list[Offered]:
    return list(requests(_trace(path), part, LLAMA_70B.name))


def execute(path: Path, job: Job) -> Result:
    """Run one job in this process."""
    begun = time.process_time()
    summary = run(job.setup.params(), _offered(path, job.part(len(_trace(path)))), window(job))
    return Result(job, summary, time.process_time() - begun)


class Store:
    """Results as JSON lines in a file: a crash loses the runs that were under way, no others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[str, Result] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    result = msgspec.json.decode(line, type=Result)
                except msgspec.DecodeError:  # cut off by a crash
                    continue
                self.results[result.job.key] = result

    def add(self, result: Result) -> None:
        """Keep a result."""
        self.results[result.job.key] = result
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")

    def of(self, table: Table) -> list[Result]:
        """Results of one table."""
        return [result for result in self.results.values() if result.job.table == table]


class Runner:
    """Runs jobs in processes and stores what they measured; what is stored is not run again."""

    def __init__(self, trace: Path, store: Store, processes: int, say: Callable[[str], None]) -> None:
        if processes < 1:
            raise ConfigError(f"{processes} processes can run nothing")
        self.store = store
        self._trace, self._processes, self._say = trace, processes, say

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        """Run what is missing; return the results in the order of the jobs."""
        missing = [job for key, job in {job.key: job for job in jobs}.items() if key not in self.store.results]
        for done, result in enumerate(self._execute(missing), 1):
            self.store.add(result)
            self._say(f"{done} of {len(missing)}: {line(result)}")
        return [self.store.results[job.key] for job in jobs]

    def _execute(self, jobs: Iterable[Job]) -> Iterator[Result]:
        if self._processes == 1:
            yield from (execute(self._trace, job) for job in jobs)
            return
        waiting = iter(jobs)
        with ProcessPoolExecutor(self._processes, get_context("fork"), _be_nice) as pool:
            running: set[Future[Result]] = set()
            while True:
                while len(running) < self._processes and (job := next(waiting, None)) is not None:
                    running.add(pool.submit(execute, self._trace, job))
                if not running:
                    return
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield future.result()


def _be_nice() -> None:
    os.nice(5)


def line(result: Result) -> str:
    """One result in one line."""
    job, s = result.job, result.summary
    return (
        f"{job.table} {job.scenario} x{job.setup.replicas} {job.setup.router.type}#{job.config} load {job.load:g} "
        f"seed {job.seed}: {s.goodput_per_s:.2f} of {s.offered_per_s:.2f}/s good, hits {s.hit_rate:.1%}, "
        f"ttft p50 {s.ttft_ms.p50 or 0:.0f} ms, imbalance {s.imbalance:.2f}, refused {s.refused} "
        f"({result.cpu_s:.0f} s)"
    )


def knee(points: Sequence[tuple[float, float]], attainment: float = 0.9) -> float:
    """Return the load at which attainment falls through a limit, by linear interpolation between the points.

    Raises ConfigError when the points do not enclose it.
    """
    ordered = sorted(points)
    for (low, above), (high, below) in pairwise(ordered):
        if above >= attainment > below:
            return low + (high - low) * (above - attainment) / (above - below)
    raise ConfigError(f"attainment does not fall through {attainment} between the loads {ordered}")
