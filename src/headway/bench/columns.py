"""The numbers of a run's requests, a column each: what summaries, time series and plots are computed from.

About 300 bytes per request: a run can keep them, whatever its rows carry besides.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from headway.bench.ends import Column, Floats, Ints, Mask, Table
from headway.core.units import NS_PER_MS

Codes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Claims: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int8]]
Shorts: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float32]]

# Columns of a table that are kept, by how: numbers (nan: does not apply), counts (0 then), claims (-1 then), names (a
# code each; 0: none).
FLOATS: Final = (
    "sent_ns", "ended_ns", "client_ttft_ms", "client_tpot_ms", "client_e2e_ms", "queue_wait_ms", "itl_top10_ms",
    "itl_max_ms",
)  # fmt: skip
COUNTS: Final = ("prompt_tokens", "output_tokens", "wanted_tokens", "cached_tokens", "preemptions")
CLAIMS: Final = ("met", "met_ttft", "met_tpot", "met_e2e", "met_deadlines", "cold_start")
NAMES: Final = ("tenant", "workload", "pool", "replica", "error")
KEPT: Final = (*FLOATS, *COUNTS, *CLAIMS, *NAMES, "segments")
# Where a request stood, cut from its exclusive segments: `front_from_ns`, `front_to_ns`, ...
SPANS: Final = ("front", "engine", "run")

_BEFORE_QUEUE: Final = ("input_transfer", "admission", "model_load")


class Columns:
    """Grows by tables; every column can be asked for as an array."""

    def __init__(self) -> None:
        self.count = 0
        edges = [f"{name}_{edge}_ns" for name in SPANS for edge in ("from", "to")]
        self._floats: dict[str, list[Floats]] = {name: [] for name in (*FLOATS, *COUNTS, *edges)}
        self._claims: dict[str, list[Claims]] = {name: [] for name in CLAIMS}
        self._codes: dict[str, list[Codes]] = {name: [] for name in NAMES}
        self._known: dict[str, dict[str, int]] = {name: {} for name in NAMES}
        self._segments: dict[str, list[Shorts]] = {}  # a segment that a table has not is not in its list
        self._tables: list[int] = []  # rows of each table

    def extend(self, table: Table) -> None:
        """Take a table of requests."""
        self.count += len(table["met"])
        for name in FLOATS:
            self._floats[name].append(np.array(table[name], dtype=np.float64))
        for name in COUNTS:  # an image has no tokens
            self._floats[name].append(np.nan_to_num(np.array(table[name], dtype=np.float64)))
        for name in CLAIMS:
            claims = [-1 if value is None else int(bool(value)) for value in table[name]]
            self._claims[name].append(np.array(claims, dtype=np.int8))
        for name in NAMES:
            known = self._known[name]
            codes = [known.setdefault(str(value), len(known) + 1) if value else 0 for value in table[name]]
            self._codes[name].append(np.array(codes, dtype=np.int32))
        self._cut(table["segments"])

    def _cut(self, segments: Column) -> None:
        parts: list[Mapping[str, float]] = [dict(found) for found in segments if isinstance(found, Mapping | Sequence)]
        for name in dict.fromkeys(name for part in parts for name in part):
            before = [np.zeros(rows, dtype=np.float32) for rows in self._tables]
            column = self._segments.setdefault(name, before)
            column.append(np.array([part.get(name, 0.0) for part in parts], dtype=np.float32))
        self._tables.append(len(parts))
        for column in self._segments.values():
            if len(column) < len(self._tables):
                column.append(np.zeros(len(parts), dtype=np.float32))

        def took(name: str) -> Floats:
            return np.array([part.get(name, 0.0) for part in parts]) * NS_PER_MS

        sent_ns, ended_ns = self._floats["sent_ns"][-1], self._floats["ended_ns"][-1]
        begun = sent_ns + sum((took(name) for name in _BEFORE_QUEUE), np.zeros(len(parts)))
        dispatched = begun + took("gateway_queue")
        hop = took("network_wait") / 2  # there and back are one segment
        arrived = np.where(self._codes["replica"][-1] > 0, dispatched + hop, np.nan)
        scheduled = arrived + took("engine_queue")
        over = ended_ns - hop - took("stream_output")
        spans = ((begun, dispatched), (arrived, scheduled), (scheduled, np.maximum(scheduled, over)))
        for name, (start, end) in zip(SPANS, spans, strict=True):
            self._floats[f"{name}_from_ns"].append(start)
            self._floats[f"{name}_to_ns"].append(end)

    def select(self, among: Mask) -> "Columns":
        """Return the columns of some of the requests, with the same codes."""
        return self.take(np.flatnonzero(among))

    def take(self, places: Ints) -> "Columns":
        """Return the columns of the requests at some places, in that order, with the same codes."""
        chosen = Columns()
        chosen.count = len(places)
        chosen._floats = {name: [self.floats(name)[places]] for name in self._floats}
        chosen._claims = {name: [self._claim(name)[places]] for name in self._claims}
        chosen._codes = {name: [self.codes(name)[places]] for name in self._codes}
        chosen._known = self._known
        chosen._segments = {name: [self.segment(name)[places].astype(np.float32)] for name in self._segments}
        chosen._tables = [len(places)]
        return chosen

    def floats(self, name: str) -> Floats:
        """Return times or counts; nan where a field does not apply."""
        return np.concatenate(self._floats[name]) if self.count else np.zeros(0)

    def claim(self, name: str) -> Mask:
        """True where a claim holds; where it does not apply it does not hold."""
        return np.equal(self._claim(name), 1)

    def applies(self, name: str) -> Mask:
        """True where a claim says something."""
        return np.greater_equal(self._claim(name), 0)

    def _claim(self, name: str) -> Claims:
        return np.concatenate(self._claims[name]) if self.count else np.zeros(0, dtype=np.int8)

    def codes(self, name: str) -> Codes:
        """Return the code of each request's tenant, workload, pool, replica or error; 0: it has none."""
        return np.concatenate(self._codes[name]) if self.count else np.zeros(0, dtype=np.int32)

    def names(self, name: str) -> dict[str, int]:
        """Return the codes by name, in the order of names."""
        return dict(sorted(self._known[name].items()))

    @property
    def segments(self) -> list[str]:
        """Which exclusive segments some request has, by name."""
        return sorted(self._segments)

    def segment(self, name: str) -> Floats:
        """Return the milliseconds that each request spent in a segment."""
        return np.concatenate(self._segments[name]).astype(np.float64)

    @property
    def completed(self) -> Mask:
        """True for requests that ended without an error."""
        return np.equal(self.codes("error"), 0)
