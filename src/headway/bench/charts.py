"""Wide plots of a run as inline SVG: lines over time and distributions, with a legend above and marks at limits."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec
import numpy as np

from headway.bench.ends import Floats
from headway.bench.svg import nice_step, text

WIDTH: Final = 560
HEIGHT: Final = 236
LEGEND_ROW: Final = 13
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 46, 36
CDF_POINTS: Final = 160
STROKE: Final = 1.6
DOTS_MAX: Final = 24  # points of a line that get a dot each
GREY: Final = "#8a8a8a"

Point = tuple[float, float]


class Line(msgspec.Struct, frozen=True):
    """Points in the order of x. A filled one shades what lies under it."""

    name: str
    points: tuple[Point, ...]
    colour: str
    is_filled: bool = False
    is_dashed: bool = False


class Mark(msgspec.Struct, frozen=True):
    """A limit on the x axis."""

    at: float
    label: str


class Plot(msgspec.Struct, frozen=True):
    """What surrounds the lines. `x_unit` is printed behind the ticks; `is_log` is about x."""

    title: str
    x_label: str
    y_label: str
    is_share: bool = False  # y is printed in per cent, up to 100 %
    is_log: bool = False
    is_duration: bool = False  # x is milliseconds, printed as us, ms, s or min
    y_max: float | None = None
    marks: tuple[Mark, ...] = ()


class _Frame:
    """Maps values to places inside the axes."""

    def __init__(self, plot: Plot, lines: Sequence[Line]) -> None:
        xs = [x for line in lines for x, _ in line.points] + [mark.at for mark in plot.marks]
        ys = [y for line in lines for _, y in line.points]
        self.is_log = plot.is_log
        low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
        if self.is_log:
            low = max(low, high / 1e5, 1e-6)
            high = max(high, low * 1.0001)
        self.low, self.high = (low, high) if high > low else (low, low + 1.0)
        top = 1.0 if plot.is_share else plot.y_max or max(ys, default=1.0) or 1.0
        self.step = nice_step(top, 4)
        self.top = self.step * math.ceil(top / self.step - 1e-9)

    def x(self, value: float) -> float:
        if self.is_log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - min(max(value, 0.0), self.top) / self.top * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> list[float]:
        if not self.is_log:
            step = nice_step(self.high - self.low, 8)
            first = math.ceil(self.low / step - 1e-9)
            return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        span = math.log10(self.high / self.low)
        factors = (1, 1.5, 2, 3, 4, 5, 7) if span < 1.1 else (1, 2, 5) if span < 2.5 else (1, 3) if span < 4 else (1,)
        found = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        return [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]


def duration(ms: float) -> str:
    """A time in its own unit."""
    for limit, factor, unit in ((1.0, 1e3, "us"), (1e3, 1.0, "ms"), (120e3, 1e-3, "s")):
        if ms < limit:
            return f"{ms * factor:.3g} {unit}"
    return f"{ms / 60e3:.3g} min" if ms < 7200e3 else f"{ms / 3600e3:.3g} h"


def draw(plot: Plot, lines: Sequence[Line]) -> str:
    """Draw a plot; without points it says so."""
    shown = [line for line in lines if line.points]
    frame = _Frame(plot, shown)
    names = _legend(shown)
    more = LEGEND_ROW * max(0, len(names) - 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + more}" width="{WIDTH}" '
        f'height="{HEIGHT + more}" role="img" aria-label="{escape(plot.title, quote=True)}">',
        text(8, 16, plot.title, size=12, extra='font-weight="bold"'),
    ]
    if not shown:
        parts.append(text(WIDTH / 2, HEIGHT / 2, "nothing was measured", anchor="middle", extra=f'fill="{GREY}"'))
        return "".join(parts) + "</svg>"
    parts += [*names, f'<g transform="translate(0 {more})">', _grid(plot, frame)]
    parts += [_mark(mark, frame, place) for place, mark in enumerate(plot.marks)]
    parts += [_line(line, frame) for line in shown]
    return "".join(parts) + "</g></svg>"


def _line(line: Line, frame: _Frame) -> str:
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dash = ' stroke-dasharray="5 3"' if line.is_dashed else ""
    out = f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{STROKE}"{dash}/>'
    if len(places) <= DOTS_MAX and not frame.is_log:
        out += "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{line.colour}"/>' for x, y in places)
    if line.is_filled:
        ground = HEIGHT - BOTTOM
        area = f"{places[0][0]:.1f},{ground} {path} {places[-1][0]:.1f},{ground}"
        out = f'<polygon points="{area}" fill="{line.colour}" fill-opacity="0.13"/>' + out
    return out


def _mark(mark: Mark, frame: _Frame, place: int) -> str:
    # The first stands above the lines, where no legend is.
    x, y = frame.x(mark.at), TOP - 4 + 12 * place
    is_right = x > WIDTH * 0.7
    label = text(
        x + (-4 if is_right else 4),
        y,
        mark.label,
        size=9,
        anchor="end" if is_right else "start",
        extra='fill="#b3261e"',
    )
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#b3261e" stroke-dasharray="3 3"/>'
        + label
    )


def _grid(plot: Plot, frame: _Frame) -> str:
    parts = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for number in range(round(frame.top / frame.step) + 1):
        value = number * frame.step
        y = frame.y(value)
        shown = f"{value:.0%}" if plot.is_share else f"{value:,.6g}"
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e6e6e6"/>')
        parts.append(text(LEFT - 5, y + 3, shown, anchor="end", size=9))
    for value in frame.ticks():
        label = duration(value) if plot.is_duration else f"{value:,.6g}"
        x = frame.x(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 3}" stroke="#555"/>')
        parts.append(text(x, bottom + 14, label, anchor="middle", size=9))
    parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#555"/>')
    parts.append(text((LEFT + right) / 2, HEIGHT - 6, plot.x_label, anchor="middle"))
    middle = (TOP + bottom) / 2
    parts.append(text(11, middle, plot.y_label, anchor="middle", extra=f'transform="rotate(-90 11 {middle:.1f})"'))
    return "".join(parts)


def _legend(lines: Sequence[Line]) -> list[str]:
    """The names of all lines, row by row."""
    rows, x = [""], float(LEFT)
    for line in lines:
        wide = 24 + 5.3 * len(line.name)
        if x + wide > WIDTH and x > LEFT:
            rows, x = [*rows, ""], float(LEFT)
        dash = ' stroke-dasharray="4 2"' if line.is_dashed else ""
        y = 34 + LEGEND_ROW * (len(rows) - 1)
        rows[-1] += f'<line x1="{x:.1f}" x2="{x + 14:.1f}" y1="{y - 3}" y2="{y - 3}" stroke="{line.colour}" '
        rows[-1] += f'stroke-width="3"{dash}/>' + text(x + 18, y, line.name, size=9.5)
        x += wide
    return rows


def cdf(values: Floats) -> tuple[Point, ...]:
    """Return the points of a distribution: value and the share that is not above it. nan is left out."""
    ordered = np.sort(values[~np.isnan(values)])
    if not len(ordered):
        return ()
    count = min(CDF_POINTS, len(ordered))
    # Evenly over the shares, and densely over the last hundredth: that is where promises break.
    shares = np.concatenate([np.linspace(1 / len(ordered), 1, count), 1 - np.geomspace(0.01, 1e-4, 12)])
    place = np.clip(np.ceil(shares * len(ordered)).astype(np.int64) - 1, 0, len(ordered) - 1)
    shown = np.unique(ordered[place])
    upto = np.searchsorted(ordered, shown, side="right") / len(ordered)
    return tuple(zip(shown.tolist(), upto.tolist(), strict=True))
