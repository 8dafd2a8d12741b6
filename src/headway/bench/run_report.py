"""A simulated run as one HTML page: plots and tables that need nothing beside it."""

from html import escape
from pathlib import Path
from typing import Final

from headway.bench.columns import Columns
from headway.bench.first_look import first_look
from headway.bench.results import REPORT, write_whole
from headway.bench.run_config import configuration
from headway.bench.run_faults import faults_of, faults_table
from headway.bench.run_plots import distributions, goodput, measured, over_time
from headway.bench.run_segments import segment_bars
from headway.bench.run_summary import RunSummary
from headway.bench.run_tables import decisions_table, groups_table, latency_table, pools_table, tiles
from headway.bench.run_view import RunView, view_of

STYLE: Final = """
body{font:14px/1.45 sans-serif;max-width:1150px;margin:24px auto;padding:0 16px;color:#222;background:#fff}
h1{font-size:22px;margin-bottom:2px}h2{font-size:17px;margin:26px 0 6px;border-bottom:1px solid #ddd}
.sub{color:#666;margin-top:0}.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:14px 0}
.tile{border:1px solid #ddd;border-radius:6px;padding:7px 12px;min-width:84px}.tile b{display:block;font-size:19px}
.tile span{color:#666;font-size:12px}.look{background:#fff8e6;border-left:4px solid #ddaa33;padding:8px 14px}
.look ul{margin:4px 0;padding-left:18px}.plots{display:flex;flex-wrap:wrap;gap:8px}
table{border-collapse:collapse;font-size:12.5px;margin:6px 0 14px}th,td{padding:3px 9px;text-align:right;
border-bottom:1px solid #eee}th{background:#f5f5f5;font-weight:600;white-space:nowrap}
td:first-child,th:first-child,.text{text-align:left}td.text{max-width:560px}
details{margin:6px 0}summary{cursor:pointer}pre{background:#f7f7f7;padding:10px;overflow:auto;font-size:12px}
code{background:#f5f5f5}p{max-width:860px}
"""


def write_report(folder: Path, columns: Columns | None = None) -> Path:
    """Write `report.html` of a run's folder; return its path. `columns`: of its requests, if they are at hand."""
    path = folder / REPORT
    write_whole(path, page(view_of(folder, columns)).encode())
    return path


def page(view: RunView) -> str:
    """Return the whole page."""
    summary = view.summary
    state = "" if summary.complete else " (interrupted)"
    looks = "".join(f"<li>{escape(line)}</li>" for line in first_look(summary, view.points))
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(view.name)}</title>",
        f"<style>{STYLE}</style></head><body><h1>{escape(view.name)}{state}</h1>{_subtitle(summary)}",
        tiles(summary),
        f'<div class="look"><b>Where to look first</b><ul>{looks}</ul></div>',
        f'<h2>Over time</h2><div class="plots">{"".join(over_time(view))}</div>',
        f'<h2>Latency</h2><div class="plots">{"".join(distributions(view))}</div>{latency_table(summary)}',
        f"<h2>Where the time went</h2>{segment_bars(measured(view))}",
        f"<h2>Goodput by SLO</h2>{goodput(view)}",
        f"<h2>Pools</h2>{pools_table(summary)}",
    ]
    if faults := faults_of(view):
        parts.append(f"<h2>Faults</h2>{faults_table(faults, summary.virtual_s)}")
    for title, groups in (("Workloads", summary.workloads), ("Tenants", summary.tenants)):
        if len(groups) > 1:
            parts.append(f"<h2>{title}</h2>{groups_table(groups, has_tokens=view.summary.has_tokens)}")
    parts += [f"<h2>Decisions</h2>{decisions_table(view)}", f"<h2>Configuration</h2>{configuration(view)}"]
    return "".join(parts) + "</body></html>\n"


def _subtitle(summary: RunSummary) -> str:
    words = [f"seed {summary.seed}", f"configuration {summary.config_hash}", f"{summary.virtual_s:,.2f} virtual s"]
    if summary.warmup_s:
        words.append(f"the first {summary.warmup_s:g} s of arrivals warm up and count in no number")
    if summary.headway:
        words.append(f"Headway {summary.headway}")
    return f'<p class="sub">{escape(" · ".join(words))}</p>'
