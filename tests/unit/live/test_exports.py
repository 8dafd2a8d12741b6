import json
from pathlib import Path

import msgspec
import pytest
from tests.unit.adapters.telemetry.records import CONTEXT, PARENT, TRACE, record, request

from headway.adapters.telemetry import otlp
from headway.core.errors import ConfigError
from headway.live.config import Host, resolve, set_layer
from headway.live.exports import Exports
from headway.live.stores import TelemetrySettings


def test_without_sinks_nothing_is_kept() -> None:
    exports = Exports(TelemetrySettings(), 0)
    exports.ended(record(), request())
    exports.close()
    assert exports.lost() == ()


def test_the_file_holds_what_ended(tmp_path: Path) -> None:
    # SPEC I4
    path = tmp_path / "evidence.jsonl"
    exports = Exports(TelemetrySettings(evidence_file=str(path)), 0)
    exports.ended(record("req-1"), request("req-1"))
    exports.ended(record("req-2"), request("req-2"))
    exports.close()
    assert [json.loads(line)["request"] for line in path.read_text().splitlines()] == ["req-1", "req-2"]
    assert exports.lost() == (("evidence_file", 0),)


def test_a_file_that_becomes_unwritable_loses_records_by_count(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    exports = Exports(TelemetrySettings(evidence_file=str(folder / "e.jsonl")), 0)
    (folder / "e.jsonl").unlink()
    folder.rmdir()
    exports.ended(record(), request())
    exports.close()
    assert exports.lost() == (("evidence_file", 1),)


def test_a_collector_gets_the_spans() -> None:
    # SPEC I4, M2
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from tests.unit.adapters.telemetry.collector import collector

    with collector() as kept:
        exports = Exports(TelemetrySettings(otlp_endpoint=kept.url), 10**18)
        exports.ended(record(), request())
        exports.close()
    assert kept.paths == ["/v1/traces"]
    root, *parts = kept.spans
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert {part.parent_span_id for part in parts} == {root.span_id}
    assert sum(part.end_time_unix_nano - part.start_time_unix_nano for part in parts) == (
        root.end_time_unix_nano - root.start_time_unix_nano
    )
    assert exports.lost() == (("otlp", 0),)


def test_a_trace_that_is_not_sampled_is_not_sent() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from tests.unit.adapters.telemetry.collector import collector

    with collector() as kept:
        exports = Exports(TelemetrySettings(otlp_endpoint=kept.url), 0)
        exports.ended(record(), request(trace=msgspec.structs.replace(CONTEXT, is_sampled=False)))
        exports.close()
    assert kept.paths == []


def test_a_dead_collector_costs_spans_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # SPEC I4
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_S", 0.05)
    exports = Exports(TelemetrySettings(otlp_endpoint="http://127.0.0.1:1"), 0)
    exports.ended(record(), request())
    exports.close()
    assert exports.lost() == (("otlp", 1),)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("telemetry.otlp_endpoint=collector:4318", "telemetry.otlp_endpoint"),
        ("telemetry.evidence_file=/nowhere/at/all/e.jsonl", "telemetry.evidence_file"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_at_load(given: str, said: str) -> None:
    # SPEC M1
    with pytest.raises(ConfigError, match=said):
        resolve([set_layer(given)], Host(1))


def test_a_missing_extra_is_refused_at_load_by_key_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # SPEC I4
    monkeypatch.setattr(otlp, "PACKAGES", ("opentelemetry.exporter.nowhere.at.all",))
    with pytest.raises(ConfigError, match=r"telemetry\.otlp_endpoint.*`otel`"):
        resolve([set_layer("telemetry.otlp_endpoint=http://127.0.0.1:4318")], Host(1))
