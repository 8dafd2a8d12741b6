"""Runs side by side, as a table for a terminal and as one HTML page with their distributions over each other."""

from collections.abc import Sequence
from html import escape
from typing import Final

from headway.bench import charts, svg
from headway.bench.charts import Line, Plot, duration
from headway.bench.compare_runs import Compared, Comparison, Difference
from headway.bench.pairing import ComparedRun
from headway.bench.run_report import STYLE
from headway.bench.seed_groups import Between, Pooled, SeedGroups
from headway.bench.series import Point

WIDE: Final = 34  # of a name
MARKS: Final = {"better": "+", "worse": "-", "same": " "}
NOTE: Final = (
    "Intervals: 95 %, over blocks of consecutive arrivals of one run each; another seed is not covered. "
    "+ better and - worse than the first run, where the interval leaves zero out."
)

SEEDS_NOTE: Final = "mean and 95 % interval of the mean by Student's t; differences seed by seed where both have them"


def value_text(value: float | None, unit: str) -> str:
    """A value as it is printed."""
    if value is None:
        return "-"
    return duration(value) if unit == "ms" else f"{value:.1%}" if unit == "share" else f"{value:,.2f}"


def _signed(value: float, unit: str) -> str:
    sign = "-" if value < 0 else "+"
    return sign + value_text(abs(value), unit)


def difference_text(found: Difference | Between | None, unit: str) -> str:
    """A difference with its interval as it is printed."""
    if found is None:
        return "-"
    return f"{_signed(found.value, unit)} [{_signed(found.low, unit)}, {_signed(found.high, unit)}]"


def comparison_text(comparison: Comparison) -> str:
    """Return what is printed of a comparison."""
    names = [name if len(name) <= WIDE else f"...{name[3 - WIDE :]}" for name in comparison.runs]
    wide = max(12, *(len(name) + 2 for name in names))
    lines = ["".join([f"{'':<18}", *(f"{name:>{wide}}" for name in names)])]
    lines += [
        "".join([_label(row), *(f"{value_text(value, row.unit):>{wide}}" for value in row.values)])
        for row in comparison.metrics
    ]
    for place, name in enumerate(names[1:], 1):
        kind = "the same requests" if comparison.paired[place] else "other requests"
        lines += ["", f"{name} less {names[0]} ({kind})"]
        for row in comparison.metrics:
            found = row.differences[place]
            mark = " " if found is None else MARKS[found.verdict]
            lines.append(f"{mark} {_label(row)}{difference_text(found, row.unit)}")
    lines += ["", "configuration"]
    lines += [
        f"  {key:<38} {'   '.join(str(value) for value in values)}" for key, values in comparison.config.items()
    ] or ["  the same"]
    seeds = [] if comparison.seeds is None else ["", *_seeds_text(comparison.seeds)]
    return "\n".join([*lines, *seeds, "", *comparison.notes, NOTE])


def _seeds_text(found: SeedGroups) -> list[str]:
    """Tables of the groups, as the runs have them above."""
    names = [group.name if len(group.name) <= WIDE else f"...{group.name[3 - WIDE :]}" for group in found.groups]
    wide = max(22, *(len(name) + 2 for name in names))
    lines = [f"over seeds, {SEEDS_NOTE}", "".join([f"{'':<18}", *(f"{name:>{wide}}" for name in names)])]
    for row in found.metrics:
        cells = [mean_text(*pair, row.unit) for pair in zip(row.means, row.halves, strict=True)]
        lines.append("".join([_label(row), *(f"{cell:>{wide}}" for cell in cells)]))
    for place, name in enumerate(names[1:], 1):
        pairs = max((each.pairs for row in found.metrics if (each := row.differences[place]) is not None), default=None)
        kind = "too few seeds" if pairs is None else f"{pairs} seeds of both" if pairs else "other seeds"
        lines += ["", f"{name} less {names[0]} ({kind})"]
        for row in found.metrics:
            between = row.differences[place]
            mark = " " if between is None else MARKS[between.verdict]
            lines.append(f"{mark} {_label(row)}{difference_text(between, row.unit)}")
    return lines


def mean_text(mean: float | None, half: float | None, unit: str) -> str:
    """A mean over seeds with half of its interval."""
    shown = value_text(mean, unit)
    return shown if half is None else f"{shown} ± {value_text(half, unit)}"


def _label(row: Compared | Pooled) -> str:
    return f"{row.name + (' /s' if row.unit == '/s' else ''):<18}"


