"""Orders, pools and interruption of a mixed load of pictures and videos, on the same two simulated devices (SPEC F5).

    python benchmarks/diffusion_orders.py --table TABLE.md --picture docs/img/diffusion_orders.svg

The load is that of `examples/diffusion_pools.toml`: pictures of half a second and videos of 22 s, whose tenants differ.
Once nobody has a deadline that matters, and waits are compared; once each has five times what it takes alone, and the
share that kept it counts. Means over seeds.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.bench.run_summary import GroupSummary, RunSummary
from headway.bench.simulated import simulate
from headway.bench.svg import COLOURS, Amount, amounts
from headway.cli.scenario import scenario_of

EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "diffusion_pools.toml"
TIGHT_MS: Final = {"pictures": 2_500, "videos": 110_000}  # five times what each takes alone
TWICE: Final = {"times_max": 2}
OFTEN: Final = {"times_max": 50}


def pool(order: str, **scheduler: object) -> list[dict[str, object]]:
    """One pool of both devices."""
    diffusion = {"order": {"type": order}, "steps_per_plan": 2, "batch_max": 1, **scheduler}
    model: dict[str, object] = {"name": "all", "kind": "diffusion", "model": "Wan2.1-1.3B", "replicas": 2}
    return [{**model, "execution": {"vae_tiles": 2}, "diffusion": diffusion}]


KINDS: Final[Mapping[str, list[dict[str, object]] | None]] = {
    "fifo": pool("fifo"),
    "sjf": pool("sjf"),
    "sjf_aging": pool("sjf_aging"),
    "least_slack": pool("least_slack"),
    "fair": pool("fair"),
    "drr": pool("drr"),
    "sjf_aging, gives way twice": pool("sjf_aging", preempt=TWICE),
    "sjf_aging, gives way often": pool("sjf_aging", preempt=OFTEN),
    "least_slack, gives way often": pool("least_slack", preempt=OFTEN),
    "two pools": None,  # as in the example
}


class Row(msgspec.Struct, frozen=True):
    """One kind under one load, means over seeds; seconds, and shares of all that were sent."""

    name: str
    mean_s: float  # of all requests, to the end
    picture_p99_s: float
    video_mean_s: float
    video_max_s: float
    pictures_met: float
    videos_met: float
    interruptions: float  # per run


def run(kind: str, seed: int, *, is_tight: bool) -> RunSummary:
    """One run."""
    changes: dict[str, object] = {"seed": seed}
    if KINDS[kind] is not None:
        changes["pools"] = KINDS[kind]
    scenario = scenario_of(EXAMPLE, changes)
    workloads = []
    for one in scenario.workload:
        slo = msgspec.structs.replace(one.slo, e2e_ms=TIGHT_MS[one.name] if is_tight else one.slo.e2e_ms)
        workloads.append(msgspec.structs.replace(one, tenant=one.name, slo=slo))
    return simulate(msgspec.structs.replace(scenario, workload=tuple(workloads))).summary


def row(kind: str, summaries: Sequence[RunSummary]) -> Row:
    """Means over seeds."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    def groups(name: str) -> list[GroupSummary]:
        return [one.workloads[name] for one in summaries]

    def seconds(values: Sequence[float | None]) -> float:
        return mean([0.0 if value is None else value / 1e3 for value in values])

    pictures, videos = groups("pictures"), groups("videos")
    both = [_together(one) for one in zip(pictures, videos, strict=True)]
    counts = [sum(use.counters.get("preemptions", 0) for use in one.pool_use.values()) for one in summaries]
    return Row(
        kind,
        seconds(both),
        seconds([one.e2e_ms.p99 for one in pictures]),
        seconds([one.e2e_ms.mean for one in videos]),
        seconds([one.e2e_ms.max for one in videos]),
        mean([one.attainment for one in pictures]),
        mean([one.attainment for one in videos]),
        mean(counts),
    )


def _together(groups: Sequence[GroupSummary]) -> float:
    """Mean time of all that ended well."""
    total = sum((one.e2e_ms.mean or 0.0) * one.completed for one in groups)
    return total / max(1, sum(one.completed for one in groups))


def table(rows: Sequence[Row], *, is_tight: bool) -> str:
    """As Markdown."""
    if is_tight:
        lines = ["| | pictures in time | videos in time | interruptions |", "|---|---|---|---|"]
        cells = [
            (one.name, f"{one.pictures_met:.1%}", f"{one.videos_met:.1%}", f"{one.interruptions:.0f}") for one in rows
        ]
    else:
        lines = ["| | mean of all, s | p99 of pictures | mean of videos | slowest video | interruptions |"]
        lines.append("|---|---|---|---|---|---|")
        cells = [
            (
                one.name,
                f"{one.mean_s:.1f}",
                f"{one.picture_p99_s:.1f}",
                f"{one.video_mean_s:.0f}",
                f"{one.video_max_s:.0f}",
                f"{one.interruptions:.0f}",
            )
            for one in rows
        ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def picture(loose: Sequence[Row], tight: Sequence[Row]) -> str:
    """Draw tails, and who kept a deadline."""
    panels = [
        ("pictures: 99th percentile", "s", [one.picture_p99_s for one in loose]),
        ("videos: the slowest", "s", [one.video_max_s for one in loose]),
        ("pictures in 5 x their own time", "%", [100 * one.pictures_met for one in tight]),
        ("videos in 5 x their own time", "%", [100 * one.videos_met for one in tight]),
    ]
    names = [one.name for one in loose]
    placed = []
    for place, (title, unit, values) in enumerate(panels):
        pairs = enumerate(zip(names, values, strict=True))
        entries = [Amount(name, value, f"{value:.1f} {unit}", COLOURS[n % len(COLOURS)]) for n, (name, value) in pairs]
        piece, width, height = amounts(title, entries, label=180)
        at = f'<svg x="{place % 2 * width}" y="{place // 2 * height}" '
        placed.append(piece.replace("<svg ", at, 1))
    size = f'viewBox="0 0 {2 * width} {2 * height}" width="{2 * width}" height="{2 * height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(placed)}</svg>'


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    found: dict[bool, list[Row]] = {False: [], True: []}
    for is_tight, rows in found.items():
        for kind in KINDS:
            rows.append(row(kind, [run(kind, seed, is_tight=is_tight) for seed in seeds]))
            print(rows[-1], flush=True)
    text = "\n\n".join(table(rows, is_tight=is_tight) for is_tight, rows in found.items())
    print(text)
    if asked.table is not None:
        asked.table.write_text(text + "\n")
    if asked.picture is not None:
        asked.picture.write_text(picture(found[False], found[True]) + "\n")


if __name__ == "__main__":
    main()
