"""Cost of a step against running requests, both axes logarithmic, as one SVG that needs nothing else."""

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 420, 320, 56, 56, 40, 20
COLOURS = ("#1f6fb2", "#c0532b", "#3a8a4d", "#7a4fa3", "#8a8a8a")
Row = Mapping[str, object]


def number(row: Row, key: str) -> float:
    """A figure of a row."""
    value = row[key]
    assert isinstance(value, int | float)
    return float(value)


def picture(rows: Sequence[Row]) -> str:
    """Steady on the left, churn on the right: median lines, with the 99th percentile as thin ones."""
    kinds = [kind for kind in ("steady", "churn") if any(row["kind"] == kind for row in rows)]
    rows = [
        row for row in rows if row["order"] == "fcfs" and number(row, "share") == 1.0 and number(row, "block") == 16
    ]
    names = list(dict.fromkeys(str(row["system"]) for row in rows))
    width = len(kinds) * WIDTH + GAP
    low, high = 0, math.ceil(math.log10(max(number(row, "p99") for row in rows)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="16" font-size="13">CPU time of the scheduler per step, us (thick p50, thin p99)</text>',
    ]
    for place, name in enumerate(names):
        x = LEFT + 90 * place
        parts.append(f'<rect x="{x}" y="25" width="14" height="4" fill="{COLOURS[place]}"/>')
        parts.append(f'<text x="{x + 18}" y="31">{name}</text>')
    for panel, kind in enumerate(kinds):
        mine = [row for row in rows if row["kind"] == kind]
        parts += _panel(panel * WIDTH, kind, mine, names, low, high)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: int, kind: str, rows: Sequence[Row], names: Sequence[str], low: int, high: int) -> list[str]:
    counts = sorted({number(row, "running") for row in rows})
    first, last = math.log2(counts[0]), max(math.log2(counts[-1]), math.log2(counts[0]) + 1)
    wide, tall = WIDTH - LEFT - GAP, HEIGHT - TOP - BOTTOM

    def at(running: float, us: float) -> tuple[float, float]:
        x = left + LEFT + (math.log2(running) - first) / (last - first) * wide
        return x, HEIGHT - BOTTOM - (math.log10(max(us, 1.0)) - low) / (high - low) * tall

    parts = [f'<text x="{left + LEFT}" y="{TOP - 8}">{kind}, running requests</text>']
    for exponent in range(low, high + 1):
        _x, y = at(counts[0], 10.0**exponent)
        parts.append(f'<path d="M{left + LEFT} {y:.1f}h{wide}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10**exponent:,}</text>')
    for count in counts:
        x, _y = at(count, 1.0)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{count:.0f}</text>')
    for place, name in enumerate(names):
        for key, stroke in (("p50", 2.2), ("p99", 0.8)):
            points = [at(number(row, "running"), number(row, key)) for row in rows if row["system"] == name]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[place]}" stroke-width="{stroke}"/>')
    return parts
