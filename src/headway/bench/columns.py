"""The numbers of a run's requests, a column each: what summaries, time series and plots are computed from.

About 170 bytes per request: a run can keep them, whatever its rows carry besides.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

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
    "itl_max_ms", "video_s",
)  # fmt: skip
COUNTS: Final = ("prompt_tokens", "output_tokens", "wanted_tokens", "cached_tokens", "preemptions", "images")
CLAIMS: Final = ("met", "met_ttft", "met_tpot", "met_e2e", "met_deadlines", "cold_start")
NAMES: Final = ("tenant", "workload", "pool", "replica", "error")
KEPT: Final = (*FLOATS, *COUNTS, *CLAIMS, *NAMES, "segments")
SpanName = Literal["front", "engine", "run"]  # where a request stood

_BEFORE_QUEUE: Final = ("input_transfer", "admission", "model_load")


class Columns:
    """Grows by tables; every column can be asked for as an array."""

    def __init__(self) -> None:
        self.count = 0
        self._floats: dict[str, list[Floats]] = {name: [] for name in FLOATS}
        self._counts: dict[str, list[Codes]] = {name: [] for name in COUNTS}
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
            counts = np.nan_to_num(np.array(table[name], dtype=np.float64))
            self._counts[name].append(counts.astype(np.int32))
        for name in CLAIMS:
            claims = [-1 if value is None else int(bool(value)) for value in table[name]]
            self._claims[name].append(np.array(claims, dtype=np.int8))
        for name in NAMES:
            known = self._known[name]
            codes = [known.setdefault(str(value), len(known) + 1) if value else 0 for value in table[name]]
            self._codes[name].append(np.array(codes, dtype=np.int32))
        self._keep_segments(table["segments"])

    def _keep_segments(self, segments: Column) -> None:
        parts: list[Mapping[str, float]] = [dict(found) for found in segments if isinstance(found, Mapping | Sequence)]
        for name in dict.fromkeys(name for part in parts for name in part):
            before = [np.zeros(rows, dtype=np.float32) for rows in self._tables]
            column = self._segments.setdefault(name, before)
            column.append(np.array([part.get(name, 0.0) for part in parts], dtype=np.float32))
        self._tables.append(len(parts))
        for column in self._segments.values():
            if len(column) < len(self._tables):
                column.append(np.zeros(len(parts), dtype=np.float32))

    def select(self, among: Mask) -> "Columns":
        """Return the columns of some of the requests, with the same codes."""
        return self.take(np.flatnonzero(among))

    def take(self, places: Ints) -> "Columns":
        """Return the columns of the requests at some places, in that order, with the same codes."""
        chosen = Columns()
        chosen.count = len(places)
        chosen._floats = {name: [self.floats(name)[places]] for name in self._floats}
        chosen._counts = {name: [self._count(name)[places]] for name in self._counts}
        chosen._claims = {name: [self._claim(name)[places]] for name in self._claims}
        chosen._codes = {name: [self.codes(name)[places]] for name in self._codes}
        chosen._known = self._known
        chosen._segments = {name: [self.segment(name)[places].astype(np.float32)] for name in self._segments}
        chosen._tables = [len(places)]
        return chosen

    def floats(self, name: str) -> Floats:
        """Return times or counts; nan where a field does not apply."""
        if name in self._counts:
            return self._count(name).astype(np.float64)
        return np.concatenate(self._floats[name]) if self.count else np.zeros(0)

    def _count(self, name: str) -> Codes:
        return np.concatenate(self._counts[name]) if self.count else np.zeros(0, dtype=np.int32)

    def span(self, name: SpanName) -> tuple[Floats, Floats]:
        """Return when each request came to and left a place, cut from its segments; nan where it never was."""
        begun = sum((self.segment(each) for each in _BEFORE_QUEUE), self.floats("sent_ns") / NS_PER_MS) * NS_PER_MS
        dispatched = begun + self.segment("gateway_queue") * NS_PER_MS
        if name == "front":
            return begun, dispatched
        hop = self.segment("network_wait") / 2 * NS_PER_MS  # there and back are one segment
        arrived = np.where(self.codes("replica") > 0, dispatched + hop, np.nan)
        scheduled = arrived + self.segment("engine_queue") * NS_PER_MS
        if name == "engine":
            return arrived, scheduled
        over = self.floats("ended_ns") - hop - self.segment("stream_output") * NS_PER_MS
        return scheduled, np.maximum(scheduled, over)

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
        """Return the milliseconds that each request spent in a segment, to a ten-millionth."""
        if name not in self._segments:
            return np.zeros(self.count)
        return np.concatenate(self._segments[name]).astype(np.float64)

    @property
    def completed(self) -> Mask:
        """True for requests that ended without an error."""
        return np.equal(self.codes("error"), 0)
