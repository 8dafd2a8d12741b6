"""K2's ladder in simulation: one mechanism after another on `examples/ladder.toml`, each against what stood before it.

    python benchmarks/ladder.py --table TABLE.md --picture docs/img/ladder.svg

Both sides of a rung have equal devices, arrivals and seeds: what stands is put up as often as the candidate needs
devices, behind a round robin. The load is 1.2 times what stands can hold. A rung stays when goodput rises beyond its
95 % interval over the seeds, or does not fall and a 99th percentile gets better beyond its own while the other does
not get worse; otherwise the ladder goes on without it.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.bench.run_summary import RunSummary
from headway.bench.svg import Amount, amounts
from headway.bench.sweep import Result, Store, Sweep, cell_of
from headway.cli.scenario import scenario_of

SCENARIO: Final = Path(__file__).parents[1] / "examples/ladder.toml"
HELD: Final = 0.9
FEW: Final = 2  # devices
PRESS: Final = 1.2  # load of a rung over what stands holds: a gain shows where something breaks
STUDENT: Final = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # 97.5 %, by count of seeds
GAIN: Final = {"accept": "#228833", "reject": "#ee6677", "no difference": "#bbbbbb", "baseline": "#4477aa"}


class System(msgspec.Struct, frozen=True):
    """What is served with. The defaults are those of the example."""

    ahead: bool = False  # the next step is planned while one runs
    seqs: int = 8
    step_tokens: int = 8192
    chunk: int = 8192
    tp: int = 1
    prefill: int = 0  # so many of the instances only prefill, the others only decode
    overlap: str = "none"
    cache: bool = False
    instances: int = 1
    router: str = "round_robin"

    @property
    def devices(self) -> int:
        """All of them."""
        return self.tp * self.instances

    def on(self, devices: int) -> "System":
        """The same, put up as often as fits so many devices."""
        times = devices // self.devices
        return msgspec.structs.replace(self, instances=self.instances * times, prefill=self.prefill * times)

    def pools(self) -> list[dict[str, object]]:
        """As a scenario says it."""
        depth = 2 if self.ahead else 1
        decode = self.instances - self.prefill
        roles = [("prefill", self.prefill), ("decode", decode)] if self.prefill else [("mixed", decode)]
        chunk = {"type": "constant", "params": {"tokens": self.chunk}}
        scheduler = {"async_depth": depth, "max_seqs": self.seqs, "step_tokens": self.step_tokens, "chunk": chunk,
                     "prefix_cache": self.cache}  # fmt: skip
        return [
            {
                "name": role,
                "role": role,
                "replicas": count,
                "model": "qwen3-32b",
                "hardware": {"device": "H100-SXM", "tp": self.tp, "overlap": self.overlap},
                "scheduler": scheduler,
                "worker": {"credits": depth},
            }
            for role, count in roles
        ]


class Rung(msgspec.Struct, frozen=True):
    """One mechanism. `layer`: of seed 002 (SPEC L-5), which a verdict names."""

    name: str
    layer: str
    change: dict[str, object]
    devices: int  # on both sides


RUNGS: Final = (
    Rung("asynchronous scheduling", "step", {"ahead": True}, 1),
    Rung("batches of 64 sequences", "batch", {"seqs": 64}, 1),
    Rung("chunks of 512 tokens", "batch", {"step_tokens": 2048, "chunk": 512}, 1),
    Rung("tensor parallelism 2", "step", {"tp": 2}, 2),
    Rung("two of four instances only prefill", "pd", {"prefill": 2}, 8),
    Rung("two batches over each other", "step", {"overlap": "two_batch"}, 8),
    Rung("prefix cache", "cache", {"cache": True}, 8),
    Rung("cache- and cost-aware routing", "pool", {"router": "cost_aware"}, 8),
)


class Figures(msgspec.Struct, frozen=True):
    """Of one seed. Rates are per device."""

    goodput: float
    attainment: float
    ttft_p99: float
    tpot_p99: float
    tokens: float
    kv_peak: float


class Step(msgspec.Struct, frozen=True):
    """A rung, measured."""

    name: str
    layer: str
    devices: int
    verdict: str
    figures: tuple[Figures, ...]
    holds: float  # requests per second and device up to which 90 % keep their SLO
    rate: float = 0.0  # offered
    gain: tuple[float, float] | None = None  # of goodput, and half its interval


def figures_of(summary: RunSummary, devices: int) -> Figures:
    """Take what the table shows."""
    peak = max(use.kv_peak or 0.0 for use in summary.pool_use.values())
    return Figures(
        summary.goodput_offered_per_s / devices,
        summary.attainment,
        summary.ttft_ms.p99 or math.inf,
        summary.tpot_ms.p99 or math.inf,
        summary.output_tokens_per_s / devices,
        peak,
    )


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Mean of paired differences, and half the 95 % interval of it."""
    half = STUDENT[len(differences)] * statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), half


