"""A sweep as one HTML page: a heat map of two keys, lines over one, and every row."""

from collections.abc import Sequence
from html import escape
from typing import Final

from headway.bench import charts, svg
from headway.bench.charts import Line, Plot
from headway.bench.metrics import is_less_better
from headway.bench.run_report import STYLE
from headway.bench.sweep_rows import Row, number_text, spread_text

LINES_MAX: Final = 12
MAPS_MAX: Final = 9
CELL_WIDE: Final = 84
CELL_HIGH: Final = 30


def sweep_page(title: str, rows: Sequence[Row], metrics: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Return the page. `rows` come the best first by the first of the metrics."""
    keys = list(rows[0].changes) if rows else []
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>",
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
        f"<p>{len(rows)} combinations of {escape(', '.join(keys) or 'nothing')}; "
        f"{max((row.seeds for row in rows), default=0)} seed(s) each, shared by all (common random numbers).</p>",
        f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else "",
    ]
    for name in metrics:
        pictures = _pictures(rows, keys, name)
        if pictures:
            parts.append(f'<h2>{escape(name)}</h2><div class="plots">{"".join(pictures)}</div>')
    parts.append(f"<h2>Every combination, best {escape(metrics[0])} first</h2>{_table(rows, keys, metrics)}")
    return "".join(parts) + "</body></html>\n"


def _numbers(rows: Sequence[Row], key: str) -> bool:
    return all(isinstance(row.changes[key], int | float) for row in rows)


def _pictures(rows: Sequence[Row], keys: Sequence[str], name: str) -> list[str]:
    out = []
    numeric = [key for key in keys if _numbers(rows, key) and len({str(row.changes[key]) for row in rows}) > 1]
    if numeric:
        out.append(_lines(rows, numeric[0], [key for key in keys if key != numeric[0]], name))
    varied = [key for key in keys if len({str(row.changes[key]) for row in rows}) > 1]
    if len(varied) >= 2:
        out += _maps(rows, varied, name)
    if not out and len(rows) > 1:
        out.append(_bars(rows, name))
    return out


def _lines(rows: Sequence[Row], key: str, others: Sequence[str], name: str) -> str:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        value, spread = row.changes[key], row.metrics[name]
        if isinstance(value, int | float) and spread is not None:
            label = ", ".join(str(row.changes[other]) for other in others) or name
            found.setdefault(label, []).append((float(value), spread.mean))
    lines = [
        Line(label, tuple(sorted(points)), svg.COLOURS[place % len(svg.COLOURS)])
        for place, (label, points) in enumerate(sorted(found.items())[:LINES_MAX])
    ]
    return charts.draw(Plot(f"{name} over {key}", key, name, is_share=name.endswith("attainment")), lines)


def _maps(rows: Sequence[Row], keys: Sequence[str], name: str) -> list[str]:
    """One heat map of the first two keys for each combination of the others."""
    first, second, *rest = keys
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(f"{key}={row.changes[key]}" for key in rest), []).append(row)
    values = [found.mean for row in rows if (found := row.metrics[name]) is not None]
    if not values:
        return []
    span = (min(values), max(values))
    return [_map(group, (first, second), name, label, span) for label, group in sorted(groups.items())[:MAPS_MAX]]


def _map(rows: Sequence[Row], keys: tuple[str, str], name: str, label: str, span: tuple[float, float]) -> str:
    across, down = (_values(rows, key) for key in keys)
    left = 24 + max(40, 6 * max(len(str(value)) for value in down))
    width, height = left + CELL_WIDE * len(across) + 10, 62 + CELL_HIGH * len(down) + 22
    title = f"{name}{f' ({label})' if label else ''}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title, quote=True)}">',
        svg.text(8, 16, title, size=12, extra='font-weight="bold"'),
        svg.text(left + CELL_WIDE * len(across) / 2, height - 6, keys[0], anchor="middle"),
        svg.text(8, 40, keys[1], size=10),
    ]
    parts += [
        svg.text(left + CELL_WIDE * (place + 0.5), 56, str(value), anchor="middle")
        for place, value in enumerate(across)
    ]
    parts += [
        svg.text(left - 6, 62 + CELL_HIGH * (place + 0.62), str(value), anchor="end")
        for place, value in enumerate(down)
    ]
    for row in rows:
        x = left + CELL_WIDE * across.index(row.changes[keys[0]])
        y = 62 + CELL_HIGH * down.index(row.changes[keys[1]])
        found = row.metrics[name]
        colour, ink = ("#eeeeee", "#888") if found is None else _shade(found.mean, span, name)
        shown = "-" if found is None else number_text(found.mean)
        parts.append(
            f'<rect x="{x + 1}" y="{y + 1}" width="{CELL_WIDE - 2}" height="{CELL_HIGH - 2}" fill="{colour}"/>'
        )
        parts.append(svg.text(x + CELL_WIDE / 2, y + 19, shown, anchor="middle", extra=f'fill="{ink}"'))
    return "".join(parts) + "</svg>"


def _values(rows: Sequence[Row], key: str) -> list[object]:
    """The values of a key, numbers ascending, others in their order."""
    found = list(dict.fromkeys(row.changes[key] for row in rows))
    numbers = [value for value in found if isinstance(value, int | float)]
    return [*sorted(numbers)] if len(numbers) == len(found) else sorted(found, key=str)


def _shade(value: float, span: tuple[float, float], name: str) -> tuple[str, str]:
    """From pale to deep blue, the best deepest: readable without colour too."""
    low, high = span
    share = 0.5 if high == low else (value - low) / (high - low)
    if is_less_better(name):
        share = 1 - share
    pale, deep = (237, 243, 250), (33, 84, 142)
    mixed = [round(a + (b - a) * share) for a, b in zip(pale, deep, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed), "#fff" if share > 0.55 else "#222"


def _bars(rows: Sequence[Row], name: str) -> str:
    row_high, label, width = 18, 240, 560
    values = [(row, found.mean) for row in rows if (found := row.metrics[name]) is not None]
    top = max((value for _, value in values), default=0.0) or 1.0
    height = row_high * len(values) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(name, quote=True)}">',
        svg.text(8, 15, name, size=12, extra='font-weight="bold"'),
    ]
    for place, (row, value) in enumerate(values):
        y = 24 + place * row_high
        words = ", ".join(str(one) for one in row.changes.values())
        parts.append(svg.text(label - 6, y + 11, words, anchor="end"))
        wide = max(0.5, (width - label - 70) * max(0.0, value) / top)
        parts.append(f'<rect x="{label}" y="{y + 2}" width="{wide:.1f}" height="11" fill="{svg.COLOURS[0]}"/>')
        parts.append(svg.text(label + wide + 6, y + 11, number_text(value)))
    return "".join(parts) + "</svg>"


def _table(rows: Sequence[Row], keys: Sequence[str], metrics: Sequence[str]) -> str:
    head = "".join(f"<th class=text>{escape(key)}</th>" for key in keys)
    head += "".join(f"<th>{escape(name)}</th>" for name in metrics)
    body = []
    for row in rows:
        cells = "".join(f"<td class=text>{escape(str(row.changes[key]))}</td>" for key in keys)
        if row.error is not None:
            cells += f'<td class=text colspan="{len(metrics)}">{escape(row.error)}</td>'
        else:
            cells += "".join(f"<td>{spread_text(row.metrics[name])}</td>" for name in metrics)
        body.append(f"<tr>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"
