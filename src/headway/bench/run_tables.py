"""The tables of a simulated run."""

from collections.abc import Mapping
from html import escape
from typing import Final

from headway.bench.charts import duration
from headway.bench.run_summary import GroupSummary, RunSummary
from headway.bench.run_view import RunView
from headway.bench.summary import Quantiles

DRAIN: Final = 1.2  # times as long as arrivals come
GROUPS_MAX: Final = 20  # rows of a table of tenants


def tiles(summary: RunSummary) -> str:
    """The numbers that matter most."""
    shown = [
        (f"{summary.goodput_offered_per_s:.2f}/s", "goodput while offered"),
        (f"{summary.attainment:.1%}", "kept every promise"),
        (f"{summary.offered_per_s:.2f}/s", "offered"),
        (f"{summary.completed:,} / {summary.sent:,}", "completed"),
    ]
    for name, q, shows in (
        ("TTFT", summary.ttft_ms, summary.has_first_times),
        ("TPOT", summary.tpot_ms, summary.has_tokens),
        ("whole request", summary.e2e_ms, not summary.has_tokens),
        ("queues", summary.queue_ms, not summary.has_tokens),
    ):
        shown += [(_ms(q.p50), f"{name} p50"), (_ms(q.p99), f"{name} p99")] if shows else []
    if summary.has_tokens:
        shown.append((f"{summary.output_tokens_per_s:,.0f}/s", "output tokens"))
    if summary.images_per_s is not None:
        shown.append((f"{summary.images_per_s:,.2f}/s", "images"))
    if summary.video_s_per_s is not None:
        shown.append((f"{summary.video_s_per_s:,.2f} s/s", "video"))
    found = "".join(f"<div class=tile><b>{value}</b><span>{name}</span></div>" for value, name in shown)
    return f'<div class="tiles">{found}</div>{drain(summary)}'


