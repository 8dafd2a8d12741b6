"""Seed 003's practice on a real model: concurrency 1 to 16 with batching off and on, then one foreign resolution.

    python benchmarks/diffusion_practice.py models/tiny/image --table TABLE.md --picture docs/img/diffusion_practice.svg

The node of a replica as `headway serve` runs it (queue, batches, belief learnt at its warm-up) and the engine, in one
process and one thread, without HTTP, whose noise would hide differences of a few per cent. So many clients ask for one
picture after the other. `off`: batches of one; `on`: the defaults but batches up to 8, which form where the measured
gain is at least 5 %; `always`: they form whatever they gain. Modes take turns at every concurrency, and latencies are
CPU-seconds of the process between submit and end, so that a loaded machine changes little. Batches are counted from
plans, and every batch decision in the requests' evidence must say the same size.
"""

import argparse
import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.bench.svg import COLOURS, HEIGHT, WIDTH, Axes, Series, lines, text
from headway.core.effects import Effect, RunDenoise, Send
from headway.core.events import DenoiseDone, Event, MessageArrived, PeerJoined
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Finished, Refused, Submit
from headway.core.plans import DenoisePlan
from headway.core.ports import DenoiseEngine
from headway.core.reports import DenoiseCoefficients
from headway.core.request import Content, DenoiseShape, DiffusionRequest, FinishReason
from headway.live.assemble import Recipe, build_node
from headway.live.config_diffusion import DiffusionSettings, believed_cost
from headway.live.denoise_warmup import Probes, warm_up_denoiser
from headway.live.spec import DiffusionSpec, ReplicaSpec
from headway.sched.diffusion.params import DiffusionParams

FRONT: Final = NodeId("front-0")
GUIDANCE: Final = 2.0
MODES: Final = ("off", "on", "always")
CONCURRENCY: Final = (1, 2, 4, 8, 16)
CAPTIONS: Final = tuple(
    f"a large {colour} {shape} on a {ground} background"
    for ground in ("white", "black", "gray")
    for shape in ("circle", "square", "triangle", "ring", "cross")
    for colour in ("red", "green", "blue", "yellow", "purple", "orange")
)


class Studio:
    """A replica's node and its engine; every batch it begins, and every end with its evidence."""

    def __init__(
        self,
        engine: DenoiseEngine,
        machine: DiffusionParams,
        cost: DenoiseCoefficients | None = None,
        clock: Callable[[], int] = time.process_time_ns,
    ) -> None:
        spec = ReplicaSpec(NodeId("rep-0"), ModelId("m"), (FRONT,), NodeId("control"), diffusion=DiffusionSpec(machine))
        self._node, self._engine, self._clock = build_node(Recipe(spec, 1, None, cost)).node, engine, clock
        self._open: DenoisePlan | None = None
        self._number = 0
        self._ended: list[Finished] = []
        self.batches: list[tuple[str, ...]] = []  # requests that began together
        self._handle(PeerJoined(clock(), "start", FRONT, 1))

    def submit(self, request: DiffusionRequest) -> None:
        """As a front would."""
        self._number += 1
        submit = Submit(request, 1, number=self._number)
        self._handle(MessageArrived(self._clock(), request.id, FRONT, submit))

    def step(self) -> list[Finished]:
        """Run the plan that is open; what ended with it."""
        plan, self._open = self._open, None
        if plan is None:
            raise RuntimeError("nothing to run")
        done = self._engine.run(plan)
        if done.failed:
            raise RuntimeError(done.failed[0].message)
        event = DenoiseDone(
            self._clock(), f"step-{plan.step}", plan.step, done.timing, done.stages, done.made, done.failed
        )
        self._handle(event)
        ended, self._ended = self._ended, []
        return ended

    def _handle(self, event: Event) -> None:
        effects: list[Effect] = self._node.handle(event)
        for effect in effects:
            if isinstance(effect, RunDenoise):
                self._open = effect.plan
                if effect.plan.new:
                    self.batches.append(tuple(new.request.id for new in effect.plan.new))
            elif isinstance(effect, Send) and isinstance(effect.message, Finished):
                if effect.message.reason is not FinishReason.STOP:
                    raise RuntimeError(f"{effect.message.request} ended: {effect.message.error}")
                self._ended.append(effect.message)
            elif isinstance(effect, Send) and isinstance(effect.message, Refused):
                raise RuntimeError(effect.message.message)


