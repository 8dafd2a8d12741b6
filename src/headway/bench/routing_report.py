"""The routing study as one HTML page: plots and tables that need nothing beside it."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Final

import msgspec

from headway.bench import svg
from headway.bench.routing import RoutingSummary
from headway.bench.routing_plan import CAPACITY, LOADS, OURS, SCENARIOS, Study, Tuned, by_cell
from headway.bench.routing_study import SLO, Result, Table
from headway.bench.routing_verdict import Verdict, judge, share, spread
from headway.sim.hardware import LLAMA_70B
from headway.sim.routing_fleet import FAST, REPORT_MS, SLOW, STARVED
from headway.sim.scrape import ScrapeParams

CellKey = tuple[str, int, float]  # scenario, replicas, load
Cells = dict[CellKey, dict[str, list[Result]]]

STYLE: Final = """
body{font:14px/1.45 sans-serif;max-width:1180px;margin:24px auto;padding:0 16px;color:#222}
h1{font-size:22px}h2{font-size:18px;margin-top:34px;border-bottom:1px solid #ddd}h3{font-size:15px;margin-bottom:4px}
table{border-collapse:collapse;font-size:12px;margin:6px 0 14px}th,td{padding:2px 7px;text-align:right;
border-bottom:1px solid #eee;white-space:nowrap}th{background:#f5f5f5}td:first-child,th:first-child{text-align:left}
tr.ours td{font-weight:bold;background:#fdecea}.wins{color:#11712b;font-weight:bold}
.loses{color:#b3261e;font-weight:bold}
.plots{display:flex;flex-wrap:wrap;gap:6px}details{margin:4px 0}summary{cursor:pointer}code{background:#f5f5f5}
p{max-width:860px}
"""
TITLES: Final[Mapping[Table, str]] = {
    "routing": "Routing alone: everything is admitted and dispatched at once",
    "admission": "Every router with our admission, dispatched at once",
    "whole": "Whole systems: ours with admission and engine policies, dispatched at once; rivals as they ship",
}
SEEN: Final = {
    "exact": "own engines' reports",
    "stale": "scraped metrics only",
    "starved": "one replica with a tenth of the KV",
    "mixed": "half H100, half A100",
}
COLUMNS: Final[tuple[tuple[str, Callable[[RoutingSummary], str]], ...]] = (
    ("goodput /s", lambda s: f"{s.goodput_per_s:.2f}"),
    ("of offered", lambda s: f"{s.attainment:.1%}"),
    ("deadline form", lambda s: f"{s.attainment_deadlines:.1%}"),
    ("TTFT p50", lambda s: _ms(s.ttft_ms.p50)),
    ("p95", lambda s: _ms(s.ttft_ms.p95)),
    ("p99", lambda s: _ms(s.ttft_ms.p99)),
    ("TPOT p50", lambda s: _ms(s.tpot_ms.p50)),
    ("p95", lambda s: _ms(s.tpot_ms.p95)),
    ("e2e p50", lambda s: _ms(s.e2e_ms.p50)),
    ("hits", lambda s: f"{s.hit_rate:.1%}"),
    ("max/mean", lambda s: f"{s.imbalance:.2f}"),
    ("Jain", lambda s: f"{s.jain:.3f}"),
    ("refused", lambda s: f"{s.refused / s.offered:.1%}"),
    ("wasted prefill", lambda s: f"{s.wasted_prefill:.1%}"),
)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cells_of(study: Study, table: Table) -> Cells:
    """The cells of a table; rivals of whole systems are those of routing alone."""
    cells = by_cell(study.of(table))
    if table == "whole":
        alone = by_cell(study.of("routing"))
        for key, found in cells.items():
            found.update({name: results for name, results in alone.get(key, {}).items() if name != OURS})
    return cells


def merged(results: Sequence[Result]) -> RoutingSummary:
    """The mean over seeds, field by field; percentiles are means of percentiles."""
    plain = [msgspec.to_builtins(result.summary) for result in results]
    return msgspec.convert(_mean(plain), RoutingSummary, strict=False)


def _mean(values: Sequence[object]) -> object:
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean([value[name] for value in values if isinstance(value, dict)]) for name in first}
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers:
        return None
    return round(fmean(numbers)) if isinstance(first, int) and not isinstance(first, bool) else fmean(numbers)


def verdicts(cells: Cells) -> dict[CellKey, Verdict]:
    """Ours against the best rival, where both have run."""
    return {
        key: judge(found[OURS], {name: results for name, results in found.items() if name != OURS})
        for key, found in sorted(cells.items(), key=_order)
        if OURS in found and len(found) > 1
    }


def _order(item: tuple[CellKey, object]) -> tuple[int, int, float]:
    scenario, replicas, load = item[0]
    return (list(SCENARIOS).index(scenario), replicas, load)


def _load_name(load: float) -> str:
    return next((name for name, value in LOADS.items() if value == load), f"{load:g}")


def verdict_table(found: Mapping[CellKey, Verdict]) -> str:
    """One row per cell."""
    rows = []
    for (scenario, replicas, load), v in found.items():
        rows.append(
            f"<tr><td>{scenario}</td><td>{replicas}</td><td>{_load_name(load)}</td><td>{v.ours:.1%}</td>"
            f"<td>{escape(v.rival)}</td><td>{v.best:.1%}</td><td>{v.gain:+.1%} &plusmn; {v.noise:.1%}</td>"
            f'<td>{v.seeds}</td><td class="{v.word}">{v.word}</td></tr>'
        )
    head = "<tr><th>scenario</th><th>replicas</th><th>load</th><th>ours</th><th>best rival</th><th>its share</th>"
    return f"<table>{head}<th>difference</th><th>seeds</th><th></th></tr>{''.join(rows)}</table>"


def summary_line(found: Mapping[CellKey, Verdict]) -> str:
    """How many cells are won, tied and lost, and what past the knee is gained."""
    words = [v.word for v in found.values()]
    late = [v.gain for (_, _, load), v in found.items() if load >= 1.0]
    past = f"; at and past the knee the gain is {min(late):+.1%} to {max(late):+.1%}" if late else ""
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("wins", "ties", "loses"))
    return f"{counts} of {len(words)} cells against the best rival of each cell{past}."


def colours(names: Sequence[str]) -> dict[str, str]:
    """Ours stands out, every rival keeps its colour through the page."""
    rivals = sorted(name for name in names if name != OURS)
    palette = svg.COLOURS
    return {OURS: svg.OURS_COLOUR} | {name: palette[i % len(palette)] for i, name in enumerate(rivals)}


def curves(cells: Cells, paint: Mapping[str, str]) -> str:
    """Goodput over load, one plot per scenario and size."""
    plots = []
    for scenario, replicas in sorted({key[:2] for key in cells}, key=lambda k: (list(SCENARIOS).index(k[0]), k[1])):
        loads = sorted(load for s, r, load in cells if (s, r) == (scenario, replicas))
        names = sorted({name for load in loads for name in cells[(scenario, replicas, load)]})
        series = [
            svg.Series(
                name,
                tuple(
                    (load, fmean(r.summary.goodput_per_s for r in cells[(scenario, replicas, load)][name]))
                    for load in loads
                    if name in cells[(scenario, replicas, load)]
                ),
                paint[name],
                name == OURS,
            )
            for name in names
        ]
        ticks = tuple((load, f"{load:g}") for load in loads)
        axes = svg.Axes(f"{scenario}, {replicas} replicas", "load / knee", "goodput, requests/s", ticks)
        if len(loads) > 1:
            plots.append(svg.lines(axes, series))
    return f'<div class="plots">{"".join(plots)}</div>'


def ranking(cells: Cells, paint: Mapping[str, str], load: float) -> str:
    """Bars of one load: shares of what was offered."""
    plots = []
    for key, found in sorted(cells.items(), key=_order):
        if key[2] != load:
            continue
        entries = [
            svg.Bar(name, share(results), spread(results), paint[name], name == OURS)
            for name, results in sorted(found.items(), key=lambda item: -share(item[1]))
        ]
        plots.append(svg.bars(f"{key[0]}, {key[1]} replicas, {_load_name(load)}", entries))
    return f'<div class="plots">{"".join(plots)}</div>'


def cell_tables(cells: Cells) -> str:
    """Every number of every cell, folded away."""
    parts = []
    for key, found in sorted(cells.items(), key=_order):
        rows = []
        for name, results in sorted(found.items(), key=lambda item: -share(item[1])):
            summary = merged(results)
            shown = "".join(f"<td>{get(summary)}</td>" for _, get in COLUMNS)
            mark = ' class="ours"' if name == OURS else ""
            rows.append(f"<tr{mark}><td>{escape(name)}</td>{shown}<td>{len(results)}</td></tr>")
        head = "".join(f"<th>{label}</th>" for label, _ in COLUMNS)
        offered = merged(next(iter(found.values()))).offered_per_s
        title = f"{key[0]}, {key[1]} replicas, {_load_name(key[2])}: {offered:.1f} requests/s offered"
        parts.append(
            f"<details><summary>{title}</summary><table><tr><th>policy</th>{head}<th>seeds</th></tr>"
            f"{''.join(rows)}</table></details>"
        )
    return "".join(parts)


def tuned_table(tuned: Mapping[str, Tuned]) -> str:
    """What the sweep chose."""
    rows = []
    for name, found in sorted(tuned.items()):
        params = ", ".join(f"{key} = {value}" for key, value in found.choice.params.items()) or "its defaults"
        goodput = f"{found.goodput:.1%}" if found.tried else "nothing to tune here"
        rows.append(
            f"<tr><td>{escape(name)}</td><td>{found.tried}</td><td>{goodput}</td><td>{escape(params)}</td></tr>"
        )
    head = "<tr><th>policy</th><th>configurations</th><th>share met in the sweep</th><th>chosen</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def setting(study: Study) -> str:
    """What was simulated, in words and numbers that the code holds."""
    scrape = ScrapeParams()
    knees = ", ".join(f"{name} {rate:,.0f}" for name, rate in study.knees.found.items())
    kinds = "".join(f"<li><b>{name}</b>: {SEEN[name]}</li>" for name in SCENARIOS)
    h100, a100, starved = FAST.kv_blocks * 512, SLOW.kv_blocks * 512, STARVED.kv_blocks * 512
    return f"""
<p>The nodes that serve in production (router, admission, front queue, LLM WorkerNodes with chunked prefill and prefix
cache) on a virtual clock, under the Mooncake conversation trace (FAST'25, Apache-2.0): real lengths and shared
512-token blocks, arrivals spread over the trace's 3 s quantum and rescaled to a rate in prompt tokens. A seed
is another slice of the trace with other arrivals. Policies see
reports with their delay and what they sent themselves, never the truth;
answer lengths are hidden (the client's limit is 2048).</p>
<ul><li>Replica: {LLAMA_70B.name}, BF16, on 8 H100 ({h100:,} tokens of KV) or 8 A100 ({a100:,}); roofline with
all-reduces (REFERENCE 2), checked against published decode times; 5 % noise per step. Engine: vLLM's
defaults (2048 batched tokens, 256 sequences, first come first served).</li>
<li>SLO: TTFT {SLO.ttft_ms / 1000:g} s + {SLO.ttft_ms_per_1k:g} ms per thousand prompt tokens (SMetric's form, twice its
slope: a dense 70B is slower than its model), mean TPOT {SLO.tpot_ms:g} ms. Goodput counts requests that met both;
refused, late and unfinished ones are misses. The deadline form wants token n at TTFT + (n - 1) TPOT.</li>
<li>Knee: where <code>least_tokens</code> falls below 90 % (prompt tokens/s and replica: {knees}; the starved fleet is
offered {CAPACITY["starved"]:g} and the mixed one {CAPACITY["mixed"]:g} of a uniform one's). Loads:
{", ".join(f"{name} {value:g}" for name, value in LOADS.items())} times the knee.</li>
{kinds}
<li>Reports of own engines come every {REPORT_MS:g} ms; scraped pages every {scrape.interval_s:g} s,
{scrape.delay_s:g} s late, with waiting, running and KV use only. The starved replica holds {starved:,} tokens.</li>
<li>First third of the requests warms the caches and does not count.</li></ul>"""


def page(study: Study, notes: str = "") -> str:
    """The whole report."""
    tables: tuple[Table, ...] = ("routing", "admission", "whole")
    found = {table: cells for table in tables if (cells := cells_of(study, table))}
    names = sorted({name for cells in found.values() for cell in cells.values() for name in cell})
    paint = colours(names)
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Routing study</title><style>{STYLE}</style>"
        f"</head><body><h1>Routing policies on the Mooncake conversation trace</h1>",
        f"<p>Made by <code>{escape(study.command)}</code>.</p>",
        "<h2>Verdicts</h2>",
    ]
    for table, cells in found.items():
        judged = verdicts(cells)
        if judged:
            parts.append(f"<p><b>{TITLES[table]}.</b> {summary_line(judged)}</p>")
    parts += [notes, "<h2>Setting</h2>", setting(study)]
    for table, cells in found.items():
        parts.append(f"<h2>{TITLES[table]}</h2>")
        parts.append(curves(cells, paint))
        for load in (LOADS["knee"], LOADS["past"]):
            if any(key[2] == load for key in cells):
                parts += [
                    f"<h3>Share of requests within their SLO, {_load_name(load)}</h3>",
                    ranking(cells, paint, load),
                ]
        parts += [
            "<h3>Ours against the best rival of each cell</h3>",
            verdict_table(verdicts(cells)),
            cell_tables(cells),
        ]
    parts += ["<h2>Parameters</h2>", "<p>Every policy with parameters was given the same number of configurations "
              "(its defaults, then draws from its grid), at a load and on a slice that no table uses; the best mean of "
              "own reports and scraped pages is used everywhere.</p>", tuned_table(study.tuned)]  # fmt: skip
    return "".join(parts) + "</body></html>\n"
