"""Speed of the LLM engine alone on the default model: decode at batch 1, 8 and 32, and prefill.

usage: python benchmarks/engine.py [THREADS ...]     (default: 1 2)

Wall time and process CPU time of whole steps (plan in, StepDone out), medians; on a busy host the CPU time of one
thread is the figure that can be compared.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from headway.adapters.models import cache_folder, resolve
from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.request import SamplingParams
from headway.engines.llm.engine import EngineSettings, TorchLlmEngine

PROMPT, STEPS = 128, 32
CHUNK = 512


class Run:
    """Sequences 0 to `batch` - 1, prefilled and decoding."""

    def __init__(self, engine: TorchLlmEngine, batch: int, prompt: int, first: int) -> None:
        self.engine, self.step, self.batch = engine, 0, batch
        self.seqs = range(first, first + batch)
        self.length = prompt
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
        self.run(join=joins, decodes=self.batch, kv_tokens=self.batch * self.length)

    def leave(self) -> None:
        self.run(leave=tuple(self.seqs))


def timed(action: Callable[[], None], count: int) -> tuple[float, float]:
    """Median wall and CPU milliseconds."""
    walls, cpus = [], []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return statistics.median(walls) * 1e3, statistics.median(cpus) * 1e3


def main() -> None:
    folder = resolve().folder
    for threads in [int(word) for word in sys.argv[1:]] or [1, 2]:
        settings = EngineSettings(
            folder=folder, model="default", cache=cache_folder(), kv_blocks=512, max_model_len=2048, threads=threads
        )
        engine = TorchLlmEngine(settings)
        print(engine.description)
        for batch in (1, 8, 32):
            run = Run(engine, batch, PROMPT, first=1000 * batch)
            run.decode(join=True)
            wall, cpu = timed(run.decode, STEPS)
            run.leave()
            rates = f"{batch / wall * 1e3:7.0f} tok/s wall, {batch / cpu * 1e3:7.0f} tok/s cpu"
            print(f"decode batch {batch:2}: {rates}; step {wall:.1f} ms wall, {cpu:.1f} ms cpu")
        seqs = iter(range(100_000, 200_000))

        def prefill(engine: TorchLlmEngine = engine, seqs: Iterator[int] = seqs) -> None:
            Run(engine, 1, CHUNK, first=next(seqs)).leave()

        wall, cpu = timed(prefill, 5)
        print(f"prefill {CHUNK}: {CHUNK / wall * 1e3:.0f} tok/s wall, {CHUNK / cpu * 1e3:.0f} tok/s cpu", flush=True)
        engine.close()


if __name__ == "__main__":
    main()
