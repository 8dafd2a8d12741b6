"""Draws docs/img/*.svg from the scenarios in examples/: runs every variant that docs/examples.md talks about.

    python tools/pictures.py --runs DIR [NAME ...]

Runs are kept in `--runs` and not run again. Each picture's numbers are printed beside it.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.bench.charts import Line, Plot, draw
from headway.bench.results import read_requests, read_series, read_summary
from headway.bench.run_summary import GroupSummary, RunSummary
from headway.bench.series import Point
from headway.bench.simulated import config_hash, simulate
from headway.bench.svg import COLOURS, Amount, Axes, Series, amounts, lines
from headway.cli.scenario import scenario_of

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs/img"
Changes = Mapping[str, object]


class Ran(msgspec.Struct, frozen=True):
    """A run that is there."""

    folder: Path
    summary: RunSummary


class Runs:
    """Runs of examples, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, example: str, changes: Changes | None = None) -> Ran:
        """Run an example with changes, unless that has been done."""
        scenario = scenario_of(ROOT / "examples" / f"{example}.toml", changes or {})
        folder = self._folder / f"{example}-{config_hash(scenario)}"
        if not (folder / "summary.json").exists():
            simulate(scenario, folder=folder)
        found = Ran(folder, read_summary(folder))
        print(f"{example} {dict(changes or {})}: {_words(found.summary)}", flush=True)
        return found


def _words(summary: RunSummary) -> str:
    use = {name: f"{pool.busy:.0%} {pool.device_hours:.2f}h" for name, pool in summary.pool_use.items()}
    parts = {name: f"{part.attainment:.1%}" for name, part in summary.workloads.items()}
    return (
        f"{summary.completed}/{summary.arrived} refused {summary.refused} met {summary.attainment:.1%} {parts} "
        f"goodput {summary.goodput_offered_per_s:.2f} ttft {_ms(summary.ttft_ms.p50)}/{_ms(summary.ttft_ms.p99)} "
        f"tpot {_ms(summary.tpot_ms.p50)}/{_ms(summary.tpot_ms.p99)} hits {summary.prefix_hit_rate:.0%} "
        f"use {use} cpu {summary.cpu_s:.1f}s"
    )


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"


