"""Runs side by side: each metric, its difference from the first run with an interval, and which run is better."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from headway.bench.config_diff import differing
from headway.bench.ends import Floats, Ints
from headway.bench.pairing import ComparedRun, Lineup, at, line_up
from headway.bench.resample import Interval, difference
from headway.bench.results import read_run, read_scenario_tree, read_summary
from headway.bench.run_summary import RunSummary
from headway.bench.seed_groups import Measured, SeedGroups, pooled
from headway.core.errors import ConfigError
from headway.core.units import NS_PER_S

Better = Literal["higher", "lower"]


class Metric(msgspec.Struct, frozen=True):
    """What is compared: a column of the requests and a statistic of it, or a rate that the summary tells."""

    name: str
    unit: Literal["ms", "share", "/s"]
    better: Better
    shown: Callable[[RunSummary], float | None]
    column: str = ""
    share: float | None = None  # of a percentile; None: the mean
    is_time: bool = False  # of requests that completed in both runs
    applies: Callable[[RunSummary], bool] = lambda _summary: True


def _time(label: str, name: str, field: str, share: float | None) -> Metric:
    key = "mean" if share is None else f"p{share * 100:.0f}"
    applies: Mapping[str, Callable[[RunSummary], bool]] = {
        "TTFT": lambda s: s.has_first_times,
        "TPOT": lambda s: s.has_tokens,
        "longest gap": lambda s: s.has_tokens,
    }
    return Metric(
        f"{label} {key}",
        "ms",
        "lower",
        lambda s: getattr(getattr(s, field), key),
        name,
        share,
        is_time=True,
        applies=applies.get(label, lambda _summary: True),
    )


METRICS: Final[tuple[Metric, ...]] = (
    Metric("attainment", "share", "higher", lambda s: s.attainment, "met"),
    Metric("goodput", "/s", "higher", lambda s: s.goodput_per_s, "met"),
    Metric("not completed", "share", "lower", lambda s: 1 - s.completed / s.sent if s.sent else None, "failed"),
    Metric(
        "output tokens",
        "/s",
        "higher",
        lambda s: s.output_tokens_per_s,
        "output_tokens",
        applies=lambda s: s.has_tokens,
    ),
    *(
        _time(label, name, field, share)
        for label, name, field, shares in (
            ("TTFT", "client_ttft_ms", "ttft_ms", (None, 0.5, 0.95, 0.99)),
            ("TPOT", "client_tpot_ms", "tpot_ms", (None, 0.5, 0.95, 0.99)),
            ("longest gap", "itl_max_ms", "itl_max_ms", (0.5, 0.99)),
            ("e2e", "client_e2e_ms", "e2e_ms", (None, 0.5, 0.99)),
        )
        for share in shares
    ),
    _time("queues", "queue_wait_ms", "queue_ms", 0.99),
)


class Difference(msgspec.Struct, frozen=True):
    """A run against the first one. `verdict`: of this run; `same`: the interval holds zero."""

    value: float
    low: float
    high: float
    verdict: Literal["better", "worse", "same"]


class Compared(msgspec.Struct, frozen=True):
    """One metric over all runs; None: not measured there. The first run has no difference."""

    name: str
    unit: str
    better: Better
    values: list[float | None]
    differences: list[Difference | None]


class Comparison(msgspec.Struct, frozen=True):
    """What `headway compare --json` prints."""

    runs: list[str]
    paired: list[bool]  # with the first run: the same requests
    both_completed: list[int]  # requests whose times are compared; of a pair, those that completed in both
    metrics: list[Compared]
    config: dict[str, list[object]]  # of the keys that differ
    summaries: list[RunSummary]
    notes: list[str]
    seeds: SeedGroups | None = None  # runs of one configuration taken together; None: each run is of another


def read_compared(folder: Path, name: str) -> ComparedRun:
    """Read a run; what warms up is left out. Raises ConfigError for what is no run."""
    summary = read_summary(folder)
    ids, columns = read_run(folder)
    sent_ns = columns.floats("sent_ns")
    order = np.lexsort((np.array(ids), sent_ns))
    kept = order[sent_ns[order] >= summary.warmup_s * NS_PER_S]
    return ComparedRun(
        name, summary, read_scenario_tree(folder), tuple(ids[place] for place in kept), columns.take(kept)
    )


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return a short name for each folder: its own, or as much of its path as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ConfigError(f"compare: a folder is named twice among {', '.join(map(str, folders))}")


def compare(runs: Sequence[ComparedRun]) -> Comparison:
    """Compare runs with the first one."""
    base = runs[0]
    lineups = [line_up(base, run) for run in runs]
    metrics = [
        Compared(
            metric.name,
            metric.unit,
            metric.better,
            [metric.shown(run.summary) for run in runs],
            [_difference(metric, base, run, lineup) for run, lineup in zip(runs, lineups, strict=True)],
        )
        for metric in METRICS
        if any(metric.applies(run.summary) for run in runs)
    ]
    both = [_completed(base, run, lineup) for run, lineup in zip(runs, lineups, strict=True)]
    return Comparison(
        runs=[run.name for run in runs],
        paired=[lineup.is_paired for lineup in lineups],
        both_completed=both,
        metrics=metrics,
        config=differing([run.scenario for run in runs]),
        summaries=[run.summary for run in runs],
        notes=_notes(runs, lineups, both),
        seeds=pooled(runs, [Measured(row.name, row.unit, row.better == "lower", row.values) for row in metrics]),
    )


def _completed(base: ComparedRun, other: ComparedRun, lineup: Lineup) -> int:
    """How many requests times are compared over: of a pair, those that completed in both."""
    if not lineup.is_paired:
        return int(other.columns.completed.sum())
    first, second = (
        at(places, run.columns.completed.astype(np.float64), 0.0)
        for run, places in ((base, lineup.base), (other, lineup.other))
    )
    return int((first * second).sum())


def _values(metric: Metric, run: ComparedRun, places: Ints) -> Floats:
    """One value per request that was sent: of a time nan where it was not measured, open requests are misses."""
    columns = run.columns
    if metric.is_time:
        shown = columns.completed & ~columns.claim("cold_start")
        return at(places, np.where(shown, columns.floats(metric.column), np.nan), np.nan)
    if metric.column == "met":
        return at(places, columns.claim("met").astype(np.float64), 0.0)
    if metric.column == "failed":
        return at(places, (~columns.completed).astype(np.float64), 1.0)
    return at(places, columns.floats(metric.column), 0.0)


def _difference(metric: Metric, base: ComparedRun, other: ComparedRun, lineup: Lineup) -> Difference | None:
    if other is base:
        return None
    before, after = _values(metric, base, lineup.base), _values(metric, other, lineup.other)
    if metric.is_time and lineup.is_paired:
        both = ~np.isnan(before) & ~np.isnan(after)
        before, after = np.where(both, before, np.nan), np.where(both, after, np.nan)
    if metric.unit == "/s":
        before, after = (
            _per_second(values, run, places, lineup.is_paired)
            for values, run, places in ((before, base, lineup.base), (after, other, lineup.other))
        )
    found = difference(before, after, metric.share, is_paired=lineup.is_paired)
    if found is None:
        return None
    return Difference(found.value, found.low, found.high, _verdict(found, metric.better))


def _per_second(values: Floats, run: ComparedRun, places: Ints, is_paired: bool) -> Floats:
    """Values whose mean is the run's rate per second, what the requests add up to over the time that it took.

    Runs of other requests took other times for their arrivals: each value has then the part of its own gap to the next
    arrival in the rate, a ratio of two sums, to first order (Cochran 1977, 6.4); the interval would hold only the
    one of the two otherwise.
    """
    count, duration_s = len(values), run.summary.duration_s
    if is_paired:
        return values * (count / duration_s)
    rate = float(values.sum()) / duration_s
    sent_s = at(places, run.columns.floats("sent_ns"), np.nan) / 1e9
    gaps = np.append(np.diff(sent_s), np.nan)
    known = gaps[~np.isnan(gaps)]
    gaps = np.where(np.isnan(gaps), known.mean() if len(known) else 1.0, gaps)
    whole = float(gaps.sum())
    gaps = gaps * (duration_s / whole) if whole > 0 else np.full(count, duration_s / count)
    return rate + (values - rate * gaps) * (count / duration_s)


def _verdict(found: Interval, better: Better) -> Literal["better", "worse", "same"]:
    if not found.is_clear:
        return "same"
    return "better" if (found.value > 0) == (better == "higher") else "worse"


def _notes(runs: Sequence[ComparedRun], lineups: Sequence[Lineup], both: Sequence[int]) -> list[str]:
    notes = []
    for run, lineup, count in list(zip(runs, lineups, both, strict=True))[1:]:
        if not lineup.is_paired:
            notes.append(f"{run.name} was sent other requests than {runs[0].name}: differences are not paired")
        elif count < max(run.summary.completed, runs[0].summary.completed):
            notes.append(
                f"differences of times between {runs[0].name} and {run.name} are over the {count} requests that "
                "completed in both"
            )
    notes += [
        f"{run.name} was interrupted: {run.summary.unfinished} requests unfinished"
        for run in runs
        if not run.summary.complete
    ]
    if len({msgspec.json.encode(run.scenario.get("targets")) for run in runs}) > 1:
        notes.append("the targets differ: attainment and goodput count different promises")
    return notes
