"""The numbers of a run's requests, a column each: what summaries, time series and plots are computed from.

About 150 bytes per request: a run can keep them, whatever its rows carry besides.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from headway.core.units import NS_PER_MS

Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"
Mask: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"
Codes: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int32]]"
Row = Mapping[str, object]

# Fields of a row that are kept, by how: times and other floats (nan: does not apply), counts, claims (-1: does not
# apply), names (a code each; 0: none).
FLOATS: Final = (
    "sent_ns", "ended_ns", "client_ttft_ms", "client_tpot_ms", "client_e2e_ms", "queue_wait_ms", "itl_top10_ms",
    "itl_max_ms",
)  # fmt: skip
COUNTS: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
CLAIMS: Final = ("met", "met_ttft", "met_tpot", "met_e2e", "met_deadlines", "cold_start")
NAMES: Final = ("tenant", "workload", "pool", "replica", "error")
# When it stood where, from the exclusive segments: [begin, end) in ns.
SPANS: Final = ("front", "engine", "run")
KEPT: Final = (*FLOATS, *COUNTS, *CLAIMS, *NAMES, "segments")

_BEFORE_QUEUE: Final = ("input_transfer", "admission", "model_load")
_AFTER_RUN: Final = ("stream_output", "other")


class Columns:
    """Grows by rows; every column can be asked for as an array."""

    def __init__(self) -> None:
        self.count = 0
        spans = [f"{name}_{edge}_ns" for name in SPANS for edge in ("from", "to")]
        self._floats = {name: array("d") for name in (*FLOATS, *spans)}
        self._counts = {name: array("i") for name in COUNTS}
        self._claims = {name: array("b") for name in CLAIMS}
        self._codes = {name: array("i") for name in NAMES}
        self._known: dict[str, dict[str, int]] = {name: {} for name in NAMES}

    def add(self, row: Row) -> None:
        """Take the row of a request."""
        self.count += 1
        for name in FLOATS:
            value = row[name]
            self._floats[name].append(value if isinstance(value, int | float) else np.nan)
        for name in COUNTS:
            value = row[name]
            self._counts[name].append(value if isinstance(value, int) else 0)
        for name in CLAIMS:
            value = row[name]
            self._claims[name].append(-1 if value is None else int(bool(value)))
        for name in NAMES:
            value = row[name]
            known = self._known[name]
            self._codes[name].append(known.setdefault(str(value), len(known) + 1) if value else 0)
        self._add_spans(row)

    def _add_spans(self, row: Row) -> None:
        segments = row["segments"]
        parts: dict[str, float] = dict(segments) if isinstance(segments, Mapping | Sequence) else {}
        sent_ns, ended_ns = self._floats["sent_ns"][-1], self._floats["ended_ns"][-1]
        begun = sent_ns + sum(parts.get(name, 0.0) for name in _BEFORE_QUEUE) * NS_PER_MS
        dispatched = begun + parts.get("gateway_queue", 0.0) * NS_PER_MS
        hop = parts.get("network_wait", 0.0) * NS_PER_MS / 2  # there and back are one segment
        scheduled = dispatched + hop + parts.get("engine_queue", 0.0) * NS_PER_MS
        over = ended_ns - sum(parts.get(name, 0.0) for name in _AFTER_RUN) * NS_PER_MS - hop
        was_served = row["replica"] is not None
        edges = (
            (begun, dispatched),
            (dispatched + hop, scheduled) if was_served else (np.nan, np.nan),
            (scheduled, max(scheduled, over)) if was_served else (np.nan, np.nan),
        )
        for name, (start, end) in zip(SPANS, edges, strict=True):
            self._floats[f"{name}_from_ns"].append(start)
            self._floats[f"{name}_to_ns"].append(end)

    def floats(self, name: str) -> Floats:
        """Return times or counts; nan where a field does not apply."""
        found = self._floats.get(name)
        return np.array(found if found is not None else self._counts[name], dtype=np.float64)

    def claim(self, name: str) -> Mask:
        """True where a claim holds; where it does not apply it does not hold."""
        return np.equal(np.array(self._claims[name], dtype=np.int8), 1)

    def applies(self, name: str) -> Mask:
        """True where a claim says something."""
        return np.array(self._claims[name], dtype=np.int8) >= 0

    def codes(self, name: str) -> Codes:
        """Return the code of each request's tenant, workload, pool, replica or error; 0: it has none."""
        return np.array(self._codes[name], dtype=np.int32)

    def names(self, name: str) -> dict[str, int]:
        """Return the codes by name, in the order of names."""
        return dict(sorted(self._known[name].items()))

    @property
    def completed(self) -> Mask:
        """True for requests that ended without an error."""
        return np.equal(self.codes("error"), 0)


def columns_of(rows: Iterable[Row]) -> Columns:
    """Return the columns of rows."""
    columns = Columns()
    for row in rows:
        columns.add(row)
    return columns
