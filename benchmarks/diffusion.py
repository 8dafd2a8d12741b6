"""CPU-time of the diffusion engine per picture, beside plain diffusers on the same weights; the error of the estimator;
the price of a resume.

usage: python benchmarks/diffusion.py FOLDER [--sizes 64 128] [--batches 1 4 8] [--steps 12] [--guidance 2]
           [--rounds N] [--tokens 16]

FOLDER is a pipeline of pictures that FluxPipeline loads. Three systems take turns in every round, each making the same
pictures as PNG: this engine with one plan per denoise step, as its scheduler drives it; `pipe()` picture by picture;
`pipe()` with the whole batch in one call, as one would write by hand. Prompts change between rounds, so that none of
ours is in the cache, but the empty one is. Medians of CPU-milliseconds per picture, one thread.

The estimator is production's: the cost that a replica fits in its warm-up (single pictures of every size, and the
largest batch of the first, are measured there), then corrected by each plan that ran. Its error is (predicted - taken)
/ taken of whole requests, predicted before they begin: `first` when this cell has not run yet, `later` in the rounds
after.
"""

import argparse
import io
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from headway.core.artifacts import Denoised
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.reports import DenoiseCoefficients
from headway.core.request import Content, DenoiseShape, DiffusionRequest
from headway.cost.diffusion_belief import DenoiseCost
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
from headway.engines.diffusion.loading import LoadSettings, load
from headway.live.denoise_warmup import Clocks, Probes, warm_up_denoiser

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "ring", "cross")
PATCH = 8  # pixels of a latent token's side, of models/tiny/image
GROUNDS = ("white", "black", "gray")


def prompts(first: int, count: int) -> list[str]:
    """Different ones; they come again after 90 of them, when the engine's cache is emptied."""
    every = [f"a large {c} {s} on a {g} background" for g in GROUNDS for s in SHAPES for c in COLOURS]
    return [every[n % len(every)] for n in range(first, first + count)]


class Bench:
    """One loaded pipeline, driven by the engine and by itself."""

    def __init__(self, folder: Path, steps: int, guidance: float, tokens: int) -> None:
        self.loaded = load(LoadSettings(folder, device="cpu", dtype="float32", threads=1))
        self.engine = DiffusionEngine(self.loaded, RunSettings(cache_mb=0), time.process_time_ns)
        self.pipe = self.loaded.pipeline
        self.pipe.set_progress_bar_config(disable=True)
        self.steps, self.guidance, self.tokens = steps, guidance, tokens
        self.seq = 0

    def plan(self, news: Sequence[NewDenoise], start: int, size: int, count: int = 1, **plan: Any) -> Denoised:
        rows = tuple(DenoiseRow(new.seq, start, count, self.steps, new.request.n) for new in news)
        begun = tuple(new for new in news if new.request.begun == start)
        done = self.engine.run(DenoisePlan(1, 0, rows, size, size, new=begun, **plan))
        if done.failed:
            raise RuntimeError(done.failed[0].message)
        return done

    def requests(self, first: int, count: int, size: int) -> list[NewDenoise]:
        out = []
        for n, prompt in enumerate(prompts(first, count)):
            self.seq += 1
            request = DiffusionRequest(
                id=RequestId(f"req-{self.seq}"),
                tenant=TenantId("bench"),
                model=ModelId("bench"),
                steps=self.steps,
                height=size,
                width=size,
                seed=first + n,
                arrived_ns=0,
                guidance_scale=self.guidance,
                content=Content(prompt),
            )
            out.append(NewDenoise(self.seq, request))
        return out

    def ours(self, first: int, count: int, size: int) -> None:
        news = self.requests(first, count, size)
        for step in range(self.steps):
            self.plan(news, step, size)

    def theirs(self, first: int, count: int, size: int, together: int) -> None:
        for begin in range(0, count, together):
            asked = prompts(first + begin, together)
            seeds = range(first + begin, first + begin + together)
            made = self.pipe(
                asked,
                negative_prompt=[""] * together,
                true_cfg_scale=self.guidance,
                height=size,
                width=size,
                num_inference_steps=self.steps,
                max_sequence_length=self.tokens,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            ).images
            for picture in made:
                picture.save(io.BytesIO(), "PNG")


def cpu_ms(run: Callable[[], None]) -> float:
    began = time.process_time_ns()
    run()
    return (time.process_time_ns() - began) / 1e6


def compare(bench: Bench, size: int, batch: int, rounds: int) -> str:
    """One row of the table."""
    took: dict[str, list[float]] = {"ours": [], "one": [], "hand": []}
    for number in range(rounds + 1):
        first = number * batch
        systems = [
            ("ours", lambda first=first: bench.ours(first, batch, size)),
            ("one", lambda first=first: bench.theirs(first, batch, size, 1)),
            ("hand", lambda first=first: bench.theirs(first, batch, size, batch)),
        ]
        turn = number % len(systems)  # nobody always runs behind the same one, whose pages and caches it finds
        ran = {name: cpu_ms(run) for name, run in systems[turn:] + systems[:turn]}
        if number:  # the first round warms up
            for name, value in ran.items():
                took[name].append(value / batch)
    ours, one, hand = (statistics.median(took[name]) for name in ("ours", "one", "hand"))
    gains = [
        statistics.median(t / o for t, o in zip(took[name], took["ours"], strict=True)) for name in ("one", "hand")
    ]
    return f"| {size} | {batch} | {ours:.1f} | {one:.1f} | {hand:.1f} | {gains[0]:.2f} | {gains[1]:.2f} |"


