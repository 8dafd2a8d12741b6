"""Where the time of requests went: their exclusive segments, of all and of the slowest, as stacked bars."""

from html import escape
from typing import Final

import msgspec
import numpy as np

from headway.bench import svg
from headway.bench.charts import duration
from headway.bench.columns import Columns
from headway.bench.ends import Mask

SLOWEST: Final = 0.05
# In the order of a request's life; what stands before the first token.
BEFORE_FIRST: Final = ("input_transfer", "admission", "model_load", "gateway_queue", "network_wait", "engine_queue",
                       "text_encode", "prefill")  # fmt: skip
AFTER_FIRST: Final = ("handoff", "preempted", "recompute", "decode", "vae_encode", "denoise", "vae_decode", "upload",
                      "stream_output", "other")  # fmt: skip
COLOURS: Final = {
    "gateway_queue": "#ee6677", "engine_queue": "#ccbb44", "prefill": "#4477aa", "decode": "#66ccee",
    "preempted": "#aa3377", "recompute": "#882255", "handoff": "#228833", "network_wait": "#999933",
    "model_load": "#117733", "admission": "#777777", "denoise": "#44aa99",
}  # fmt: skip
DARK: Final = ("prefill", "preempted", "recompute", "handoff", "model_load", "admission")  # take white letters
WIDTH: Final = 1128
LABEL: Final = 230
ROW: Final = 24
LEAST: Final = 0.002  # of a bar: less is not seen


class _Bar(msgspec.Struct, frozen=True):
    """The mean milliseconds of some requests, by segment."""

    label: str
    parts: dict[str, float]


def segment_bars(columns: Columns) -> str:
    """Draw the bars of requests that completed; nothing without any."""
    shown = columns.select(columns.completed)
    if not shown.count:
        return ""
    bars = []
    for title, names, time in (
        ("to the first token", BEFORE_FIRST, "client_ttft_ms"),
        ("whole request", (*BEFORE_FIRST, *AFTER_FIRST), "client_e2e_ms"),
    ):
        took = shown.floats(time)
        limit = np.nanquantile(took, 1 - SLOWEST) if (~np.isnan(took)).any() else np.inf
        bars.append(_Bar(f"{title}: all", _means(shown, names, ~np.isnan(took))))
        bars.append(_Bar(f"{title}: slowest {SLOWEST:.0%}", _means(shown, names, took >= limit)))
    return _draw([bar for bar in bars if sum(bar.parts.values()) > 0])


def _means(columns: Columns, names: tuple[str, ...], among: Mask) -> dict[str, float]:
    known = columns.segments
    return {name: float(columns.segment(name)[among].mean()) for name in names if name in known and among.any()}


def _draw(bars: list[_Bar]) -> str:
    seen = [
        name
        for name in (*BEFORE_FIRST, *AFTER_FIRST)
        if any(bar.parts.get(name, 0.0) > LEAST * sum(bar.parts.values()) for bar in bars)
    ]
    height = 34 + ROW * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Where the time went">'
    ]
    x = float(LABEL)
    for name in seen:
        parts.append(f'<rect x="{x:.1f}" y="6" width="10" height="10" fill="{_colour(name)}"/>')
        parts.append(svg.text(x + 14, 15, name.replace("_", " ")))
        x += 30 + 5.6 * len(name)
    span = WIDTH - LABEL - 90
    for place, bar in enumerate(bars):
        y, left, total = 26 + ROW * place, float(LABEL), sum(bar.parts.values())
        parts.append(svg.text(LABEL - 8, y + 13, bar.label, anchor="end", size=11))
        for name in seen:
            share = bar.parts.get(name, 0.0) / total
            wide = span * share
            hint = f"{name}: {duration(bar.parts.get(name, 0.0))}, {share:.1%}"
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{wide:.1f}" height="17" fill="{_colour(name)}">'
                f"<title>{escape(hint)}</title></rect>"
            )
            if wide > 40:
                ink = 'fill="#fff"' if name in DARK else ""
                parts.append(svg.text(left + wide / 2, y + 12, f"{share:.0%}", size=9.5, anchor="middle", extra=ink))
            left += wide
        parts.append(svg.text(LABEL + span + 8, y + 13, f"mean {duration(total)}", size=11))
    return "".join(parts) + "</svg>"


def _colour(name: str) -> str:
    return COLOURS.get(name, "#bbbbbb")
