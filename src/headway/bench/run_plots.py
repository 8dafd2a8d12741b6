"""The plots of a simulated run: load, queues and pools over virtual time, and how long requests took."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headway.bench import charts, svg
from headway.bench.charts import Line, Mark, Plot, duration
from headway.bench.columns import Columns, SpanName
from headway.bench.ends import Floats
from headway.bench.run_faults import fault_marks, faults_of
from headway.bench.run_view import RunView
from headway.core.units import NS_PER_MS, NS_PER_S

BLUE: Final = "#4477aa"
GREEN: Final = "#228833"
RED: Final = "#ee6677"
GOLD: Final = "#ccbb44"
GREY: Final = "#666666"
SHARE: Final = "share"  # of an axis in per cent


def over_time(view: RunView) -> list[str]:
    """Load, queues, pools and tenants over virtual time."""
    points = view.points
    pools = sorted({name for point in points for name in point.pools})
    tenants = list(points[0].tenants) if points else []

    def line(name: str, colour: str, values: Sequence[float | None], *, filled: bool = False) -> Line:
        shown = tuple(
            ((p.from_s + p.to_s) / 2, value) for p, value in zip(points, values, strict=True) if value is not None
        )
        return Line(name, shown, colour, is_filled=filled)

    def per_pool(field: str) -> list[Line]:
        return [
            line(name, _colour(place), [getattr(point.pools[name], field) for point in points])
            for place, name in enumerate(pools)
        ]

    load = [
        line("arrivals", BLUE, [p.arrivals_per_s for p in points]),
        line("completed", GOLD, [p.ended_per_s - p.failed_per_s for p in points]),
        line("within every target", GREEN, [p.goodput_per_s for p in points], filled=True),
    ]
    if any(point.failed_per_s for point in points):
        load.append(line("failed or refused", RED, [p.failed_per_s for p in points]))
    front = line("front", GREY, [p.front_waiting for p in points], filled=True)
    waiting = [front, *(msgspec.structs.replace(one, name=f"at {one.name}") for one in per_pool("waiting"))]
    marks = fault_marks(faults_of(view), view.summary.virtual_s)

    def drawn(title: str, y_label: str, lines: Sequence[Line]) -> str:
        return charts.draw(Plot(title, "virtual time, s", y_label, is_share=y_label == SHARE, marks=marks), lines)

    in_system = [line("in the system", GREY, [p.in_system for p in points], filled=True), *per_pool("running")]
    plots = [
        drawn("Load and goodput", "requests/s", load),
        drawn("Waiting", "requests", waiting),
        drawn("Running, and all that are in the system", "requests", in_system),
        drawn("Device time in steps (a batch of one keeps it busy too)", SHARE, per_pool("busy")),
    ]
    use = view.summary.pool_use
    kv = [one for one in per_pool("kv_used") if one.name not in use or use[one.name].kv_peak is not None]
    if kv:  # a pool that paints has none
        plots.insert(3, drawn("KV blocks in use, without what is only cached", SHARE, kv))
    replicas = per_pool("replicas")
    if any(len({value for _, value in one.points}) > 1 for one in replicas):
        plots.append(drawn("Replicas up", "replicas", replicas))
    if len(tenants) > 1 and any(rate for point in points for rate in point.tenants.values()):
        service = [line(name, _colour(place), [p.tenants[name] for p in points]) for place, name in enumerate(tenants)]
        plots.append(drawn("Service by tenant", "tokens/s, prompt and output", service))
    return plots


def _colour(place: int) -> str:
    return svg.COLOURS[place % len(svg.COLOURS)]


def measured(view: RunView) -> Columns:
    """Return the requests of a run without those that warm it up."""
    return view.columns.select(view.columns.floats("sent_ns") >= view.summary.warmup_s * NS_PER_S)


def distributions(view: RunView) -> list[str]:
    """TTFT, TPOT and whole requests as cumulative shares of what completed; one line per workload."""
    columns = measured(view)
    shown = columns.select(columns.completed & ~columns.claim("cold_start"))
    out = []
    for title, name, field in (
        ("Time to first token", "client_ttft_ms", "ttft_ms"),
        ("Time per output token after the first", "client_tpot_ms", "tpot_ms"),
        ("Whole request", "client_e2e_ms", "e2e_ms"),
    ):
        if not (view.summary.has_first_times if field == "ttft_ms" else view.summary.has_tokens or field == "e2e_ms"):
            continue
        marks = _marks(view.limits(field))
        plot = Plot(title, "time", "share of requests", is_share=True, is_log=True, is_duration=True, marks=marks)
        out.append(charts.draw(plot, _by_workload(shown, shown.floats(name))))
    return [*out, waits(shown)]


def _marks(limits: Mapping[str, float]) -> tuple[Mark, ...]:
    """One mark per limit; who was promised it, where not everybody was promised the same."""
    who: dict[float, list[str]] = {}
    for name, limit in limits.items():
        who.setdefault(limit, []).append(name or "the others")
    if len(who) == 1:
        return tuple(Mark(limit, f"target {duration(limit)}") for limit in who)
    return tuple(Mark(limit, f"target {duration(limit)} of {', '.join(names)}") for limit, names in who.items())


def _by_workload(columns: Columns, values: Floats) -> list[Line]:
    known, codes = columns.names("workload"), columns.codes("workload")
    if len(known) < 2:
        return [Line("all requests", charts.cdf(values), BLUE)]
    return [
        Line(name or "unnamed", charts.cdf(values[codes == code]), _colour(place))
        for place, (name, code) in enumerate(known.items())
    ]


def waits(columns: Columns) -> str:
    """Where a request was before it ran, as distributions."""
    spans: tuple[tuple[str, SpanName, str], ...] = (("at the front", "front", GREY), ("at its replica", "engine", BLUE))
    lines = []
    for label, name, colour in spans:
        came, left = columns.span(name)
        lines.append(Line(label, charts.cdf((left - came) / NS_PER_MS), colour))
    plot = Plot("Waiting before the first step", "time", "share of requests", is_share=True, is_log=True,
                is_duration=True)  # fmt: skip
    return charts.draw(plot, lines)


def _limit(view: RunView, field: str) -> str:
    limits = set(view.limits(field).values())
    return duration(limits.pop()) if len(limits) == 1 else "its limit"


def goodput(view: RunView) -> str:
    """Shares of all requests that met each target, and all of them."""
    summary = view.summary
    promised = {
        "ttft": f"TTFT within {_limit(view, 'ttft_ms')}",
        "tpot": f"TPOT within {_limit(view, 'tpot_ms')}",
        "e2e": f"whole within {_limit(view, 'e2e_ms')}",
        "deadlines": "token n by TTFT + (n-1) TPOT",
    }
    entries = [svg.Bar("every target", summary.attainment, 0.0, GREEN, is_bold=True)]
    entries += [
        svg.Bar(promised[name], share, 0.0, BLUE) for name, share in summary.attained.items() if share is not None
    ]
    if len(entries) == 1:
        return "<p>Nobody was promised anything: every request that completed counts.</p>"
    rate = (
        f"{summary.attainment:.1%} of all requests kept every promise: {summary.goodput_offered_per_s:.2f} of "
        f"{summary.offered_per_s:.2f} requests/s"
    )
    return f'<p>{rate}. Refused, failed and unfinished requests are misses.</p><div class="plots">{bars(entries)}</div>'


def bars(entries: Sequence[svg.Bar]) -> str:
    """Horizontal bars of shares with names that may be long."""
    label, row, width = 190, 18, 560
    span = width - label - 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {row * len(entries) + 6}" width="{width}" '
        f'height="{row * len(entries) + 6}" role="img" aria-label="Goodput by SLO">'
    ]
    for place, entry in enumerate(entries):
        y = 3 + place * row
        weight = 'font-weight="bold"' if entry.is_bold else ""
        parts.append(svg.text(label - 6, y + 11, entry.name, size=10, anchor="end", extra=weight))
        parts.append(f'<rect x="{label}" y="{y + 2}" width="{span}" height="11" fill="#f0f0f0"/>')
        parts.append(
            f'<rect x="{label}" y="{y + 2}" width="{span * entry.value:.1f}" height="11" fill="{entry.colour}"/>'
        )
        parts.append(svg.text(label + span + 6, y + 11, f"{entry.value:.1%}", size=10, extra=weight))
    return "".join(parts) + "</svg>"