def resume(bench: Bench, size: int, rounds: int) -> str:
    """What giving way in the middle of a request costs: its checkpoint written and read, nothing done again."""
    saved, restored, bare, body = [], [], [], 0
    half = bench.steps // 2
    for number in range(rounds):
        news = bench.requests(number, 1, size)
        request = news[0].request
        bench.plan(news, 0, size, half)
        bare.append(cpu_ms(lambda news=news: bench.plan(news, half, size) and None))
        again = bench.requests(number, 1, size)
        done = bench.plan(again, 0, size, half, save=(again[0].seq,))
        checkpoint = done.made[0].made[0].body
        body = len(checkpoint)
        begun = NewDenoise(again[0].seq + 10**6, _begun(request, half, checkpoint))
        restored.append(cpu_ms(lambda begun=begun: bench.plan((begun,), half, size) and None))
        row = DenoiseRow(again[0].seq, half, 0, bench.steps)
        save_only = DenoisePlan(1, 0, (row,), size, size, save=(row.seq,))
        saved.append(cpu_ms(lambda plan=save_only: bench.engine.run(plan) and None))
    extra = statistics.median(restored) - statistics.median(bare)
    return (
        f"{size} px: a checkpoint of {body / 1024:.1f} KiB is written in {statistics.median(saved):.2f} ms; the step "
        f"after a resume takes {extra:.2f} ms more than one that goes on ({statistics.median(bare):.1f} ms)"
    )


def estimator(bench: Bench, sizes: Sequence[int], batches: Sequence[int], rounds: int) -> list[str]:
    """Rows of the table: errors of what was predicted before each request began, in per cent."""
    passes = 2 if bench.guidance > 1 else 1
    shapes = {size: DenoiseShape(size, size, 1, passes) for size in sizes}
    start = DenoiseCoefficients(
        base_ns=0.0,
        floor_ns=0.0,
        token_ns=1.0,
        pair_ns=0.0,
        patch=PATCH,
        text_tokens=bench.tokens,
        passes=passes,
        is_floor_hidden=False,
        steps=bench.steps,
    )
    probes = Probes(tuple((shape, max(batches)) for shape in shapes.values()), "png", is_own_work=True)
    warm = warm_up_denoiser(bench.engine, probes, start, Clocks(time.process_time_ns, time.thread_time_ns))
    belief, errors = DenoiseCost(warm.cost), {(size, batch): [] for size in sizes for batch in batches}
    for number in range(rounds):
        for (size, batch), found in errors.items():
            news, plans = bench.requests(number * batch, batch, size), []
            for step in range(bench.steps):
                rows = tuple(DenoiseRow(new.seq, step, 1, bench.steps, new.request.n) for new in news)
                new = tuple(news) if step == 0 else ()
                plans.append(DenoisePlan(1, 0, rows, size, size, shape=shapes[size], new=new))
            predicted, taken = sum(belief.plan_ns(plan) for plan in plans), 0
            for plan in plans:
                began = time.process_time_ns()
                done = bench.engine.run(plan)
                took = time.process_time_ns() - began
                taken += took
                belief.observe(plan, took, done.stages)
            found.append(100 * (predicted - taken) / taken)
    return [
        f"| {size} | {batch} | {found[0]:+.1f} | {statistics.mean(found[1:]):+.1f} |"
        f" {statistics.mean(abs(one) for one in found[1:]):.1f} |"
        for (size, batch), found in errors.items()
    ]


def _begun(request: DiffusionRequest, done: int, checkpoint: bytes) -> DiffusionRequest:
    return msgspec.structs.replace(request, begun=done, checkpoint=checkpoint)


def gains(bench: Bench, sizes: Sequence[int], batches: Sequence[int]) -> list[str]:
    """Forward passes alone: where batching pays."""
    rows = []
    for size in sizes:
        took = [bench.engine.measure(DenoiseShape(size, size), batch) / 1e6 for batch in batches]
        cells = (f"{ms:.1f} ({took[0] * batch / batches[0] / ms:.2f})" for ms, batch in zip(took, batches, strict=True))
        rows.append(f"| {size} | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    bench = Bench(args.folder, args.steps, args.guidance, args.tokens)
    print(f"{args.steps} steps, guidance {args.guidance}, {args.rounds} rounds; CPU-ms per picture, PNG included\n")
    print("| px | batch | this engine | pipe() one by one | pipe() batched by hand | gain over one | gain over hand |")
    print("|---|---|---|---|---|---|---|")
    for size in args.sizes:
        for batch in args.batches:
            print(compare(bench, size, batch, args.rounds), flush=True)
    print("\nOne forward pass without guidance, ms (gain over single ones), by batch:\n")
    print("| px | " + " | ".join(map(str, args.batches)) + " |\n|---|" + "---|" * len(args.batches))
    print("\n".join(gains(bench, args.sizes, args.batches)))
    print("\nError of the estimator, per cent of a request's CPU time:\n")
    print("| px | batch | first | later, mean | later, mean size |\n|---|---|---|---|---|")
    print("\n".join(estimator(bench, args.sizes, args.batches, max(2, args.rounds))))
    print()
    for size in args.sizes:
        print(resume(bench, size, args.rounds), flush=True)


if __name__ == "__main__":
    main()
