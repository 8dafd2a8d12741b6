"""What the live system remembers for its operators: evidence, decisions, engine steps. All bounded."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Final

import msgspec

from headway.adapters.telemetry.jsonl import evidence_lines
from headway.adapters.telemetry.logs import LogFormat
from headway.adapters.telemetry.trace import Lane, Span, chrome_trace
from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId
from headway.core.step_record import StepRecord
from headway.core.units import Ns, ns_from_s
from headway.live.wire import StepSpan

_encoder = msgspec.msgpack.Encoder()
_evidence: msgspec.msgpack.Decoder[EvidenceRecord] = msgspec.msgpack.Decoder(EvidenceRecord)

Count = Annotated[int, msgspec.Meta(ge=1)]

_LLM_STEPS: Final = ("prefill", "decode", "mixed")  # others have no tokens to fit a cost to


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered for operators, and for how long."""

    evidence_records_max: Count = 20_000  # the oldest are forgotten first
    evidence_bytes_max: Count = 64 << 20  # of these records, packed
    decisions_max: Count = 20_000  # the oldest are forgotten first
    trace_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0  # how far back `headway trace export` can see
    trace_steps_max: Count = 100_000  # per replica
    event_logs: str | None = None  # folder for one event log per node, for replay; null: none are written
    otlp_endpoint: str | None = None  # OTLP/HTTP collector for spans, e.g. "http://127.0.0.1:4318"; needs extra `otel`
    evidence_file: str | None = None  # JSON lines, one record of evidence each; unset: none is written
    evidence_file_bytes_max: Count = 64 << 20  # a full file becomes NAME.1, the one before NAME.2
    evidence_files_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4  # with the one that grows; the oldest goes
    log_format: LogFormat = "text"  # of the log on stderr; json: one object per line
    export_waiting_max: Count = 10_000  # records that wait for a slow collector or disk; more are lost, and counted


class EvidenceStore:
    """Records of ended requests, packed, the oldest forgotten when count or bytes are over."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max, self._bytes_max = records_max, bytes_max
        # Its oldest entry is found at once; a plain dict walks over everything that was deleted before.
        self._packed: OrderedDict[RequestId, bytes] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._packed)

    def add(self, record: EvidenceRecord) -> None:
        """Keep a record; one of the same request is replaced."""
        self._drop(record.request)
        packed = _encoder.encode(record)
        self._packed[record.request] = packed
        self.bytes += len(packed)
        while len(self._packed) > self._records_max or (self.bytes > self._bytes_max and len(self._packed) > 1):
            self._drop(next(iter(self._packed)))

    def get(self, request: RequestId) -> EvidenceRecord | None:
        """The record of a request, while it is kept."""
        packed = self._packed.get(request)
        return None if packed is None else _evidence.decode(packed)

    def packed(self) -> tuple[bytes, ...]:
        """All records as they are kept, oldest first."""
        return tuple(self._packed.values())

    def _drop(self, request: RequestId) -> None:
        packed = self._packed.pop(request, None)
        if packed is not None:
            self.bytes -= len(packed)


class Seen(msgspec.Struct, frozen=True):
    """A part of the timeline, fixed, so that a thread may write it out."""

    loads: tuple[Span, ...]
    steps: tuple[tuple[NodeId, StepSpan], ...]
    decisions: tuple[tuple[str, Decision], ...]


class Timeline:
    """Engine steps and load phases of every replica, as far back as the settings say."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._keep_ns, self._steps_max = ns_from_s(settings.trace_s), settings.trace_steps_max
        self._steps: dict[NodeId, deque[StepSpan]] = {}
        self._loads: deque[Span] = deque(maxlen=1024)
        self._decisions: deque[tuple[str, Decision]] = deque(maxlen=settings.decisions_max)

    def add_steps(self, node: NodeId, steps: Sequence[StepSpan]) -> None:
        """Keep steps, in order; forget those that are too old or too many."""
        kept = self._steps.setdefault(node, deque(maxlen=self._steps_max))
        kept.extend(steps)
        while kept and kept[-1].timing.done_ns - kept[0].timing.done_ns > self._keep_ns:
            kept.popleft()

    def add_load(self, node: NodeId, phase: str, start_ns: Ns, end_ns: Ns) -> None:
        """Keep one phase of a replica's start."""
        self._loads.append(Span(Lane(str(node), "load"), phase, start_ns, end_ns))

    def add_decision(self, origin: str, decision: Decision) -> None:
        """Keep a decision that `origin` made."""
        self._decisions.append((origin, decision))

    def since(self, at_ns: Ns) -> Seen:
        """Everything that ended at or after `at_ns`."""
        return Seen(
            tuple(span for span in self._loads if span.end_ns >= at_ns),
            tuple((node, step) for node, kept in self._steps.items() for step in kept if step.timing.done_ns >= at_ns),
            tuple((origin, made) for origin, made in self._decisions if made.at_ns >= at_ns),
        )


