"""Evidence as OpenTelemetry spans: one per request under the client's span, its exclusive segments as children.

The opentelemetry packages are the extra `otel`; they are imported only where an endpoint is configured.
"""

import importlib.util
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from headway import __version__
from headway.adapters.telemetry import semconv as names
from headway.adapters.telemetry.trace import segment_times
from headway.core.decisions import Decision
from headway.core.errors import ConfigError
from headway.core.evidence import EvidenceRecord
from headway.core.request import LlmRequest, TextRequest, TraceContext
from headway.core.units import Ns

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.trace import SpanContext, SpanKind

KEY: Final = "telemetry.otlp_endpoint"
PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
TRACES_PATH: Final = "/v1/traces"
EXPORT_TIMEOUT_S: Final = 5.0  # with its retries
SPANS_PER_EXPORT: Final = 512

Value = str | bool | int | float
Attributes = dict[str, Value]


class Ended(msgspec.Struct, frozen=True):
    """A request that is over: its evidence, and of the request what spans tell. Its prompt must not wait with it."""

    record: EvidenceRecord
    trace: TraceContext
    model: str
    input_tokens: int
    max_tokens: int
    temperature: float | None  # None: the upstream's affair
    top_p: float | None


def ended(record: EvidenceRecord, request: LlmRequest | TextRequest) -> Ended | None:
    """Return what is to be exported; None when the client's trace is not sampled, or there is none."""
    trace = request.trace
    if trace is None or not trace.is_sampled:
        return None
    temperature = top_p = None
    if isinstance(request, LlmRequest):
        temperature, top_p = request.sampling.temperature, request.sampling.top_p
    return Ended(record, trace, request.model, request.prompt_tokens, request.max_tokens, temperature, top_p)


class SpanSink(Protocol):
    """What is used of OpenTelemetry's `SpanExporter`."""

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult": ...


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigError for an endpoint that is none, or when the extra is not installed."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"{KEY} is {endpoint!r}; it must be an http:// or https:// address of an OTLP/HTTP collector")
    for package in PACKAGES:
        if not _is_there(package):
            raise ConfigError(
                f"{KEY} needs the package {package}, which is not installed; "
                "install the extra `otel` (pip install -e '.[otel]' in the clone) or unset the key"
            )


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a parent of it is missing
        return False


def http_exporter(endpoint: str) -> SpanSink:
    """Return the exporter to a collector; OTEL_EXPORTER_OTLP_HEADERS and _CERTIFICATE apply. Raises ConfigError."""
    check_endpoint(endpoint)
    # The packages are an extra: nothing of them is imported where no endpoint is configured.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    base = endpoint.rstrip("/")
    url = base if base.endswith(TRACES_PATH) else base + TRACES_PATH
    exporter: SpanSink = OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S)
    return exporter


class SpanWriter:
    """Turns ended requests into spans and exports them. Lives in an outbox's thread."""

    def __init__(self, exporter: SpanSink, epoch_ns: int) -> None:
        """`epoch_ns`: Unix time of the run's clock at 0."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._exporter, self._epoch_ns = exporter, epoch_ns
        self._success = SpanExportResult.SUCCESS
        self._resource = Resource.create({names.SERVICE_NAME: names.HEADWAY, names.SERVICE_VERSION: __version__})

    def write(self, batch: Sequence[Ended]) -> int:
        """Export a batch; returns how many of its requests did not arrive."""
        lost = 0
        spans: list[ReadableSpan] = []
        waiting = 0
        for number, one in enumerate(batch, 1):
            spans += spans_of(one, self._span)
            waiting += 1
            if len(spans) >= SPANS_PER_EXPORT or number == len(batch):
                if spans and self._exporter.export(spans) is not self._success:
                    lost += waiting
                spans, waiting = [], 0
        return lost

    def _span(self, name: str, ids: "Ids", times: tuple[Ns, Ns], what: "What") -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Status, StatusCode

        return ReadableSpan(
            name,
            context=ids.span,
            parent=ids.parent,
            resource=self._resource,
            attributes=what.attributes,
            events=[_event(decision, self._epoch_ns) for decision in what.decisions],
            kind=what.kind,
            status=Status(StatusCode.ERROR if names.ERROR_TYPE in what.attributes else StatusCode.UNSET),
            start_time=self._epoch_ns + times[0],
            end_time=self._epoch_ns + times[1],
        )


class Ids(msgspec.Struct, frozen=True):
    """A span's place in its trace."""

    span: "SpanContext"
    parent: "SpanContext | None"


