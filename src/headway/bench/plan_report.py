"""A plan as one HTML page: the answer, attainment over devices, the ranking, and why others lost."""

from collections.abc import Sequence
from html import escape
from typing import Final

from headway.bench import charts, svg
from headway.bench.charts import Line, Plot
from headway.bench.plan_search import sizes_text
from headway.bench.plan_text import confirmed
from headway.bench.planning import Loss, PlanResult, Row
from headway.bench.run_report import STYLE

LINES_MAX: Final = 8
ROWS_MAX: Final = 40


def plan_page(title: str, result: PlanResult) -> str:
    """Return the page."""
    best = result.best
    state = "" if result.complete else " (interrupted)"
    answer, held = "Nothing that was tried holds the target.", ""
    if best is not None:
        answer = f"{best.devices} devices, ${best.usd_per_h:.2f} per hour: {sizes_text(best.sizes)} x {best.name}"
        held = "" if best.lasting is None else f"<br>{escape(confirmed(best))}"
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>",
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}{state}</h1>",
        f"<p class='sub'>{result.rate_per_s:.2f} requests per second, {result.attainment:.0%} of them within every "
        f"target; fewest {result.objective}; {result.runs} runs, seeds {', '.join(map(str, result.seeds))}, the same "
        "for all</p>",
        f'<div class="look"><b>{escape(answer)}</b>{held}</div>',
        f'<div class="plots">{_attained(result)}{_devices(result)}</div>',
        f"<h2>Ranking</h2>{_ranking(result.rows, result.attainment)}",
        "<h2>With one replica less, and others with no more than the winner has (longer load)</h2>",
        _losses(result.losses),
    ]
    if result.rules:
        words = {True: "the search agrees", False: "the search disagrees", None: "nothing to compare"}
        items = [f"{rule.condition}: {rule.choice}. <b>{words[rule.agrees]}</b>" for rule in result.rules]
        parts.append(f"<h2>Rule of thumb</h2><ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>")
    for plan in result.stages:
        stages = [(one.stage, one.where, one.reason) for one in plan.stages]
        parts.append(f"<h2>Stages of {escape(plan.words)}</h2>{_table(('stage', 'where', 'why'), stages, words=3)}")
    if result.refused:
        rows = [(one.name, one.reason) for one in result.refused]
        parts.append(f"<h2>Not tried</h2>{_table(('layout', 'why'), rows, words=2)}")
    notes = [*result.notes, *(f"{row.name}: {row.note}" for row in result.rows if row.note and row.state != "pruned")]
    if notes:
        parts.append(f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")
    return "".join(parts) + "</body></html>\n"


def _attained(result: PlanResult) -> str:
    order = [row.name for row in result.rows if row.name in result.curves][:LINES_MAX]
    lines = [
        Line(name, tuple((float(devices), share) for devices, share in result.curves[name]), svg.COLOURS[place])
        for place, name in enumerate(order)
    ]
    most = max((devices for name in order for devices, _ in result.curves[name]), default=1)
    target = Line(
        f"target {result.attainment:.0%}",
        ((0.0, result.attainment), (float(most), result.attainment)),
        charts.GREY,
        is_dashed=True,
    )
    return charts.draw(
        Plot("Attainment over devices, longer load", "devices", "attainment", is_share=True), [*lines, target]
    )


def _devices(result: PlanResult) -> str:
    """What each layout needs; of one that was not searched to its end, what it needs at least."""
    found = [row for row in result.rows if row.state != "fails"][: 2 * LINES_MAX]
    wide, high = 560, 24 + 18 * len(found)
    most = max((row.devices for row in found), default=1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'role="img">',
        svg.text(8, 14, "Devices that each needs (pale: at least)", size=12, extra='font-weight="bold"'),
    ]
    for place, row in enumerate(found):
        y = 24 + 18 * place
        length = 250 * row.devices / most
        pale = ' fill-opacity="0.3"' if row.is_bound else ""
        colour = svg.COLOURS[0] if row.state == "proven" else charts.GREY
        parts.append(f'<rect x="268" y="{y}" width="{length:.1f}" height="13" fill="{colour}"{pale}/>')
        parts.append(svg.text(262, y + 10, row.name, anchor="end", size=9))
        parts.append(svg.text(272 + length, y + 10, str(row.devices), size=9))
    return "".join(parts) + "</svg>"


def _ranking(rows: Sequence[Row], target: float) -> str:
    head = ("layout", "replicas", "devices", "$/h", "attained", "95 %", "TTFT p99 ms", "TPOT p99 ms", "binds", "state")
    shown = []
    for row in rows[:ROWS_MAX]:
        sign = {"lost": "> ", "pruned": "≥ "}.get(row.state, "")
        attained = (
            ("-" if row.state != "lost" else f"< {target:.0%}") if row.attainment is None else f"{row.attainment:.1%}"
        )
        between = "-" if row.low is None or row.high is None else f"{row.low:.1%} to {row.high:.1%}"
        times = ("-" if value is None else f"{value:.1f}" for value in (row.ttft_p99_ms, row.tpot_p99_ms))
        shown.append(
            (
                row.name,
                sizes_text(row.sizes),
                f"{sign}{row.devices}",
                f"{row.usd_per_h:.2f}",
                attained,
                between,
                *times,
                row.limit,
                row.state,
            )
        )
    more = "" if len(rows) <= ROWS_MAX else f"<p>{len(rows) - ROWS_MAX} more, none of them better</p>"
    return _table(head, shown, words=1) + more


def _losses(losses: Sequence[Loss]) -> str:
    rows = [
        (
            one.name,
            sizes_text(one.sizes),
            "-" if one.attainment is None else f"{one.attainment:.1%}",
            one.limit or "nothing",
        )
        for one in losses
    ]
    return _table(("layout", "replicas", "attains", "bound by"), rows, words=1) if rows else "<p>nothing else</p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """`words`: the first so many columns are text."""

    def cell(kind: str, place: int, value: str) -> str:
        mark = ' class="text"' if place < words else ""
        return f"<{kind}{mark}>{escape(value)}</{kind}>"

    top = "".join(cell("th", place, value) for place, value in enumerate(head))
    body = "".join(f"<tr>{''.join(cell('td', place, value) for place, value in enumerate(row))}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"