def decided(ended: Sequence[Finished]) -> dict[str, int]:
    """Sizes of batches by their first request, from the decisions in its evidence; none where nobody else waited."""
    found = {}
    for one in ended:
        for decision in one.marks.decisions if one.marks is not None else ():
            if decision.kind == "batch":
                found[decision.chosen] = int(decision.reason.rsplit(" ", 1)[1])
    return found


def check_decisions(studio: Studio, ended: Sequence[Finished]) -> None:
    """Raise where the evidence and what ran differ."""
    ran = {batch[0]: len(batch) for batch in studio.batches}
    said = decided(ended)
    wrong = {head: (size, ran.get(head)) for head, size in said.items() if ran.get(head) != size}
    if wrong:
        raise RuntimeError(f"batches decided and run differ: {wrong}")


def asked(number: int, width: int, height: int, steps: int) -> DiffusionRequest:
    """One guided picture with a caption and a seed of its own."""
    return DiffusionRequest(
        id=RequestId(f"req-{number}"),
        tenant=TenantId("bench"),
        model=ModelId("m"),
        steps=steps,
        height=height,
        width=width,
        seed=number,
        arrived_ns=0,
        guidance_scale=GUIDANCE,
        passes=2,
        content=Content(CAPTIONS[number % len(CAPTIONS)]),
    )


class Point(msgspec.Struct, frozen=True):
    """One crowd. Seconds of CPU, but `wall_s`."""

    edge: int
    mode: str
    concurrency: int
    pictures: int
    cpu_s: float
    wall_s: float
    p50_s: float
    p99_s: float
    sizes: tuple[tuple[int, int], ...]  # batches: how large, how many


def crowd(studio: Studio, requests: Sequence[DiffusionRequest], concurrency: int) -> tuple[list[float], list[Finished]]:
    """So many clients, each with one request at a time: latencies, and all ends."""
    waiting, sent, took, ends = deque(requests), {}, [], []
    for _ in range(min(concurrency, len(waiting))):
        sent[waiting[0].id] = time.process_time()
        studio.submit(waiting.popleft())
    while sent:
        for one in studio.step():
            took.append(time.process_time() - sent.pop(one.request))
            ends.append(one)
            if waiting:
                sent[waiting[0].id] = time.process_time()
                studio.submit(waiting.popleft())
    return sorted(took), ends