class What(msgspec.Struct, frozen=True):
    """What a span tells."""

    kind: "SpanKind"
    attributes: Attributes
    decisions: tuple[Decision, ...] = ()


def spans_of(one: Ended, make: "Callable[[str, Ids, tuple[Ns, Ns], What], ReadableSpan]") -> "list[ReadableSpan]":
    """Return the request's span, then one per segment; the segments fill the request's span."""
    from opentelemetry.trace import SpanKind

    record, trace = one.record, one.trace
    root = _context(trace.trace_id, trace.span_id)
    parent = None if trace.parent_id is None else _context(trace.trace_id, trace.parent_id, is_remote=True)
    whole = What(SpanKind.SERVER, _request_attributes(one), record.decisions)
    title = f"{trace.operation} {one.model}"
    spans = [make(title, Ids(root, parent), (record.started_ns, record.ended_ns), whole)]
    for name, start_ns, end_ns in segment_times(record):
        ids = Ids(_context(trace.trace_id, secrets.token_hex(8)), root)
        part = What(SpanKind.INTERNAL, _segment_attributes(name, one))
        spans.append(make(name, ids, (start_ns, end_ns), part))
    return spans


def _context(trace_id: str, span_id: str, *, is_remote: bool = False) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))


def _request_attributes(one: Ended) -> Attributes:
    record = one.record
    out: Attributes = {
        names.OPERATION: one.trace.operation,
        names.PROVIDER: names.HEADWAY,
        names.REQUEST_MODEL: one.model,
        names.RESPONSE_MODEL: one.model,
        names.MAX_TOKENS: one.max_tokens,
        names.INPUT_TOKENS: one.input_tokens,
        names.OUTPUT_TOKENS: record.output_tokens,
    }
    for name, value in ((names.TEMPERATURE, one.temperature), (names.TOP_P, one.top_p)):
        if value is not None:
            out[name] = value
    for field in record.__struct_fields__:
        value = getattr(record, field)
        # A field that does not apply has no attribute; stamps are the span's own, the trace id its context.
        if isinstance(value, str | bool | int | float) and field not in ("started_ns", "ended_ns", "trace_id"):
            out[names.own(field)] = value
    if record.outcome != "ok":
        out[names.ERROR_TYPE] = record.outcome
    return out


def _segment_attributes(name: str, one: Ended) -> Attributes:
    record = one.record
    out: Attributes = {names.own("segment"): name, names.own("request"): record.request}
    if record.replica is not None:
        out[names.own("replica")] = record.replica
    if name == "prefill":
        out |= {names.INPUT_TOKENS: one.input_tokens, names.own("cached_tokens"): record.cached_tokens}
    elif name == "decode":
        out |= {names.OUTPUT_TOKENS: record.output_tokens, names.own("steps_done"): record.steps_done}
    return out


def _event(decision: Decision, epoch_ns: int) -> "Event":
    from opentelemetry.sdk.trace import Event

    shown = [f"{other.name}={other.score:g}" for other in decision.alternatives]
    attributes = {
        names.own("level"): decision.level,
        names.own("kind"): decision.kind,
        names.own("chosen"): decision.chosen,
        names.own("reason"): decision.reason,
        names.own("alternatives"): tuple(shown),
    }
    return Event(names.own("decision"), attributes, epoch_ns + decision.at_ns)
