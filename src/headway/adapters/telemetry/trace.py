"""Writes the Chrome/Perfetto trace format: one process per node, one lane per stream, one track per request.

Format: "Trace Event Format" (Google, 2016): `X` complete events, `b`/`e` nestable asynchronous ones, `M` names.
"""

from collections.abc import Iterable, Iterator, Sequence

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


class Lane(msgspec.Struct, frozen=True):
    """Where a span is drawn."""

    process: str
    name: str


class Span(msgspec.Struct, frozen=True):
    """Something that took time."""

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
    args: dict[str, int | float | str] = {}  # msgspec copies the default


class _File(msgspec.Struct, frozen=True):
    trace_events: list[_Event] = msgspec.field(name="traceEvents")
    display_time_unit: str = msgspec.field(default="ms", name="displayTimeUnit")


class _Lanes:
    """Numbers processes and lanes in the order they appear, and names them."""

    def __init__(self) -> None:
        self.names: list[_Event] = []
        self._pids: dict[str, int] = {}
        self._tids: dict[Lane, int] = {}

    def place(self, lane: Lane) -> tuple[int, int]:
        pid = self._pids.get(lane.process)
        if pid is None:
            pid = self._pids[lane.process] = len(self._pids) + 1
            self.names.append(_Event("process_name", "M", pid, 0, 0.0, args={"name": lane.process}))
        tid = self._tids.get(lane)
        if tid is None:
            tid = self._tids[lane] = sum(known.process == lane.process for known in self._tids) + 1
            self.names.append(_Event("thread_name", "M", pid, tid, 0.0, args={"name": lane.name}))
        return pid, tid


def segment_times(record: EvidenceRecord) -> Iterator[tuple[str, Ns, Ns]]:
    """The segments of a request laid end to end: name, start, end. Together they fill the request's life."""
    at_ns = record.started_ns
    for name in (*_ORDER, *(name for name in record.segments if name not in _ORDER)):
        length_ns = round(record.segments.get(name, 0.0) * NS_PER_MS)
        if length_ns:
            yield name, at_ns, at_ns + length_ns
            at_ns += length_ns


def _us(ns: Ns) -> float:
    return ns / NS_PER_US


def _request_events(record: EvidenceRecord, pid: int, tid: int) -> Iterable[_Event]:
    request = str(record.request)

    def edge(kind: str, name: str, at_ns: Ns, **arguments: int | float | str) -> _Event:
        return _Event(name, kind, pid, tid, _us(at_ns), cat="request", id=request, args=arguments)

    yield edge(
        "b",
        request,
        record.started_ns,
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


def chrome_trace(spans: Iterable[Span], requests: Sequence[EvidenceRecord] = ()) -> bytes:
    """Return the JSON file: spans on their lanes, then every request with its segments."""
    lanes = _Lanes()
    events: list[_Event] = []
    for span in spans:
        pid, tid = lanes.place(span.lane)
        length_us = _us(span.end_ns - span.start_ns)
        events.append(_Event(span.name, "X", pid, tid, _us(span.start_ns), length_us, args=span.arguments))
    if requests:
        pid, tid = lanes.place(Lane("requests", "requests"))
        for record in requests:
            events.extend(_request_events(record, pid, tid))
    return msgspec.json.encode(_File(lanes.names + events))