def comparison_page(comparison: Comparison, runs: Sequence[ComparedRun], points: Sequence[Sequence[Point]]) -> str:
    """Return the page. `points`: the time series of each run."""
    title = f"{' against '.join(comparison.runs)}"
    notes = "".join(f"<li>{escape(note)}</li>" for note in (*comparison.notes, NOTE))
    return "".join(
        [
            f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>",
            f"<style>{STYLE}.better{{color:#11712b;font-weight:bold}}.worse{{color:#b3261e;font-weight:bold}}"
            f"</style></head><body><h1>{escape(title)}</h1><h2>What differs</h2>{_config(comparison)}",
            f"<h2>Metrics</h2>{_metrics(comparison)}<ul>{notes}</ul>",
            "" if comparison.seeds is None else _seeds(comparison.seeds),
            f'<h2>Distributions</h2><div class="plots">{"".join(_distributions(runs))}</div>',
            f'<h2>Over time</h2><div class="plots">{"".join(_series(comparison.runs, points))}</div>',
            "</body></html>\n",
        ]
    )


def _config(comparison: Comparison) -> str:
    if not comparison.config:
        return "<p>The configurations are the same.</p>"
    head = "".join(f"<th class=text>{escape(name)}</th>" for name in comparison.runs)
    rows = "".join(
        f"<tr><td>{escape(key)}</td>{''.join(f'<td class=text>{escape(str(value))}</td>' for value in values)}</tr>"
        for key, values in comparison.config.items()
    )
    return f"<table><tr><th>key</th>{head}</tr>{rows}</table>"


def _metrics(comparison: Comparison) -> str:
    base, *others = comparison.runs
    heads = [f"<th>{escape(base)}</th>", *(f"<th>{escape(n)}</th><th>difference</th>" for n in others)]
    rows = []
    for row in comparison.metrics:
        cells = [f"<td>{value_text(row.values[0], row.unit)}</td>"]
        for value, found in zip(row.values[1:], row.differences[1:], strict=True):
            kind = "" if found is None else found.verdict
            cells.append(f"<td>{value_text(value, row.unit)}</td>")
            cells.append(f'<td class="{kind}">{difference_text(found, row.unit)}</td>')
        rows.append(f"<tr><td>{_label(row)}</td>{''.join(cells)}</tr>")
    return f"<table><tr><th></th>{''.join(heads)}</tr>{''.join(rows)}</table>"


def _seeds(found: SeedGroups) -> str:
    base, *others = found.groups
    heads = [f"<th>{escape(base.name)}</th>", *(f"<th>{escape(n.name)}</th><th>difference</th>" for n in others)]
    rows = []
    for row in found.metrics:
        cells = [f"<td>{mean_text(row.means[0], row.halves[0], row.unit)}</td>"]
        for place in range(1, len(found.groups)):
            between = row.differences[place]
            cells.append(f"<td>{mean_text(row.means[place], row.halves[place], row.unit)}</td>")
            kind = "" if between is None else between.verdict
            cells.append(f'<td class="{kind}">{difference_text(between, row.unit)}</td>')
        rows.append(f"<tr><td>{_label(row)}</td>{''.join(cells)}</tr>")
    table = f"<table><tr><th></th>{''.join(heads)}</tr>{''.join(rows)}</table>"
    return f"<h2>Over seeds</h2>{table}<p>{escape(SEEDS_NOTE)}</p>"


def _colour(place: int) -> str:
    return svg.COLOURS[place * 4 % len(svg.COLOURS)]


def _distributions(runs: Sequence[ComparedRun]) -> list[str]:
    out = []
    for title, name in (
        ("Time to first token", "client_ttft_ms"),
        ("Time per output token after the first", "client_tpot_ms"),
        ("Whole request", "client_e2e_ms"),
        ("All queues", "queue_wait_ms"),
    ):
        lines = []
        if name == "client_ttft_ms" and not any(run.summary.has_first_times for run in runs):
            continue
        if name == "client_tpot_ms" and not any(run.summary.has_tokens for run in runs):
            continue
        for place, run in enumerate(runs):
            shown = run.columns.completed & ~run.columns.claim("cold_start")
            lines.append(Line(run.name, charts.cdf(run.columns.floats(name)[shown]), _colour(place)))
        plot = Plot(title, "time", "share of requests", is_share=True, is_log=True, is_duration=True)
        out.append(charts.draw(plot, lines))
    return out


def _series(names: Sequence[str], points: Sequence[Sequence[Point]]) -> list[str]:
    goodput, waiting = [], []
    for place, (name, run) in enumerate(zip(names, points, strict=True)):
        at = [(point.from_s + point.to_s) / 2 for point in run]
        queued = [point.waiting for point in run]
        good = [point.goodput_per_s for point in run]
        goodput.append(Line(name, tuple(zip(at, good, strict=True)), _colour(place)))
        waiting.append(Line(name, tuple(zip(at, queued, strict=True)), _colour(place)))
    time = "virtual time, s"
    return [
        charts.draw(Plot("Goodput", time, "requests/s"), goodput),
        charts.draw(Plot("Waiting, at the front and at replicas", time, "requests"), waiting),
    ]