def write_lines(packed: Sequence[bytes], since_ns: Ns) -> bytes:
    """JSON lines of the requests (`EvidenceStore.packed`) that ended since."""
    return evidence_lines(_ended_since(packed, since_ns))


def write_steps(seen: Seen) -> bytes:
    """JSON lines of engine steps (`StepRecord`), from which `headway calibrate` learns what steps cost."""
    records = (_step_record(str(node), step) for node, step in seen.steps if step.kind in _LLM_STEPS)
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def _step_record(replica: str, step: StepSpan) -> StepRecord:
    timing = step.timing
    return StepRecord(
        replica=replica,
        step=step.step,
        kind=step.kind,
        decodes=step.decodes,
        kv_tokens=step.kv_tokens,
        prefill_tokens=step.prefill_tokens,
        prefill_pairs=step.prefill_pairs,
        chunks=step.chunks,
        chunk_context=step.chunk_context,
        launched_ns=timing.launched_ns,
        started_ns=timing.started_ns,
        done_ns=timing.done_ns,
        plan_ns=timing.plan_ns,
        host_ns=timing.host_ns,
        idle_gap_ns=timing.idle_gap_ns,
        overlapped_ns=timing.overlapped_ns,
    )


def write_trace(seen: Seen, packed: Sequence[bytes], since_ns: Ns) -> bytes:
    """A Chrome/Perfetto file of what was seen, and of the requests (`EvidenceStore.packed`) that ended since."""
    before: dict[NodeId, StepSpan] = {}
    steps = (span for node, step in seen.steps for span in _step_spans(node, step, before))
    decisions = (_decision_span(origin, made) for origin, made in seen.decisions)
    return chrome_trace(chain(seen.loads, steps, decisions), _ended_since(packed, since_ns))


def _ended_since(packed: Sequence[bytes], at_ns: Ns) -> list[EvidenceRecord]:
    found: list[EvidenceRecord] = []
    for raw in reversed(packed):
        record = _evidence.decode(raw)
        if record.ended_ns < at_ns:
            break
        found.append(record)
    return found[::-1]


def _decision_span(origin: str, made: Decision) -> Span:
    what: dict[str, int | float | str] = {"level": made.level, "reason": made.reason, "request": made.request or ""}
    what |= {f"score {other.name}": other.score for other in made.alternatives}
    return Span(Lane(origin, "decisions"), f"{made.kind}: {made.chosen}", made.at_ns, made.at_ns, what)


def _step_spans(node: NodeId, step: StepSpan, before: dict[NodeId, StepSpan]) -> Iterator[Span]:
    """Draw a step after the one before: plans of one turn share its start, and results arrive while the next runs."""
    timing, replica = step.timing, str(node)
    earlier = before.get(node)
    before[node] = step
    planned_ns, started_ns = step.planned_ns, timing.started_ns
    if earlier is not None:
        planned_ns = max(planned_ns, earlier.planned_ns + earlier.timing.plan_ns)
        started_ns = max(started_ns, earlier.timing.done_ns)
    what: dict[str, int | float | str] = {
        "step": step.step,
        "decodes": step.decodes,
        "prefill_tokens": step.prefill_tokens,
        "idle_gap_us": timing.idle_gap_ns / 1000,
        "overlapped_us": timing.overlapped_ns / 1000,
    }
    planned_end_ns = max(planned_ns, step.planned_ns + timing.plan_ns)
    number: dict[str, int | float | str] = {"step": step.step}
    yield Span(Lane(replica, "host: schedule"), f"plan {step.step}", planned_ns, planned_end_ns, number)
    if timing.started_ns > timing.launched_ns:
        prepare = f"prepare {step.step}"
        yield Span(Lane(replica, "host: executor"), prepare, timing.launched_ns, timing.started_ns, number)
    yield Span(Lane(replica, "device"), step.kind, started_ns, max(started_ns, timing.done_ns), what)
