from collections.abc import Sequence

import msgspec
import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.unit.adapters.telemetry.records import CONTEXT, PARENT, SPAN, TRACE, record, request

from headway.adapters.telemetry import otlp
from headway.adapters.telemetry.otlp import Ended, SpanWriter, check_endpoint, ended
from headway.core.errors import ConfigError
from headway.core.evidence import EvidenceRecord
from headway.core.request import TraceContext
from headway.core.units import NS_PER_MS

EPOCH = 1_700_000_000 * 10**9


def over(one: EvidenceRecord | None = None, trace: TraceContext = CONTEXT) -> Ended:
    found = ended(one if one is not None else record(), request(trace=trace))
    assert found is not None
    return found


def exported(*batch: Ended) -> tuple[ReadableSpan, ...]:
    memory = InMemorySpanExporter()
    assert SpanWriter(memory, EPOCH).write(batch) == 0
    return memory.get_finished_spans()


def test_a_request_is_one_trace_under_the_clients_span() -> None:
    # SPEC I4, M2
    root, *parts = exported(over())
    assert f"{root.context.trace_id:032x}" == TRACE
    assert (f"{root.context.span_id:016x}", f"{root.parent.span_id:016x}") == (SPAN, PARENT)
    assert root.parent.is_remote
    assert root.kind is SpanKind.SERVER
    assert {part.context.trace_id for part in parts} == {root.context.trace_id}
    assert {part.parent.span_id for part in parts} == {root.context.span_id}
    assert len({span.context.span_id for span in (root, *parts)}) == 1 + len(parts)


def test_the_segments_are_its_children_and_fill_it() -> None:
    # SPEC I2, I4
    one = record()
    root, *parts = exported(over(one))
    assert {part.name for part in parts} == {name for name, ms in one.segments.items() if ms}
    assert (root.start_time, root.end_time) == (EPOCH + 10 * NS_PER_MS, EPOCH + 32 * NS_PER_MS)
    assert (parts[0].start_time, parts[-1].end_time) == (root.start_time, root.end_time)
    assert [part.start_time for part in parts[1:]] == [part.end_time for part in parts[:-1]]
    for part in parts:
        assert (part.end_time - part.start_time) / NS_PER_MS == pytest.approx(one.segments[part.name])


def test_attributes_carry_the_names_of_the_field_and_the_evidence() -> None:
    # SPEC I4
    one = record()
    root, *parts = exported(over(one))
    assert root.name == "chat toy"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headway",
        "gen_ai.request.model": "toy",
        "gen_ai.response.model": "toy",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "headway.ttft_ms": one.ttft_ms,
        "headway.cached_tokens": 1,
        "headway.replica": "rep-0",
        "headway.tenant": "a",
        "headway.cold_start": False,
    }
    assert {name: root.attributes[name] for name in expected} == expected
    assert "headway.handoff_ms" not in root.attributes  # it does not apply
    assert {part.attributes["headway.request"] for part in parts} == {"req-1"}
    assert root.resource.attributes["service.name"] == "headway"


def test_decisions_are_events_of_the_requests_span() -> None:
    # SPEC L-3, L-5
    root, *_ = exported(over())
    assert [(event.attributes["headway.kind"], event.attributes["headway.level"]) for event in root.events] == [
        ("route", "pool"),
        ("chunk", "step"),
    ]
    assert root.events[0].attributes["headway.alternatives"] == ("rep-1=2",)
    assert root.events[0].timestamp == EPOCH + 12 * NS_PER_MS


@pytest.mark.parametrize(("outcome", "status"), [("ok", StatusCode.UNSET), ("engine_lost", StatusCode.ERROR)])
def test_a_failed_request_is_an_error(outcome: str, status: StatusCode) -> None:
    root, *_ = exported(over(record(outcome=outcome)))
    assert root.status.status_code is status
    assert root.attributes.get("error.type") == (None if outcome == "ok" else outcome)


def test_a_trace_that_begins_here_has_no_parent() -> None:
    root, *_ = exported(over(trace=msgspec.structs.replace(CONTEXT, parent_id=None)))
    assert root.parent is None


@pytest.mark.parametrize("trace", [None, msgspec.structs.replace(CONTEXT, is_sampled=False)])
def test_what_the_client_does_not_sample_is_not_exported(trace: TraceContext | None) -> None:
    assert ended(record(), request(trace=trace)) is None


class Refuses(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_requests_whose_spans_are_refused_are_counted() -> None:
    batch = [over(record(f"req-{n}")) for n in range(3)]
    assert SpanWriter(Refuses(), EPOCH).write(batch) == 3


def test_a_large_batch_goes_in_bounded_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "SPANS_PER_EXPORT", 20)
    sizes: list[int] = []

    class Counts(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            sizes.append(len(spans))
            return SpanExportResult.SUCCESS

    batch = [over(record(f"req-{n}")) for n in range(7)]
    SpanWriter(Counts(), EPOCH).write(batch)
    per_request = len(exported(batch[0]))
    assert sum(sizes) == 7 * per_request
    assert max(sizes) < 20 + per_request


def test_an_endpoint_without_the_packages_is_refused_with_key_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # SPEC I4
    monkeypatch.setattr(otlp, "PACKAGES", ("opentelemetry.exporter.nowhere.at.all",))
    with pytest.raises(ConfigError, match=r"telemetry\.otlp_endpoint .*opentelemetry\.exporter\.nowhere.*`otel`"):
        check_endpoint("http://127.0.0.1:4318")


@pytest.mark.parametrize("bad", ["127.0.0.1:4318", "grpc://collector:4317", ""])
def test_an_endpoint_that_is_no_http_address_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.otlp_endpoint is"):
        check_endpoint(bad)