def measure(studio: Studio, edge: int, mode: str, concurrency: int, pictures: int, steps: int) -> Point:
    requests = [asked(number, edge, edge, steps) for number in range(pictures)]
    cpu, wall = time.process_time(), time.perf_counter()
    took, ends = crowd(studio, requests, concurrency)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    check_decisions(studio, ends)
    sizes = tuple(sorted(Counter(len(batch) for batch in studio.batches).items()))
    p99 = took[min(len(took) - 1, round(0.99 * len(took)))]
    return Point(edge, mode, concurrency, pictures, cpu, wall, took[len(took) // 2], p99, sizes)


def foreign(studio: Studio, edge: int, width: int, height: int, steps: int, count: int = 12) -> list[tuple[str, ...]]:
    """All at once, the fifth of another resolution. Raises where it does not form its own batch."""
    requests = [asked(number, edge, edge, steps) for number in range(count)]
    requests[4] = asked(4, width, height, steps)
    _took, ends = crowd(studio, requests, count)
    check_decisions(studio, ends)
    mixed = [batch for batch in studio.batches if "req-4" in batch and len(batch) > 1]
    said = decided(ends).get("req-4", 1)
    if mixed or said != 1 or sum(map(len, studio.batches)) != count:
        raise RuntimeError(f"the foreign resolution did not form its own batch: {studio.batches}, decided {said}")
    return studio.batches


def params(mode: str, batch_max: int) -> DiffusionParams:
    return DiffusionParams(batch_max=1 if mode == "off" else batch_max)


def table(points: Sequence[Point]) -> str:
    """As Markdown."""
    head = "| px | batching | clients | CPU-s per picture | pictures per CPU-s | per s | p50 / p99, CPU-s | batches |"
    rows = [head, "|---|---|---|---|---|---|---|---|"]
    for one in points:
        sizes = ", ".join(f"{many} of {size}" for size, many in one.sizes)
        cells = (
            str(one.edge),
            one.mode,
            str(one.concurrency),
            f"{one.cpu_s / one.pictures:.3f}",
            f"{one.pictures / one.cpu_s:.2f}",
            f"{one.pictures / one.wall_s:.2f}",
            f"{one.p50_s:.2f} / {one.p99_s:.2f}",
            sizes,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def drawing(points: Sequence[Point], batches: Sequence[Sequence[str]], words: str) -> str:
    """Throughput and tails by concurrency, and the batches of the mixed crowd."""
    edges = sorted({one.edge for one in points})
    ticks = tuple((float(place), str(many)) for place, many in enumerate(CONCURRENCY))
    panels = []
    for title, label, value in (
        ("{} px: throughput", "pictures per CPU-second", lambda one: one.pictures / one.cpu_s),
        ("{} px: 99th percentile", "CPU-seconds", lambda one: one.p99_s),
    ):
        for edge in edges:
            series = [
                Series(
                    {"off": "off", "on": "on, where it pays", "always": "always"}[mode],
                    tuple(
                        (float(CONCURRENCY.index(one.concurrency)), value(one))
                        for one in points
                        if (one.edge, one.mode) == (edge, mode)
                    ),
                    COLOURS[place * 2],
                    is_bold=mode == "on",
                )
                for place, mode in enumerate(MODES)
            ]
            panels.append(lines(Axes(title.format(edge), "clients at once", label, ticks), series))
    wide, high = len(edges) * WIDTH, 2 * HEIGHT + 84
    placed = [
        piece.replace("<svg ", f'<svg x="{place % len(edges) * WIDTH}" y="{place // len(edges) * HEIGHT}" ', 1)
        for place, piece in enumerate(panels)
    ]
    top, x = 2 * HEIGHT + 14, 46.0
    strip = [text(46, top, words, size=12, extra='font-weight="bold"')]
    unit = min(34.0, (wide - 60 - 8 * len(batches)) / sum(map(len, batches)))
    for batch in batches:
        is_foreign = "req-4" in batch
        width = unit * len(batch)
        colour = "#ee6677" if is_foreign else "#4477aa"
        strip.append(f'<rect x="{x}" y="{top + 12}" width="{width}" height="30" fill="{colour}" rx="3"/>')
        strip.append(text(x + width / 2, top + 31, str(len(batch)), anchor="middle", extra='fill="white"'))
        x += width + 8
    strip.append(text(46, top + 58, "batches in the order they ran, with their pictures; red: the foreign one", size=9))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">'
        f'<rect width="{wide}" height="{high}" fill="white"/>{"".join(placed)}{"".join(strip)}</svg>'
    )


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edges", type=int, nargs="+", default=[64, 256], help="pixels of square pictures")
    parser.add_argument("--foreign", default="64x96", help="WIDTHxHEIGHT of the request among those of the first edge")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-max", type=int, default=8)
    parser.add_argument("--pictures", type=int, nargs="+", default=[16, 4], help="per crowd and edge, at least")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from headway.engines.diffusion.engine import DiffusionEngine, RunSettings
    from headway.engines.diffusion.loading import LoadSettings, load

    began, loads = time.perf_counter(), [os.getloadavg()[0]]
    engine = DiffusionEngine(load(LoadSettings(args.folder, device="cpu")), RunSettings(), time.process_time_ns)
    width, height = (int(side) for side in args.foreign.split("x"))
    shapes = [DenoiseShape(edge, edge, passes=2) for edge in args.edges] + [DenoiseShape(height, width, passes=2)]
    probes = Probes(tuple((shape, args.batch_max) for shape in shapes), "png")
    settings = DiffusionSettings(name="m", folder=str(args.folder), guidance_scale=GUIDANCE, text_tokens=16)
    cost = warm_up_denoiser(engine, probes, believed_cost(settings)).cost
    points = []
    for edge, least in zip(args.edges, args.pictures, strict=True):
        for concurrency in CONCURRENCY:
            pictures = max(least, concurrency if edge > args.edges[0] else 2 * concurrency)
            for mode in MODES:
                studio = Studio(engine, params(mode, args.batch_max), None if mode == "always" else cost)
                points.append(measure(studio, edge, mode, concurrency, pictures, args.steps))
                print(points[-1], flush=True)
        loads.append(os.getloadavg()[0])
    batches = foreign(
        Studio(engine, params("on", args.batch_max), cost), args.edges[0], width, height, max(args.steps, 4)
    )
    words = f"12 requests at once, the fifth of {args.foreign} among {args.edges[0]}x{args.edges[0]}"
    print(words + ": " + " ".join(str(len(one)) + ("*" if "req-4" in one else "") for one in batches))
    print(table(points))
    load_words = " to ".join(f"{load:.0f}" for load in (min(loads), max(loads)))
    print(f"\n{args.steps} guided steps, load {load_words}, {time.perf_counter() - began:.0f} s in all")
    if args.table is not None:
        args.table.write_text(table(points) + "\n")
    if args.picture is not None:
        args.picture.write_text(drawing(points, batches, words) + "\n")


if __name__ == "__main__":
    main()
