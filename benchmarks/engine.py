"""Speed of the LLM engine alone on the default model: decode at batch 1, 8 and 32, and prefill; peers beside it.

usage: python benchmarks/engine.py [--threads N ...] [--device cuda [--graphs]] [--rounds N]
           [--transformers] [--llama-cpp BIN_FOLDER --gguf FILE ...]

Tokens per second, medians over interleaved rounds, as a markdown table: per second of CPU time with one thread on a
CPU (on a busy host nothing else can be compared), else of wall time. A peer's time is the difference between a long
and a short run, so that its start is not counted; ours contains sampling and plan handling, llama.cpp's no sampling.
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
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


class Transformers:
    """`generate` of the same weights in float32, greedy."""

    def __init__(self, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.name = "transformers generate, float32"
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(resolve().folder, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None

    def _generate(self, batch: int, prompt: int, tokens: int) -> Callable[[], None]:
        ids = self._torch.randint(100, 40_000, (batch, prompt))
        mask = self._torch.ones_like(ids)
        how = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

        def generate() -> None:
            self._model.generate(ids, attention_mask=mask, **how)

        return generate

    def decode(self, batch: int) -> Cost:
        return difference(self._generate(batch, PROMPT, 1), self._generate(batch, PROMPT, 1 + STEPS), STEPS)

    def prefill(self) -> Cost:
        return timed(self._generate(1, CHUNK, 1))


class LlamaCpp:
    """llama-batched-bench for decode, llama-bench for prefill, on one gguf file."""

    def __init__(self, folder: Path, gguf: Path, threads: int) -> None:
        self.name = f"llama.cpp, {gguf.stem}"
        self._folder, self._gguf, self._threads = folder, gguf, threads

    def _call(self, program: str, *arguments: object) -> Callable[[], None]:
        command = [str(word) for word in (self._folder / program, "-m", self._gguf, "-t", self._threads, *arguments)]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self._folder), "OMP_NUM_THREADS": str(self._threads)}

        def call() -> None:
            subprocess.run(command, env=environment, check=True, capture_output=True)

        return call

    def decode(self, batch: int) -> Cost:
        def steps(count: int) -> Callable[[], None]:
            sizes = ("-npp", PROMPT, "-ntg", count, "-npl", batch, "-c", 32 * 256, "-ngl", 0, "-tb", self._threads)
            return self._call("llama-batched-bench", *sizes)

        return difference(steps(8), steps(8 + STEPS), STEPS)

    def prefill(self) -> Cost:
        def repeated(count: int) -> Callable[[], None]:
            return self._call("llama-bench", "-p", CHUNK, "-n", 0, "-r", count, "-ngl", 0)

        return difference(repeated(1), repeated(2), 1)


def timed(action: Callable[[], None]) -> Cost:
    wall, cpu = time.perf_counter(), cpu_s()
    action()
    return Cost((time.perf_counter() - wall) * 1e3, (cpu_s() - cpu) * 1e3)


def difference(short: Callable[[], None], long: Callable[[], None], units: int) -> Cost:
    small, large = timed(short), timed(long)
    return Cost((large.wall - small.wall) / units, (large.cpu - small.cpu) / units)


def cpu_s() -> float:
    """Of this process and the children that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


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
    parser.add_argument("--transformers", action="store_true", help="beside transformers' generate")
    parser.add_argument("--llama-cpp", type=Path, help="folder of llama-bench and llama-batched-bench")
    parser.add_argument("--gguf", type=Path, nargs="+", default=[], help="the same model for llama.cpp")
    options = parser.parse_args()
    if options.graphs and options.device == "cpu":
        parser.error("--graphs needs --device cuda")
    if bool(options.gguf) != bool(options.llama_cpp):
        parser.error("--llama-cpp and --gguf go together")
    for threads in options.threads:
        print(f"\n{threads} thread(s)")
        systems: list[System] = [Ours(threads, options.device, False)]
        if options.graphs:
            systems.append(Ours(threads, options.device, True))
        if options.transformers:
            systems.append(Transformers(threads))
        systems += [LlamaCpp(options.llama_cpp, gguf, threads) for gguf in options.gguf]
        compare(systems, options.rounds, "cpu" if threads == 1 and options.device == "cpu" else "wall")


if __name__ == "__main__":
    main()