def drain(summary: RunSummary) -> str:
    """A word on rates where the run goes on long after the last arrival."""
    arriving_s = (summary.sent - 1) / summary.offered_per_s if summary.offered_per_s else summary.duration_s
    if summary.duration_s < DRAIN * arriving_s:
        return ""
    return (
        f'<p class="sub">Arrivals end after {arriving_s:.1f} of {summary.duration_s:.1f} s; then the run drains, which '
        f"lowers every rate over the whole of it (goodput {summary.goodput_per_s:.2f}/s).</p>"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else duration(value)


def latency_table(summary: RunSummary) -> str:
    """Percentiles of every time."""
    rows = [("TTFT", summary.ttft_ms)] if summary.has_first_times else []
    if summary.has_tokens:
        rows += [
            ("TPOT", summary.tpot_ms),
            ("gaps between tokens, pooled", summary.itl_ms),
            ("longest tenth of a request's gaps, mean", summary.itl_top10_ms),
            ("longest gap of a request", summary.itl_max_ms),
        ]
    rows += [("whole request", summary.e2e_ms), ("all queues", summary.queue_ms)]
    if summary.cold is not None:
        rows.append(("TTFT of cold requests, in no other row", summary.cold.ttft_ms))
    body = "".join(
        f"<tr><td>{name}</td><td>{q.count:,}</td>{''.join(f'<td>{_ms(value)}</td>' for value in _percentiles(q))}</tr>"
        for name, q in rows
    )
    head = "<tr><th></th><th>count</th><th>mean</th><th>p50</th><th>p95</th><th>p99</th><th>max</th></tr>"
    return f"<table>{head}{body}</table>"


def _percentiles(q: Quantiles) -> tuple[float | None, ...]:
    return (q.mean, q.p50, q.p95, q.p99, q.max)


def pools_table(summary: RunSummary) -> str:
    """What each pool had to do and did."""
    rows = []
    for name in sorted({*summary.pools, *summary.pool_use}):
        use, group = summary.pool_use.get(name), summary.pools.get(name)
        counters = {} if use is None else use.counters
        queried = counters.get("prefix_query_tokens", 0)
        cells = [
            "-" if use is None else f"{use.replicas}",
            "-" if use is None else f"{use.devices}",
            "-" if use is None else f"{use.busy:.1%}",
            "-" if use is None or use.kv_peak is None else f"{use.kv_peak:.1%}",
            "-" if group is None else f"{group.sent:,}",
            "n/a" if group is None or not group.output_tokens else f"{group.output_tokens:,}",
            *_drawn(group, summary),
            "-" if group is None else _ms(group.queue_ms.p99),
            f"{counters.get('steps', 0) + counters.get('denoise_steps', 0):,}",
            f"{counters.get('preemptions', 0):,}",
            f"{counters.get('prefix_hit_tokens', 0) / queried:.1%}" if queried else "-",
        ]
        rows.append(f"<tr><td>{escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = ("pool", "replicas", "devices", "busy", "KV peak", "requests", "output tokens", *_drawn_heads(summary),
            "queues p99", "steps", "preempted", "prefix hits")  # fmt: skip
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{''.join(rows)}</table>"


def _drawn_heads(summary: RunSummary) -> tuple[str, ...]:
    has = (summary.images_per_s is not None, summary.video_s_per_s is not None)
    return tuple(name for name, is_there in zip(("images", "s of video"), has, strict=True) if is_there)


def _drawn(group: GroupSummary | None, summary: RunSummary) -> tuple[str, ...]:
    """What a pool made of what some pool makes."""
    cells = {
        "images": "n/a" if group is None or not group.images else f"{group.images:,}",
        "s of video": "n/a" if group is None or group.video_s is None else f"{group.video_s:,.1f}",
    }
    return tuple(cells[name] for name in _drawn_heads(summary))


def groups_table(groups: Mapping[str, GroupSummary], *, has_tokens: bool = True) -> str:
    """One row per tenant or workload, the largest first."""
    ranked = sorted(groups.items(), key=lambda item: (-item[1].sent, item[0]))
    rows = []
    for name, group in ranked[:GROUPS_MAX]:
        cells = [
            f"{group.sent:,}",
            f"{group.completed:,}",
            f"{group.attainment:.1%}",
            f"{group.goodput_per_s:.2f}",
            *((f"{group.prompt_tokens:,}", f"{group.output_tokens:,}") if has_tokens else ()),
            *(_ms(value) for q in _times(group, has_tokens=has_tokens) for value in (q.p50, q.p99)),
            _ms(group.queue_ms.p99),
        ]
        rows.append(f"<tr><td>{escape(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    of_text = ("prompt tokens", "output tokens", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")
    head = ("", "requests", "completed", "kept promise", "goodput /s",
            *(of_text if has_tokens else ("whole p50", "whole p99")), "queues p99")  # fmt: skip
    more = f"<p>and {len(ranked) - GROUPS_MAX} more in summary.json</p>" if len(ranked) > GROUPS_MAX else ""
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{''.join(rows)}</table>{more}"


def _times(group: GroupSummary, *, has_tokens: bool) -> tuple[Quantiles, ...]:
    return (group.ttft_ms, group.tpot_ms) if has_tokens else (group.e2e_ms,)


def decisions_table(view: RunView) -> str:
    """The most frequent choices, with the reason that the first of each gave."""
    if not view.decisions:
        return "<p>No decision changed anything.</p>"
    rows = [
        f"<tr><td>{decision.level}</td><td class=text>{escape(decision.kind)}</td>"
        f"<td class=text>{escape(decision.chosen)}</td><td>{count:,}</td>"
        f"<td class=text>{escape(decision.reason)}</td></tr>"
        for decision, count in view.decisions
    ]
    total = sum(view.summary.decisions.values())
    head = (
        "<tr><th>layer</th><th class=text>kind</th><th class=text>chosen</th><th>times</th>"
        "<th class=text>first reason</th></tr>"
    )
    return f"<p>{total:,} decisions in decisions.jsonl.</p><table>{head}{''.join(rows)}</table>"
