"""Writes the Chrome/Perfetto trace format: one process per node, one lane per stream, one track per request.

Format: "Trace Event Format" (Google, 2016): `X` complete events, `i` instants, `b`/`e` nestable asynchronous ones, `M`
names. Times count from the first event; `otherData.origin_ns` is that event on the clock of evidence.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from headway.core.evidence import EvidenceRecord
from headway.core.units import NS_PER_MS, NS_PER_US, Ns

# The order in which segments follow each other in a request's life (CONTRACT, Evidence). Time that was interrupted
# (`preempted`, `recompute`) is shown after the segment that it was cut out of.
_ORDER = (
    "input_transfer", "admission", "model_load", "gateway_queue", "network_wait", "engine_queue", "prefill", "handoff",
    "decode", "preempted", "recompute", "text_encode", "vae_encode", "denoise", "vae_decode", "upload", "stream_output",
    "other",
)  # fmt: skip

_MINTED = re.compile(r"req-(.+)-[0-9a-f]{16}-\d+")  # by the gateway: the client's id, a span id, a number


class Lane(msgspec.Struct, frozen=True):
    """Where a span is drawn."""

    process: str
    name: str


class Span(msgspec.Struct, frozen=True):
    """Something that took time; of no length, it is an instant."""

    lane: Lane
    name: str
    start_ns: Ns
    end_ns: Ns
    arguments: dict[str, int | float | str] = {}  # msgspec copies the default


class _Event(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    ph: str
    pid: int
    tid: int
    ts: float  # microseconds
    dur: float | None = None
    cat: str = ""
    id: str = ""
    s: str = ""  # scope of an instant; `t`: its lane
    args: dict[str, int | float | str] = {}  # msgspec copies the default


class _File(msgspec.Struct, frozen=True):
    trace_events: list[_Event] = msgspec.field(name="traceEvents")
    other: dict[str, int] = msgspec.field(name="otherData")
    display_time_unit: str = msgspec.field(default="ms", name="displayTimeUnit")


class _Lanes:
    """Numbers processes and lanes in the order they appear, and names them."""

    def __init__(self) -> None:
        self.names: list[_Event] = []
        self._pids: dict[str, int] = {}
        self._tids: dict[tuple[Lane, int], int] = {}

    def place(self, lane: Lane, row: int = 0) -> tuple[int, int]:
        pid = self._pids.get(lane.process)
        if pid is None:
            pid = self._pids[lane.process] = len(self._pids) + 1
            self.names.append(_Event("process_name", "M", pid, 0, 0.0, args={"name": lane.process}))
        tid = self._tids.get((lane, row))
        if tid is None:
            tid = self._tids[lane, row] = sum(known.process == lane.process for known, _ in self._tids) + 1
            name = lane.name if row == 0 else f"{lane.name} ({row + 1})"
            self.names.append(_Event("thread_name", "M", pid, tid, 0.0, args={"name": name}))
        return pid, tid


def segment_times(record: EvidenceRecord) -> Iterator[tuple[str, Ns, Ns]]:
    """The segments of a request laid end to end: name, start, end. Together they fill the request's life."""
    at_ns = record.started_ns
    for name in (*_ORDER, *(name for name in record.segments if name not in _ORDER)):
        length_ns = round(record.segments.get(name, 0.0) * NS_PER_MS)
        if length_ns:
            yield name, at_ns, at_ns + length_ns
            at_ns += length_ns


def client_id(request: str) -> str:
    """The id by which a client knows a request: its `x-request-id`; the request's own id when nothing was minted."""
    minted = _MINTED.fullmatch(request)
    return request if minted is None else minted[1]


def _us(ns: Ns) -> float:
    return ns / NS_PER_US


def _request_events(record: EvidenceRecord, place: tuple[int, int], origin_ns: Ns) -> Iterable[_Event]:
    request, (pid, tid) = str(record.request), place

    def edge(kind: str, name: str, at_ns: Ns, **arguments: int | float | str) -> _Event:
        return _Event(name, kind, pid, tid, _us(at_ns - origin_ns), cat="request", id=request, args=arguments)

    yield edge(
        "b",
        request,
        record.started_ns,
        request_id=client_id(request),
        outcome=record.outcome,
        tenant=record.tenant,
        replica=record.replica or "none",
        output_tokens=record.output_tokens,
        cached_tokens=record.cached_tokens,
        preemptions=record.preemptions,
    )
    for name, start_ns, end_ns in segment_times(record):
        yield edge("b", name, start_ns)
        yield edge("e", name, end_ns)
    yield edge("e", request, record.ended_ns)


def _rows(spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
    """Spans of one lane with the row each is drawn in: a viewer hides or drops what overlaps in a row."""
    free_ns: list[Ns] = []
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        if span.end_ns == span.start_ns:  # an instant hides nothing
            yield span, 0
            continue
        row = next((row for row, free in enumerate(free_ns) if free <= span.start_ns), len(free_ns))
        free_ns[row : row + 1] = [span.end_ns]
        yield span, row


def _span_event(span: Span, place: tuple[int, int], origin_ns: Ns) -> _Event:
    arguments = span.arguments
    if request := arguments.get("request"):
        arguments = arguments | {"request_id": client_id(str(request))}
    at_us = _us(span.start_ns - origin_ns)
    if span.end_ns == span.start_ns:
        return _Event(span.name, "i", *place, at_us, s="t", args=arguments)
    return _Event(span.name, "X", *place, at_us, _us(span.end_ns - span.start_ns), args=arguments)


def chrome_trace(spans: Iterable[Span], requests: Sequence[EvidenceRecord] = ()) -> bytes:
    """Return the JSON file: spans on their lanes, then every request with its segments."""
    by_lane: dict[Lane, list[Span]] = {}
    for span in spans:
        by_lane.setdefault(span.lane, []).append(span)
    starts = chain((span.start_ns for lane in by_lane.values() for span in lane), (r.started_ns for r in requests))
    origin_ns = min(starts, default=0)
    lanes = _Lanes()
    events: list[_Event] = []
    for lane, inside in by_lane.items():
        events.extend(_span_event(span, lanes.place(lane, row), origin_ns) for span, row in _rows(inside))
    if requests:
        place = lanes.place(Lane("requests", "requests"))
        for record in requests:
            events.extend(_request_events(record, place, origin_ns))
    return msgspec.json.encode(_File(lanes.names + events, {"origin_ns": origin_ns}))
