"""Speed of the LLM engine alone by plans written by hand: decode at batch 1, 8 and 32, prefill; graphs on a device.

usage: python benchmarks/engine.py [--threads N ...] [--device cuda [--graphs]] [--rounds N]

Tokens per second, medians over interleaved rounds, as a markdown table: per second of CPU time with one thread on a
CPU (on a busy host nothing else can be compared), else of wall time. Beside its peers it is measured by llm_engine.py.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from headway.adapters.models import cache_folder, resolve
from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.ports import LlmEngine
from headway.core.request import SamplingParams
from headway.engines.llm.loading import EngineSettings
from headway.engines.llm.start import start_engine

PROMPT, STEPS = 128, 24
CHUNK = 512
BATCHES = (1, 8, 32)


class Cost(NamedTuple):
    """Milliseconds."""

    wall: float
    cpu: float


class System(Protocol):
    name: str

    def decode(self, batch: int) -> Cost:
        """One decode step of `batch` sequences of PROMPT tokens and a few more."""
        ...

    def prefill(self) -> Cost:
        """CHUNK tokens of one sequence."""
        ...


class Run:
    """Sequences prefilled and decoding on an engine."""

    def __init__(self, engine: LlmEngine, batch: int, prompt: int, first: int, graph: bool = False) -> None:
        self.engine, self.step, self.batch = engine, 0, batch
        self.seqs = range(first, first + batch)
        self.length = prompt
        self.shape = {"bucket": batch, "graph": "full"} if graph else {}
        draw = random.Random(0)
        blocks = -(-(prompt + STEPS + 8) // engine.limits.block_size)
        for row, seq in enumerate(self.seqs):
            tokens = tuple(draw.randrange(100, 40_000) for _ in range(prompt))
            sampling = SamplingParams(max_tokens=STEPS + 8, temperature=0.0, ignore_eos=True)
            new = NewSequence(seq=seq, request=RequestId(f"req-{seq}"), prompt=tokens, outputs=(), sampling=sampling)
            table = tuple(range(row * blocks, (row + 1) * blocks))
            chunk = Chunk(seq=seq, start=0, count=prompt, samples=True, table=table)
            self.run(new=(new,), chunks=(chunk,), prefill_tokens=prompt)

    def run(self, **changes: object) -> None:
        self.step += 1
        self.engine.run(StepPlan(step=self.step, basis_step=self.step - 1, kind="mixed", **changes))  # type: ignore[arg-type]  # fields by name

    def decode(self, join: bool = False) -> None:
        self.length += 1
        joins = tuple(Join(seq=seq, step=self.step) for seq in self.seqs) if join else ()
        self.run(join=joins, decodes=self.batch, kv_tokens=self.batch * self.length, **self.shape)

    def leave(self) -> None:
        self.run(leave=tuple(self.seqs))


class Ours:
    def __init__(self, threads: int, device: str, graphs: bool) -> None:
        settings = EngineSettings(
            folder=resolve().folder,
            model="default",
            cache=cache_folder(),
            kv_blocks=512,
            max_model_len=2048,
            threads=threads,
            graph_rows=BATCHES if graphs else (),
        )
        self.engine = start_engine(settings, device, time.perf_counter_ns)  # type: ignore[arg-type]  # checked by argparse
        print(self.engine.description)
        self.name, self._graphs, self._next = "Headway" + (", graphs" if graphs else ""), graphs, 0

    def decode(self, batch: int) -> Cost:
        run = Run(self.engine, batch, PROMPT, self._fresh(batch), self._graphs)
        run.decode(join=True)
        costs = [timed(run.decode) for _ in range(STEPS)]
        run.leave()
        return Cost(*(statistics.median(part) for part in zip(*costs, strict=True)))

    def prefill(self) -> Cost:
        return timed(lambda: Run(self.engine, 1, CHUNK, self._fresh(1)).leave())

    def _fresh(self, count: int) -> int:
        self._next += count
        return self._next - count


def timed(action: Callable[[], None]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return Cost((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3)


Clock = Literal["cpu", "wall"]
Costs = dict[tuple[str, int], list[Cost]]


def compare(systems: list[System], rounds: int, clock: Clock) -> None:
    """Prints the table after every round: the last one counts, and a run that is cut off has one too."""
    costs: Costs = {}
    for done in range(1, rounds + 1):
        for system in systems:
            for batch in BATCHES:
                costs.setdefault((system.name, batch), []).append(system.decode(batch))
            costs.setdefault((system.name, 0), []).append(system.prefill())
        show(systems, costs, done, clock)


def show(systems: list[System], costs: Costs, rounds: int, clock: Clock) -> None:
    heads = [f"decode x{batch}" for batch in BATCHES] + [f"prefill {CHUNK}"]
    print(f"\nafter {rounds} round(s), load {os.getloadavg()[0]:.1f}\n")
    print(f"| tokens per second ({clock}) | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for system in systems:
        cells = []
        for batch in (*BATCHES, 0):
            milliseconds = statistics.median(getattr(cost, clock) for cost in costs[system.name, batch])
            cells.append(f"{(batch or CHUNK) * 1e3 / milliseconds:.0f}")
        print(f"| {system.name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--graphs", action="store_true", help="also with decode steps captured as graphs")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.graphs and options.device == "cpu":
        parser.error("--graphs needs --device cuda")
    for threads in options.threads:
        print(f"\n{threads} thread(s)")
        systems: list[System] = [Ours(threads, options.device, False)]
        if options.graphs:
            systems.append(Ours(threads, options.device, True))
        compare(systems, options.rounds, "cpu" if threads == 1 and options.device == "cpu" else "wall")


if __name__ == "__main__":
    main()