def verdict_of(before: Sequence[Figures], after: Sequence[Figures]) -> tuple[str, tuple[float, float]]:
    """Judge by goodput first, then by the tails."""
    gain, half = interval([b.goodput - a.goodput for a, b in zip(before, after, strict=True)])
    if gain > half or gain < -half:
        return "accept" if gain > 0 else "reject", (gain, half)
    better = worse = False
    for name in ("ttft_p99", "tpot_p99"):
        change, spread = interval(
            [math.log(getattr(b, name) / getattr(a, name)) for a, b in zip(before, after, strict=True)]
        )
        better, worse = better or change < -spread, worse or change > spread
    return "accept" if better and not worse else "reject" if worse and not better else "no difference", (gain, half)


class Ladder:
    """Measures systems, each once."""

    def __init__(self, runner: Sweep, seeds: Sequence[int], seconds: float) -> None:
        """`seconds` of arrivals on one device, less on more of them."""
        self._runner, self._seeds, self._seconds = runner, seeds, seconds

    def measure(self, system: System, rate: float, seeds: Sequence[int] | None = None) -> tuple[Figures, ...]:
        """Run a system at so many requests per second and device. Many devices see many requests: four seeds do."""
        seeds = seeds or (self._seeds if system.devices <= FEW else self._seeds[:4])
        changes: dict[str, object] = {
            "pools": system.pools(),
            "front.router.type": system.router,
            "workload.arrivals.rate_per_s": rate * system.devices,
            "workload.count": round(rate * self._seconds * system.devices**0.5),
        }
        cells = [cell_of(changes, seed, lambda given: scenario_of(SCENARIO, given)) for seed in seeds]
        return tuple(figures_of(_summary(result), system.devices) for result in self._runner.evaluate(cells))

    def holds(self, system: System) -> float:
        """Return the largest rate per device at which 90 % keep their SLO, within 8 %; the loads are cut in halves."""
        low, high = 0.5, 8.0
        while high / low > 1.08:
            middle = math.sqrt(low * high)
            if mean(self.measure(system, middle, self._seeds[:2]), "attainment") >= HELD:
                low = middle
            else:
                high = middle
        return low

    def climb(self) -> list[Step]:
        """Try every rung upon what has stayed."""
        system = System()
        held = self.holds(system)
        steps = [
            Step("baseline", "", system.devices, "baseline", self.measure(system, PRESS * held), held, PRESS * held)
        ]
        for rung in RUNGS:
            before = system.on(rung.devices)
            rate = PRESS * (held if before == system else self.holds(before))
            candidate = msgspec.structs.replace(before, **rung.change)
            candidate = msgspec.structs.replace(candidate, instances=rung.devices // candidate.tp)
            now, reach = self.measure(candidate, rate), self.holds(candidate)
            verdict, gain = verdict_of(self.measure(before, rate), now)
            steps.append(Step(rung.name, rung.layer, rung.devices, verdict, now, reach, rate, gain))
            print(rung.name, f"at {rate:.2f}", verdict, gain, mean(now, "goodput"), reach, flush=True)
            if verdict == "accept":
                system, held = candidate, reach
            else:
                system, held = before, rate / PRESS
        return steps


def _summary(result: Result) -> RunSummary:
    if result.summary is None:
        raise SystemExit(f"{result.changes}: {result.error}")
    return result.summary


def mean(figures: Sequence[Figures], name: str) -> float:
    """Over the seeds."""
    return statistics.fmean(getattr(one, name) for one in figures)


def table(steps: Sequence[Step]) -> str:
    """Render the rungs in Markdown."""
    lines = [
        "| rung | layer | devices | offered | goodput | gain, 95 % interval | SLO met | TTFT p99 ms | TPOT p99 ms "
        "| tokens/s | KV peak | holds 90 % up to | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for step in steps:
        of = {name: mean(step.figures, name) for name in Figures.__struct_fields__}
        gain = "" if step.gain is None else f"{step.gain[0]:+.2f} ± {step.gain[1]:.2f}"
        cells = (
            step.name,
            step.layer,
            f"{step.devices}",
            f"{step.rate:.2f}",
            f"{of['goodput']:.2f}",
            gain,
            f"{of['attainment']:.0%}",
            f"{of['ttft_p99']:,.0f}",
            f"{of['tpot_p99']:.1f}",
            f"{of['tokens']:,.0f}",
            f"{of['kv_peak']:.0%}",
            f"{step.holds:.2f}",
            step.verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(steps: Sequence[Step]) -> str:
    """Draw the share of requests that kept their SLO, rung by rung."""
    entries = [Amount(one.name, one.holds, f"{one.holds:.2f}  {one.verdict}", GAIN[one.verdict]) for one in steps]
    return amounts("Requests per second and device with 90 % in time", entries, label=200)[0]


def main() -> None:
    """Climb, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3,4,5,6")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="runs as JSON lines; what is there is not run again")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    steps = Ladder(Sweep(Store(asked.results), asked.processes), seeds, asked.seconds).climb()
    print(table(steps))
    if asked.table is not None:
        asked.table.write_text(table(steps) + "\n")
    if asked.picture is not None:
        asked.picture.write_text(picture(steps) + "\n")


if __name__ == "__main__":
    main()
