"""Small plots as inline SVG: no script, no font, nothing to fetch."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import msgspec

WIDTH: Final = 380
HEIGHT: Final = 250
LEFT, RIGHT, TOP, BOTTOM = 46, 104, 26, 36
COLOURS: Final = (
    "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#999933", "#882255", "#44aa99", "#117733",
    "#6699cc", "#ddaa33", "#004488", "#bb5566", "#777777",
)  # fmt: skip  # two palettes of Paul Tol, readable by the colour-blind
OURS_COLOUR: Final = "#d62728"


class Series(msgspec.Struct, frozen=True):
    """One line: points in the order of x; a bold one stands out."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    is_bold: bool = False


class Axes(msgspec.Struct, frozen=True):
    """`x_ticks`: value and label. `y_max` None: what the data needs."""

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[tuple[float, str], ...]
    y_max: float | None = None
    is_share: bool = False  # y is printed in per cent


def nice_step(span: float, count: int = 5) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that divides `span` into about `count` parts."""
    raw = max(span, 1e-12) / count
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if raw <= power * factor * 1.0001)


def text(x: float, y: float, words: str, *, size: float = 10, anchor: str = "start", extra: str = "") -> str:
    """A piece of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-family="sans-serif" {extra}>{escape(words)}</text>'
    )


class _Frame:
    """Maps values to places inside the axes."""

    def __init__(self, axes: Axes, series: Sequence[Series]) -> None:
        xs = [x for x, _ in axes.x_ticks]
        self.low, self.high = min(xs), max(xs)
        pad = 0.04 * (self.high - self.low or 1.0)
        self.low, self.high = self.low - pad, self.high + pad
        top = axes.y_max or max((y for line in series for _, y in line.points), default=1.0) or 1.0
        self.step = nice_step(top)
        self.top = self.step * math.ceil(top / self.step - 1e-9)

    def x(self, value: float) -> float:
        return LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - min(value, self.top) / self.top * (HEIGHT - TOP - BOTTOM)


def lines(axes: Axes, series: Sequence[Series]) -> str:
    """A plot of lines, each named at its right end."""
    frame = _Frame(axes, series)
    parts = [_open(axes.title), _grid(axes, frame)]
    ordered = sorted(series, key=lambda line: line.is_bold)
    for line in ordered:
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
        width = 2.6 if line.is_bold else 1.2
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{width}"/>')
        parts += [
            f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="{width}" fill="{line.colour}"/>'
            for x, y in line.points
        ]
    parts += _labels(frame, [line for line in series if line.points])
    parts.append("</svg>")
    return "".join(parts)


def _open(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(title, quote=True)}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        + text(LEFT, 15, title, size=12, extra='font-weight="bold"')
    )


def _grid(axes: Axes, frame: _Frame) -> str:
    parts = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for number in range(round(frame.top / frame.step) + 1):
        value = number * frame.step
        y = frame.y(value)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        shown = f"{value:.0%}" if axes.is_share else f"{value:g}"
        parts.append(text(LEFT - 5, y + 3, shown, anchor="end", size=9))
    for value, label in axes.x_ticks:
        parts.append(text(frame.x(value), bottom + 13, label, anchor="middle", size=9))
    parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#555"/>')
    parts.append(text((LEFT + right) / 2, HEIGHT - 7, axes.x_label, anchor="middle"))
    middle = (TOP + bottom) / 2
    parts.append(text(11, middle, axes.y_label, anchor="middle", extra=f'transform="rotate(-90 11 {middle:.1f})"'))
    return "".join(parts)


def _labels(frame: _Frame, series: Sequence[Series]) -> list[str]:
    """Names at the right ends, moved apart where they would overlap."""
    gap = min(10.5, (HEIGHT - TOP - 8) / max(1, len(series)))
    wanted = sorted(((frame.y(line.points[-1][1]), line) for line in series), key=lambda item: item[0])
    places: list[float] = []
    for y, _ in wanted:
        places.append(max(y, places[-1] + gap if places else TOP))
    over = places[-1] - (HEIGHT - 12) if places else 0.0
    if over > 0:  # push back up, from the last one
        places[-1] -= over
        for i in range(len(places) - 2, -1, -1):
            places[i] = min(places[i], places[i + 1] - gap)
    parts = []
    for (y, line), place in zip(wanted, places, strict=True):
        x = frame.x(line.points[-1][0])
        weight = 'font-weight="bold"' if line.is_bold else ""
        label_x = WIDTH - RIGHT + 10
        parts.append(
            f'<line x1="{x + 3:.1f}" y1="{y:.1f}" x2="{label_x - 2}" y2="{place:.1f}" stroke="{line.colour}" '
            'stroke-width="0.6"/>'
        )
        parts.append(text(label_x, place + 3, line.name, size=9, extra=f'fill="{line.colour}" {weight}'))
    return parts


class Bar(msgspec.Struct, frozen=True):
    """One horizontal bar, with the spread over seeds as a whisker."""

    name: str
    value: float
    spread: float
    colour: str
    is_bold: bool = False


def bars(title: str, entries: Sequence[Bar], note: Mapping[str, str] | None = None) -> str:
    """Horizontal bars of shares in [0, 1], best first; `note` is printed behind a bar."""
    row, label, notes = 15, 118, note or {}
    width, height = WIDTH, 26 + row * len(entries) + 8
    span = width - label - 96
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title, quote=True)}"><rect width="{width}" height="{height}" fill="white"/>',
        text(6, 15, title, size=12, extra='font-weight="bold"'),
    ]
    for place, entry in enumerate(entries):
        y = 24 + place * row
        end = label + span * entry.value
        weight = 'font-weight="bold"' if entry.is_bold else ""
        parts.append(text(label - 5, y + 10, entry.name, size=9, anchor="end", extra=weight))
        parts.append(f'<rect x="{label}" y="{y + 2}" width="{max(0.5, span * entry.value):.1f}" height="10" '
                     f'fill="{entry.colour}"/>')  # fmt: skip
        if entry.spread:
            low, high = label + span * max(0.0, entry.value - entry.spread), end + span * entry.spread
            parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 7}" y2="{y + 7}" stroke="#222"/>')
        shown = f"{entry.value:.1%} {notes.get(entry.name, '')}"
        parts.append(text(end + span * entry.spread + 5, y + 10, shown, size=9, extra=weight))
    parts.append("</svg>")
    return "".join(parts)


class Amount(msgspec.Struct, frozen=True):
    """One horizontal bar of any unit; `shown` is printed behind it."""

    name: str
    value: float
    shown: str
    colour: str


def amounts(title: str, entries: Sequence[Amount], label: int = 132) -> tuple[str, int, int]:
    """Horizontal bars beside each other's longest; names take `label`. Returns the picture, its width and height."""
    width, row = WIDTH + label - 132, 17
    height = 32 + row * len(entries)
    most = max((entry.value for entry in entries), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title, quote=True)}"><rect width="{width}" height="{height}" fill="white"/>',
        text(8, 16, title, size=12, extra='font-weight="bold"'),
    ]
    for place, entry in enumerate(entries):
        y, long = 24 + place * row, max(0.5, entry.value / most * (WIDTH - 132 - 90))
        parts.append(text(label - 5, y + 11, entry.name, size=9.5, anchor="end"))
        parts.append(f'<rect x="{label}" y="{y + 2}" width="{long:.1f}" height="12" fill="{entry.colour}"/>')
        parts.append(text(label + long + 5, y + 11, entry.shown, size=9.5))
    return "".join(parts) + "</svg>", width, height
