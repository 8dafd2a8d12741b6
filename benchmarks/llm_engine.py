"""The LLM engine beside its peers, all loaded at once and measured in turn: decode, prefill, TTFT while others decode.

usage: PYTHONPATH=src python benchmarks/llm_engine.py [--threads 1 2] [--rounds 2] [--dtype float32] [--svg FILE]
           [--transformers] [--vllm PYTHON --preload FILE:FILE] [--vllm-eager] [--llama-cpp BIN_FOLDER --gguf FILE ...]
           [--quick] [--others-max SHARE]

Ours is the scheduler of a replica with its defaults and the engine; vLLM is `LLM` with its own scheduler, compiled
unless --vllm-eager, with the preloads that its documentation asks for (tcmalloc and Intel's OpenMP); transformers is
the forward pass without the rest of `generate`; llama.cpp is `llama-batched-bench`, which samples nothing, and for the
newcomer `llama-server` behind HTTP. --dtype is that of ours, vLLM and transformers; a gguf file says its own. Prefix
caches are off, prompts are random tokens. Tokens a step at most, as everybody has them: ours 2048 (and 512 of one
prompt), vLLM's `LLM` 4096, so that 32 x 128 is one step of its and three of ours, in which the first 16 decode too.

A round measures every system in one cell (concurrency and prompt), in an order that rotates. A spin loop and /proc/stat
watch it: a round in which the machine was not ours is discarded and counted. Figures are medians over the rounds that
are left; a cell of which none is left shows them all, in brackets. llama.cpp reports wall time of its two phases: its
CPU time, less that of loading, is divided in their ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from llm_engine_cells import CELLS, LONG, NEWCOMER, QUICK, Cell
from llm_engine_llama import LlamaCpp
from truth_canary import Canary

from headway.adapters.models import resolve
from headway.bench.charts import Line, Plot, draw
from headway.bench.svg import COLOURS

HERE = Path(__file__).parent


class Child:
    """A system in a process that keeps its model loaded."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name, self.log = name, tempfile.NamedTemporaryFile(prefix="llm-engine-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def started(self) -> None:
        print(f"{self.name}: {self._answer()['about']}", flush=True)

    def cell(self, cell: Cell) -> dict[str, float]:
        found = self.ask(concurrent=cell.concurrent, prompt=cell.prompt, steps=cell.steps)
        prompt, output = cell.concurrent * cell.prompt, found.get("tokens", cell.concurrent * cell.steps)
        return {
            "decode": output / found["decode_cpu"],
            "decode_wall": output / found["decode_wall"],
            "prefill": prompt / found["prefill_cpu"],
            "prefill_wall": prompt / found["prefill_wall"],
        }

    def newcomer(self) -> dict[str, float]:
        concurrent, prompt, arriving = NEWCOMER
        found = self.ask(concurrent=concurrent, prompt=prompt, newcomer=arriving)
        return {"ttft": found["ttft_cpu"], "ttft_wall": found["ttft_wall"], "wait_wall": found["wait_wall"]}

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, **asked: int) -> dict[str, float]:
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} died: {Path(self.log.name).read_text()[-1500:]}")
        return json.loads(line)


System = Child | LlamaCpp


class Kept(NamedTuple):
    """What one system did in one round of one cell."""

    threads: int
    cell: Cell | None  # None: the newcomer
    system: str
    is_quiet: bool
    figures: dict[str, float]


