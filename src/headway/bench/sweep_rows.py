"""A sweep as rows: one per combination of values, its metrics as means over the seeds."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.bench.metrics import is_less_better, metric
from headway.bench.sweep import Result
from headway.bench.sweep_search import Found, Search
from headway.core.errors import ConfigError

SHOWN: Final = (
    "goodput_offered_per_s",
    "attainment",
    "ttft_ms.p50",
    "ttft_ms.p99",
    "tpot_ms.p99",
    "output_tokens_per_s",
)


class Spread(msgspec.Struct, frozen=True):
    """One metric over the seeds."""

    mean: float
    low: float
    high: float


class Row(msgspec.Struct, frozen=True):
    """One combination. `metrics`: None where some seed measured nothing."""

    changes: dict[str, object]
    seeds: int
    metrics: dict[str, Spread | None]
    error: str | None = None


def rows_of(results: Sequence[Result], names: Sequence[str]) -> list[Row]:
    """Return the rows in the order of the results. Raises ConfigError for a metric that no run has."""
    groups: dict[bytes, list[Result]] = {}
    for result in results:
        changes = {name: value for name, value in result.changes.items() if name != "seed"}
        groups.setdefault(msgspec.json.encode(changes), []).append(msgspec.structs.replace(result, changes=changes))
    return [_row(group, names) for group in groups.values()]


def _row(group: Sequence[Result], names: Sequence[str]) -> Row:
    error = next((result.error for result in group if result.error is not None), None)
    metrics: dict[str, Spread | None] = {}
    for name in names:
        values = [None if result.summary is None else metric(result.summary, name) for result in group]
        known = [value for value in values if value is not None]
        metrics[name] = (
            Spread(sum(known) / len(known), min(known), max(known)) if known and len(known) == len(values) else None
        )
    return Row(group[0].changes, len(group), metrics, error)


def found_row(found: Found, search: Search, names: Sequence[str]) -> Row:
    """Return the row of what a search found: the value is a metric, under the name of its key."""
    if found.value is None:
        why = f"{search.hold} holds nowhere from {search.low:g} to {search.high:g}"
        return Row(found.changes, 0, {search.key: None, **dict.fromkeys(names)}, why)
    results = [msgspec.structs.replace(result, changes=found.changes) for result in found.results]
    row = _row(results, names)
    value = Spread(found.value, found.value, found.value)
    return msgspec.structs.replace(row, metrics={search.key: value, **row.metrics})


def ranked(rows: Sequence[Row], name: str, *, is_less: bool | None = None) -> list[Row]:
    """Return the rows, the best first by a metric; what has no number last, and equal rows in their order.

    `is_less`: less is better; None: as the name says.
    """
    sign = 1 if (is_less_better(name) if is_less is None else is_less) else -1

    def rank(row: Row) -> tuple[bool, float]:
        found = row.metrics[name]
        return (found is None, 0.0 if found is None else sign * found.mean)

    return sorted(rows, key=rank)


def number_text(value: float) -> str:
    """A number, to four digits or whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread_text(found: Spread | None) -> str:
    """A metric as it is printed: the mean, and the range where the seeds differ."""
    if found is None:
        return "-"
    shown = number_text(found.mean)
    return shown if found.low == found.high else f"{shown} ({number_text(found.low)}..{number_text(found.high)})"


def table_text(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return what is printed of a sweep."""
    keys = list(rows[0].changes) if rows else []
    lines = [[*keys, *names]]
    lines += [
        [*(str(row.changes[key]) for key in keys), *(spread_text(row.metrics[name]) for name in names)] for row in rows
    ]
    wide = [max(len(line[place]) for line in lines) for place in range(len(keys) + len(names))]
    out = []
    for line in lines:
        padded = [
            text.ljust(w) if place < len(keys) else text.rjust(w)
            for place, (text, w) in enumerate(zip(line, wide, strict=True))
        ]
        out.append("  ".join(padded).rstrip())
    for row in rows:
        if row.error is not None:
            words = ", ".join(f"{name}={value}" for name, value in row.changes.items())
            out.append(f"no number: {words or 'here'}: {row.error}")
    return "\n".join(out)


def check_metrics(results: Sequence[Result], names: Sequence[str]) -> None:
    """Raise ConfigError for a metric that no run has."""
    summary = next((result.summary for result in results if result.summary is not None), None)
    if summary is None:
        reasons = list(dict.fromkeys(result.error or "" for result in results))
        raise ConfigError(f"no cell of the sweep can run: {'; '.join(reasons)}")
    for name in names:
        metric(summary, name)
