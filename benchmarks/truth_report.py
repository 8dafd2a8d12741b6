"""Tables of `truth.py`, and where they are written."""

import datetime
import os
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from truth_canary import Verdict
from truth_rounds import Comparison

from headway.bench.likeness import METRICS, Times
from headway.bench.twin import Overheads
from headway.cost.fitted import CostFile

ROOT = Path(__file__).parent.parent
STATISTICS = ("mean", "p50", "p99")
TIE = 0.03
RANKED = ("rate", "order", "chunk")  # policies on the same arrivals


class Part(NamedTuple):
    """What came of one mode."""

    found: list[Comparison]
    wanted: int
    costs: Overheads
    file: CostFile
    rounds: int
    discarded: int
    verdicts: list[Verdict]  # of the rounds that count


def percent(value: float | None) -> str:
    """Signed, one decimal."""
    return "-" if value is None else f"{100 * value:+.1f} %"


def line(found: Comparison) -> str:
    """For the log of a run."""
    d = found.decisions
    said = (
        f"  {d.equal} of {d.count} decided alike, {d.contested} contested; "
        f"{len(d.close)} close, {len(d.after)} after, {len(d.unexplained)} "
        f"unexplained (jitter {d.jitter_ns / 1e6:.2f} ms); replay: {found.turns_differing} of {found.turns} differ"
    )
    said += "".join(f"\n  {told}" for told in found.unexplained)
    for metric, times in found.times.items():
        cells = []
        for name in STATISTICS:
            live, simulated = getattr(times.live, name), getattr(times.simulated, name)
            cells.append(f"{name} {live:.1f} -> {simulated:.1f} ms ({percent(times.error(name))})")
        said += f"\n  {metric}: {', '.join(cells)}"
    return said


def head(part: Part, command: str) -> str:
    """When, how often, what was given."""
    costs, now = part.costs, datetime.datetime.now(tz=datetime.UTC)
    others = max(verdict.others for verdict in part.verdicts)
    spin = max(verdict.spin_p50 for verdict in part.verdicts)
    return (
        f"`python benchmarks/truth.py {command}`, {now:%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[1]:.1f}; "
        f"{part.rounds} rounds, {part.discarded} of them discarded by their canary (where it passed, others "
        f"took {others:.1%} of the cores at most, and its loop {spin:.2f} times its quiet time); {len(part.found)} of "
        f"{part.wanted} workloads have a round that counts. Given to the simulator from the calibration round alone: "
        f"front to replica {costs.submit_ns / 1e6:.2f} ms, a step's results to the front {costs.tokens_ns / 1e6:.2f} "
        f"ms, client and gateway {costs.edge_ns / 1e6:.2f} ms (first token), {costs.tail_ns / 1e6:.2f} ms (end)"
    )


def worst(part: Part, statistic: str) -> float:
    """Largest error of any metric."""
    return max(abs(one.times[metric].error(statistic) or 0.0) for one in part.found for metric in METRICS)


def scheduler(part: Part) -> str:
    """The table of scheduler truth."""
    rows = [
        "| replicas | router | order | steps in flight | requests/s "
        "| decided alike | arrivals contested | close / after / unexplained | "
        + " | ".join(f"{metric.upper()} mean, p99" for metric in METRICS)
        + " |",
        "|" + "---|" * (8 + len(METRICS)),
    ]
    for one in part.found:
        d = one.decisions
        cells = [f"{percent(one.times[m].error('mean'))}, {percent(one.times[m].error('p99'))}" for m in METRICS]
        counts = f"{len(d.close)} / {len(d.after)} / {len(d.unexplained)}"
        refused = f", {one.failed} refused" if one.failed else ""
        rows.append(
            f"| {one.case.what} | {d.equal} of {d.count}{refused} | {d.contested} | {counts} | "
            + " | ".join(cells)
            + " |"
        )
    turns = sum(one.turns for one in part.found)
    differing = sum(one.turns_differing for one in part.found)
    jitter = max((one.decisions.jitter_ns for one in part.found), default=0) / 1e6
    return (
        f"{head(part, 'scheduler')}.\n\n"
        + "\n".join(rows)
        + "\n\nErrors are (simulated - live) / live. Workloads are such that 1 ms more or less of every arrival moves "
        "no figure by more than 2 % in simulation; they were chosen by the simulator alone. An arrival is *contested* "
        "when it lies within live's jitter "
        f"(p99 of arrivals and of step ends, at most {jitter:.1f} ms) of an event that it competes with, so that live "
        "itself may decide otherwise the next time. Requests that differ: *close*, when their arrival or one before "
        "their first token is contested; *after*, when they were under way after a close one had differed; "
        "*unexplained* else. Live's event logs replayed through nodes "
        f"that the simulator builds: {differing} of {turns:,} turns have other effects. Worst error: "
        f"{100 * worst(part, 'mean'):.1f} % of a mean, {100 * worst(part, 'p99'):.1f} % of a p99 (goal: 2 %)."
    )