def beside(pieces: Sequence[tuple[str, int, int]], columns: int = 2) -> str:
    """Put pictures of one size (text, width, height) into one, row by row."""
    width, height = pieces[0][1], pieces[0][2]
    rows = -(-len(pieces) // columns)
    across = min(columns, len(pieces)) * width
    placed = [
        piece.replace("<svg ", f'<svg x="{place % columns * width}" y="{place // columns * height}" ', 1)
        for place, (piece, _, _) in enumerate(pieces)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {rows * height}" width="{across}" '
        f'height="{rows * height}"><rect width="{across}" height="{rows * height}" fill="white"/>'
        + "".join(placed)
        + "</svg>\n"
    )


def small(axes: Axes, series: Sequence[Series]) -> tuple[str, int, int]:
    """A plot with the names of its lines at their right."""
    return lines(axes, series), 380, 250


def wide(plot: Plot, series: Sequence[Line]) -> tuple[str, int, int]:
    """A plot over time."""
    return draw(plot, series), 560, 236


def columns(title: str, unit: str, values: Sequence[tuple[str, float, str]]) -> tuple[str, int, int]:
    """Horizontal bars: name, value, colour."""
    return amounts(title, [Amount(name, value, f"{_ms(value)} {unit}", colour) for name, value, colour in values])


def _need(value: float | None) -> float:
    if value is None:
        raise SystemExit("a run has no such number")
    return value


def ladder_of_chunks(runs: Runs) -> str:
    """Gaps of the chats, and first tokens of the documents, by chunk."""
    sizes = (128, 256, 512, 1024, 2048, 8192)
    found = [runs.get("chunk_ladder", {"pools.scheduler.chunk.params.tokens": size}).summary for size in sizes]
    ticks = tuple((float(place), f"{size:,}") for place, size in enumerate(sizes))

    def line(name: str, values: Sequence[float | None], colour: str) -> Series:
        return Series(name, tuple((float(place), _need(value)) for place, value in enumerate(values)), colour)

    gaps = [
        line("longest, median", [one.itl_max_ms.p50 for one in found], COLOURS[0]),
        line("TPOT p99", [one.workloads["chat"].tpot_ms.p99 for one in found], COLOURS[4]),
    ]
    first = [
        line("documents p50", [one.workloads["documents"].ttft_ms.p50 for one in found], COLOURS[0]),
        line("chats p99", [one.workloads["chat"].ttft_ms.p99 for one in found], COLOURS[4]),
    ]
    return beside(
        [
            small(Axes("Gaps between tokens", "tokens of a chunk", "ms", ticks), gaps),
            small(Axes("Time to first token", "tokens of a chunk", "ms", ticks), first),
        ]
    )


LAYOUTS: Final[Mapping[str, tuple[str, Changes]]] = {
    "mixed": ("pd_or_mixed", {}),
    "1 P + 3 D": ("pd_split", {"pools[p].replicas": 1, "pools[d].replicas": 3}),
    "2 P + 2 D": ("pd_split", {}),
    "3 P + 1 D": ("pd_split", {"pools[p].replicas": 3, "pools[d].replicas": 1}),
}


def layouts(runs: Runs) -> str:
    """Attainment of two promises, by layout and rate."""
    rates = (12, 20, 28)
    ticks = tuple((float(rate), str(rate)) for rate in rates)
    by: dict[str, list[RunSummary]] = {
        name: [
            runs.get(
                example,
                {
                    **changes,
                    "workload[eager].arrivals.rate_per_s": rate / 2,
                    "workload[steady].arrivals.rate_per_s": rate / 2,
                },
            ).summary
            for rate in rates
        ]
        for name, (example, changes) in LAYOUTS.items()
    }
    titles = {"eager": "First token 0.3 s, then 40 ms a token", "steady": "First token 3 s, then 14 ms a token"}
    return beside(
        [
            small(
                Axes(title, "requests per second on 4 devices", "SLO met", ticks, y_max=1.0, is_share=True),
                [
                    Series(
                        name,
                        tuple(
                            (float(rate), one.workloads[kind].attainment)
                            for rate, one in zip(rates, found, strict=True)
                        ),
                        COLOURS[place if place < 3 else 4],
                    )
                    for place, (name, found) in enumerate(by.items())
                ],
            )
            for kind, title in titles.items()
        ]
    )


LOADS: Final = (
    ("p", "at prefill: waiting and running", COLOURS[0]),
    ("d", "at decode: waiting and running", COLOURS[4]),
)


def admissions(runs: Runs) -> str:
    """Queues and goodput over time, by admission."""
    pieces = []
    for name in ("open", "bounded", "predictive"):
        ran = runs.get("overload", {"front.admission.type": name})
        print("  computed prompt tokens of requests that missed:", f"{wasted_prefill(ran):.0%}")
        points = read_series(ran.folder)
        title = f"{name}: {ran.summary.goodput_offered_per_s:.1f} good requests per second of 24"
        plot = Plot(title, "s", "requests", y_max=200.0)
        series = [Line(label, load_of(points, pool), colour) for pool, label, colour in LOADS]
        pieces.append(wide(plot, series))
    return beside(pieces, columns=1)


def load_of(points: Sequence[Point], pool: str) -> tuple[tuple[float, float], ...]:
    """Requests in a pool, waiting and running; bins that no sample fell into are left out."""
    held = [(point.from_s, point.pools[pool]) for point in points]
    return tuple(
        (at_s, one.waiting + one.running) for at_s, one in held if one.waiting is not None and one.running is not None
    )


def wasted_prefill(ran: Ran) -> float:
    """Share of computed prompt tokens whose request missed its SLO."""
    found = read_requests(ran.folder, ["prompt_tokens", "met", "client_ttft_ms"])
    done = [
        (tokens, met)
        for tokens, met, first in zip(found["prompt_tokens"], found["met"], found["client_ttft_ms"], strict=True)
        if first is not None and isinstance(tokens, int)
    ]
    return sum(tokens for tokens, met in done if not met) / max(1, sum(tokens for tokens, _ in done))


ROUTERS: Final = ("cost_aware", "cache_aware", "least_requests", "round_robin")
STALE: Final[Changes] = {"pools.seen": "scrape", "pools.scrape.interval_s": 5.0}


def routers(runs: Runs) -> str:
    """What kept its SLO, and the slowest first tokens, by router, with reports and with pages that are seconds old."""
    fresh = {name: runs.get("routers", {"front.router.type": name}).summary for name in ROUTERS}
    stale = {name: runs.get("routers", {"front.router.type": name, **STALE}).summary for name in ROUTERS}
    pieces = []
    for words, found in (("reports every 20 ms", fresh), ("metrics pages every 5 s", stale)):
        met = [(name, 100 * one.attainment, COLOURS[0]) for name, one in found.items()]
        first = [(name, _need(one.ttft_ms.p99), COLOURS[4]) for name, one in found.items()]
        pieces += [columns(f"SLO met, {words}", "%", met), columns(f"TTFT p99, {words}", "ms", first)]
    return beside(pieces)


def fleets(runs: Runs) -> str:
    """Replicas that serve, over the load, by how they are held."""
    kinds: dict[str, Changes] = {
        "scaled, starts take 90 s": {},
        "scaled, starts take 15 s": {"pools.start_s": 15.0, "front.scaling.lead_s": 15.0},
        "held: three": {"pools.replicas": 3, "pools.replicas_max": 3, "front.scaling.replicas_min": 3},
        "held: six": {"pools.replicas": 6, "front.scaling.replicas_min": 6},
    }
    pieces = []
    for name, changes in kinds.items():
        ran = runs.get("autoscaling", changes)
        points, use = read_series(ran.folder), ran.summary.pool_use["chat"]
        plot = Plot(
            f"{name}: {ran.summary.attainment:.0%} met, {use.device_hours:.2f} device-hours", "s", "", y_max=14.0
        )
        counts = [(p.from_s, p.pools["chat"].replicas) for p in points]
        served = tuple((at_s, count) for at_s, count in counts if count is not None)
        pieces.append(
            wide(
                plot,
                [
                    Line("requests per second", tuple((p.from_s, p.arrivals_per_s) for p in points), COLOURS[14]),
                    Line("replicas that serve", served, COLOURS[0], is_filled=True),
                ],
            )
        )  # fmt: skip
    return beside(pieces)


def broken(runs: Runs) -> str:
    """Tails by what goes wrong and who routes."""
    kill: dict[str, object] = {"kind": "kill", "replica": "rep-chat-1", "at_s": 25.0, "back_s": 30.0}
    slow: dict[str, object] = {
        "kind": "straggle", "replica": "rep-chat-2", "from_s": 70.0, "until_s": 100.0, "factor": 3.0
    }  # fmt: skip
    kinds = {"nothing": [], "one dies": [kill], "one straggles": [slow], "both": [kill, slow]}
    found = {
        f"{what}, {short}": runs.get("faults", {"faults": faults, "front.router.type": router}).summary
        for what, faults in kinds.items()
        for router, short in (("cost_aware", "cost aware"), ("round_robin", "in turn"))
    }
    colours = [COLOURS[0], COLOURS[4]] * len(kinds)

    def bars_of(pick: Callable[[RunSummary], float | None]) -> list[tuple[str, float, str]]:
        return [(name, _need(pick(one)), colour) for (name, one), colour in zip(found.items(), colours, strict=True)]

    return beside(
        [
            columns("TPOT p99", "ms", bars_of(lambda one: one.tpot_ms.p99)),
            columns("TTFT p99", "ms", bars_of(lambda one: one.ttft_ms.p99)),
        ]
    )


def orders(runs: Runs) -> str:
    """Pictures and videos, by order and by pools."""
    kinds: dict[str, Changes] = {}
    for order in ("fifo", "sjf", "sjf_aging"):
        scheduler = {"order": {"type": order}, "steps_per_plan": 4, "batch_max": 1}
        pool = {"name": "all", "kind": "diffusion", "model": "Wan2.1-1.3B", "replicas": 2}
        kinds[order] = {"pools": [{**pool, "execution": {"vae_tiles": 2}, "diffusion": scheduler}]}
    kinds["two pools"] = {}
    found = [runs.get("diffusion_pools", changes).summary.workloads for changes in kinds.values()]

    def panel(title: str, pick: Callable[[Mapping[str, GroupSummary]], float | None]) -> tuple[str, int, int]:
        values = [_need(pick(one)) / 1e3 for one in found]
        return columns(title, "s", list(zip(kinds, values, COLOURS[: len(kinds)], strict=True)))

    return beside(
        [
            panel("pictures: mean time to the end", lambda one: one["pictures"].e2e_ms.mean),
            panel("pictures: 99th percentile", lambda one: one["pictures"].e2e_ms.p99),
            panel("videos: mean time to the end", lambda one: one["videos"].e2e_ms.mean),
            panel("videos: the slowest", lambda one: one["videos"].e2e_ms.max),
        ]
    )


def flux(runs: Runs) -> str:
    """Devices and latency of 100 pictures per second, by how the denoiser runs."""
    kinds: dict[str, Changes] = {
        "compiled": {},
        "+ fp8": {"pools.execution.fp8": True, "pools.replicas": 310},
        "+ fp8 + step cache": {
            "pools.execution.fp8": True, "pools.execution.step_cache": 1.83, "pools.replicas": 180
        },
        "compiled, groups of 4": {"pools.execution.sp": 4, "pools.replicas": 150},
    }  # fmt: skip
    found = {name: runs.get("flux_100qps", changes).summary for name, changes in kinds.items()}
    devices = [
        (name, float(one.pool_use["flux"].devices), COLOURS[place]) for place, (name, one) in enumerate(found.items())
    ]
    late = [(name, _need(one.e2e_ms.p99) / 1e3, COLOURS[place]) for place, (name, one) in enumerate(found.items())]
    return beside(
        [columns("H100 for 100 pictures per second", "", devices), columns("p99 from sent to done", "s", late)]
    )


PICTURES: Final[Mapping[str, Callable[[Runs], str]]] = {
    "chunk_ladder": ladder_of_chunks,
    "pd_or_mixed": layouts,
    "overload": admissions,
    "routers": routers,
    "autoscaling": fleets,
    "faults": broken,
    "diffusion_pools": orders,
    "flux_100qps": flux,
}


def main() -> None:
    """Draw what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="where runs are kept")
    parser.add_argument("names", nargs="*", help="unset: all")
    asked = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    for name in asked.names or PICTURES:
        (IMAGES / f"{name}.svg").write_text(PICTURES[name](Runs(asked.runs)))


if __name__ == "__main__":
    main()