class Board:
    """Everything measured, and the tables of it."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self.rounds = self.discarded = 0

    def median(self, threads: int, cell: Cell | None, system: str, figure: str) -> tuple[float, bool] | None:
        """The median, and whether it comes from quiet rounds."""
        mine = [k for k in self.kept if (k.threads, k.cell, k.system) == (threads, cell, system)]
        quiet = [k for k in mine if k.is_quiet]
        values = [k.figures[figure] for k in quiet or mine]
        return (statistics.median(values), bool(quiet)) if values else None

    def shown(self, threads: int, cell: Cell | None, system: str, figure: str, factor: float = 1.0) -> str:
        found = self.median(threads, cell, system, figure)
        if found is None:
            return "-"
        text = f"{found[0] * factor:.0f}"
        return text if found[1] else f"({text})"

    def table(self, threads: int, systems: list[str], cells: list[Cell]) -> str:
        rows = []
        for title, figure in (("decode", "decode"), ("prefill", "prefill")):
            for suffix, unit in (("", "CPU s"), ("_wall", "wall s")):
                head = f"{title}, tokens per {unit}, {threads} thread(s)"
                rows.append(f"\n| {head} | " + " | ".join(cell.told() for cell in cells) + " |")
                rows.append("|---" * (len(cells) + 1) + "|")
                for system in systems:
                    found = [self.shown(threads, cell, system, figure + suffix) for cell in cells]
                    rows.append(f"| {system} | " + " | ".join(found) + " |")
        concurrent, prompt, arriving = NEWCOMER
        rows.append(f"\n| {arriving} tokens arrive while {concurrent} x {prompt} decode | TTFT, CPU ms | wall | wait |")
        rows.append("|---|---|---|---|")
        for system in systems:
            if self.median(threads, None, system, "ttft") is not None:
                figures = [self.shown(threads, None, system, name, 1e3) for name in ("ttft", "ttft_wall", "wait_wall")]
                rows.append(f"| {system} | " + " | ".join(figures) + " |")
        return "\n".join(rows)

    def plot(self, threads: int, systems: list[str]) -> str:
        lines = []
        for number, system in enumerate(systems):
            found = ((cell, self.median(threads, cell, system, "decode")) for cell in CELLS if cell.prompt == 128)
            points = sorted((float(cell.concurrent), value[0]) for cell, value in found if value is not None)
            lines.append(Line(system, tuple(points), COLOURS[number % len(COLOURS)]))
        title = f"SmolLM2-135M, prompts of 128, {threads} thread(s)"
        return draw(Plot(title, "running requests", "output tokens per CPU second", is_log=True), lines)


def systems_of(given: argparse.Namespace, threads: int) -> list[System]:
    folder = str(resolve().folder)
    child = [str(HERE / "llm_engine_child.py")]
    options = [folder, "--threads", str(threads), "--dtype", given.dtype]
    one = {"OMP_NUM_THREADS": str(threads)}
    systems: list[System] = [Child(f"Headway {given.dtype}", [sys.executable, *child, "headway", *options], one)]
    if given.vllm is not None:
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        where = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "LD_PRELOAD": given.preload}
        kind = "vllm-eager" if given.vllm_eager else "vllm"
        name = f"vLLM {given.dtype}" + (", eager" if given.vllm_eager else "")
        systems.append(Child(name, [str(given.vllm), *child, kind, *options], {**one, **quiet, **where}))
    if given.transformers:
        command = [sys.executable, *child, "transformers", *options]
        systems.append(Child(f"transformers {given.dtype}", command, one))
    return [*systems, *(LlamaCpp(given.llama_cpp, gguf, threads) for gguf in given.gguf)]


def compare(given: argparse.Namespace, threads: int, cells: list[Cell], board: Board, canary: Canary) -> list[str]:
    systems = systems_of(given, threads)
    try:
        for system in systems:
            system.started()
            system.cell(Cell(2, 32, 2))  # what runs for the first time is slow
        for number in range(given.rounds):
            turned = systems[number % len(systems) :] + systems[: number % len(systems)]
            for cell in [*(cell for cell in cells if not (number and cell.heavy)), None]:
                canary.start()
                found = [(system.name, figures) for system in turned if (figures := measured(system, cell))]
                verdict = canary.stop()
                board.rounds += 1
                board.discarded += not verdict.passes
                board.kept += [Kept(threads, cell, name, verdict.passes, figures) for name, figures in found]
                told = "newcomer" if cell is None else cell.told()
                print(f"{threads} thread(s), round {number + 1}, {told}: {verdict.told()}", flush=True)
        return [system.name for system in systems]
    finally:
        for system in systems:
            system.stop()


def measured(system: System, cell: Cell | None) -> dict[str, float] | None:
    """None where the system cannot, or is not asked to."""
    static = system.name.startswith("transformers")
    if cell is None:
        return None if static else system.newcomer()
    return None if static and cell.prompt > LONG else system.cell(cell)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--svg", type=Path, help="where the plot goes, one file per number of threads")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--vllm", type=Path, help="a Python that has vLLM")
    parser.add_argument("--preload", default="", help="its LD_PRELOAD: tcmalloc and libiomp5, by colon")
    parser.add_argument("--vllm-eager", action="store_true", help="not compiled; starts sooner")
    parser.add_argument("--llama-cpp", type=Path, help="folder of llama-batched-bench")
    parser.add_argument("--gguf", type=Path, nargs="+", default=[], help="the same model for llama.cpp")
    parser.add_argument("--quick", action="store_true", help="two cells only")
    parser.add_argument("--others-max", type=float, default=0.06, help="share of the cores that others may take")
    given = parser.parse_args()
    if bool(given.gguf) != bool(given.llama_cpp):
        parser.error("--llama-cpp and --gguf go together")
    began, board, canary = time.monotonic(), Board(), Canary(given.others_max)
    for threads in given.threads:
        # Two threads: the cells that another thread can change the ranking of, and none that takes minutes.
        cells = QUICK if given.quick else [cell for cell in CELLS if threads == 1 or cell.prompt < 4096]
        names = compare(given, threads, cells, board, canary)
        print(board.table(threads, names, cells))
        if given.svg is not None:
            path = given.svg.with_stem(f"{given.svg.stem}-{threads}")
            path.write_text(board.plot(threads, names), encoding="utf-8")
            print(f"\nplot: {path}")
    print(
        f"\n{board.rounds} rounds, {board.discarded} discarded because the machine was busy; load"
        f" {os.getloadavg()[0]:.1f}; {time.monotonic() - began:.0f} s in all"
    )


if __name__ == "__main__":
    main()