def ms(times: Times, statistic: str) -> str:
    """Live, predicted, error."""
    live, simulated = getattr(times.live, statistic), getattr(times.simulated, statistic)
    return f"{live:.0f} / {simulated:.0f} ({percent(times.error(statistic))})"


def cost(part: Part) -> str:
    """The table of cost truth."""
    rows = [
        "| workload | requests | " + " | ".join(f"{m.upper()} {s}" for m in METRICS for s in ("mean", "p99")) + " |",
        "|" + "---|" * (2 + 2 * len(METRICS)),
    ]
    for one in part.found:
        cells = [ms(one.times[metric], statistic) for metric in METRICS for statistic in ("mean", "p99")]
        rows.append(f"| {one.case.what} | {one.times['e2e'].live.count} | " + " | ".join(cells) + " |")
    at, held = part.file.coefficients, part.file.held_out["step"]
    return (
        f"{head(part, 'cost')}; step = {at.base_ns / 1e6:.2f} ms + {at.row_ns / 1e6:.2f} ms/row + {at.kv_ns:.0f} "
        f"ns/context token + {at.token_ns / 1e6:.2f} ms/prompt token + {at.pair_ns:.0f} ns/pair + "
        f"{at.chunk_ns / 1e6:.2f} ms/chunk ({part.file.samples} steps, held-out mean error {percent(held.mean)}, mean "
        f"absolute error {100 * held.mae:.1f} %).\n\n"
        + "\n".join(rows)
        + "\n\nMilliseconds, live / predicted (error). Worst error: "
        f"{100 * worst(part, 'mean'):.1f} % of a mean (goal 10 %), {100 * worst(part, 'p99'):.1f} % of a p99 (goal "
        f"20 %). {ranking(part)}"
    )


def ranking(part: Part) -> str:
    """Whether every pair of policies on the same arrivals comes out in the same order."""
    names = {"rate": "`fcfs`, chunk 64", "order": "`shortest_predicted`", "chunk": "`fcfs`, chunk 16"}
    there = [one for one in part.found if one.case.name in RANKED]
    told = []
    for metric in METRICS:
        pairs = [(a.times[metric], b.times[metric]) for a, b in combinations(there, 2)]
        clear = [(a, b) for a, b in pairs if abs(mean(a, "live") / mean(b, "live") - 1) > TIE]
        same = sum(
            (mean(a, "live") < mean(b, "live")) == (mean(a, "simulated") < mean(b, "simulated")) for a, b in clear
        )
        ranked = sorted(there, key=lambda one: mean(one.times[metric], "live"))
        order = " < ".join(names[one.case.name] for one in ranked)
        told.append(f"{metric.upper()} {same} of {len(clear)} pairs, {len(pairs) - len(clear)} ties (live: {order})")
    return (
        "Policies in the same order by mean, on the same arrivals: "
        f"{'; '.join(told)}; a tie: live's means are within {TIE:.0%}."
    )


def mean(times: Times, side: str) -> float:
    """Of `live` or `simulated`; every round that counts has answers."""
    value: float = getattr(times, side).mean
    return value


def publish(mode: str, text: str) -> None:
    """Put the text between the markers of this mode. Raises SystemExit where they are missing."""
    for name in ("benchmarks/RESULTS.md", "README.md"):
        path = ROOT / name
        content, begin, end = path.read_text(), f"<!-- truth: {mode} -->\n", f"<!-- end of truth: {mode} -->"
        if begin not in content or end not in content:
            raise SystemExit(f"{name} lacks the lines {begin.strip()!r} and {end!r}: put them where the table belongs")
        before, _, rest = content.partition(begin)
        path.write_text(before + begin + text + "\n" + end + rest.partition(end)[2])
