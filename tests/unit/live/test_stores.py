import msgspec

from headway.core.decisions import Alternative, Decision
from headway.core.evidence import EvidenceRecord, FrontMarks, evidence_record
from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.plans import StepTiming
from headway.core.step_record import StepRecord
from headway.live.stores import EvidenceStore, TelemetrySettings, Timeline, write_lines, write_steps, write_trace
from headway.live.wire import StepSpan

REP = NodeId("rep-1")


def record(number: int, ended_ns: int = 10) -> EvidenceRecord:
    marks = FrontMarks(RequestId(f"req-{number}"), TenantId("t"), 0, 1, 2, None, None, None, ended_ns, 0)
    return evidence_record(marks, None)


def step(number: int, done_ns: int) -> StepSpan:
    timing = StepTiming(launched_ns=done_ns - 20, started_ns=done_ns - 15, done_ns=done_ns, plan_ns=4)
    return StepSpan(number, "decode", 3, 40, 0, 0, done_ns - 30, timing)


def test_steps_are_written_with_shape_and_times() -> None:  # SPEC J3
    timeline = Timeline(TelemetrySettings())
    timing = StepTiming(launched_ns=5, started_ns=7, done_ns=30, plan_ns=2, host_ns=1, idle_gap_ns=3, overlapped_ns=1)
    timeline.add_steps(REP, [StepSpan(1, "mixed", 3, 40, 8, 36, 4, timing, chunks=1, chunk_context=8)])
    timeline.add_steps(REP, [StepSpan(2, "denoise", 1, 0, 0, 0, 30, timing)])
    lines = write_steps(timeline.since(0)).splitlines()
    assert [msgspec.json.decode(line, type=StepRecord) for line in lines] == [
        StepRecord("rep-1", 1, "mixed", 3, 40, 8, 36, 1, 8, 5, 7, 30, 2, 1, 3, 1)
    ]


def trace(timeline: Timeline, since_ns: int, requests: list[EvidenceRecord]) -> list[dict[str, object]]:
    packed = [msgspec.msgpack.encode(request) for request in requests]
    written = write_trace(timeline.since(since_ns), packed, since_ns)
    file = msgspec.json.decode(written, type=dict[str, object])
    events = file["traceEvents"]
    assert isinstance(events, list)
    return events


def test_a_record_reads_back_as_it_was() -> None:
    # SPEC I1
    store = EvidenceStore(10, 1 << 20)
    store.add(record(1))
    assert store.get(RequestId("req-1")) == record(1)
    assert store.get(RequestId("req-2")) is None


def test_the_oldest_record_is_forgotten_beyond_the_count() -> None:
    store = EvidenceStore(2, 1 << 20)
    for number in (1, 2, 3):
        store.add(record(number))
    assert [store.get(RequestId(f"req-{n}")) is not None for n in (1, 2, 3)] == [False, True, True]


def test_the_oldest_records_are_forgotten_beyond_the_bytes() -> None:
    store = EvidenceStore(1000, 1500)
    for number in range(50):
        store.add(record(number))
    assert store.bytes <= 1500
    assert store.get(RequestId("req-49")) is not None


def test_a_record_of_the_same_request_replaces_the_first() -> None:
    store = EvidenceStore(10, 1 << 20)
    store.add(record(1, 10))
    size = store.bytes
    store.add(record(1, 11))
    assert (len(store), store.bytes) == (1, size)


def test_a_trace_shows_the_requests_that_ended_since() -> None:
    records = [record(number, 10 * number) for number in range(5)]
    events = trace(Timeline(TelemetrySettings()), 20, records)
    assert {event["id"] for event in events if event["ph"] == "b"} == {"req-2", "req-3", "req-4"}


def test_packed_records_come_oldest_first() -> None:
    store = EvidenceStore(10, 1 << 20)
    for number in (1, 2, 1):
        store.add(record(number))
    assert [msgspec.msgpack.decode(raw, type=EvidenceRecord).request for raw in store.packed()] == ["req-2", "req-1"]


def test_steps_beyond_the_kept_time_are_forgotten() -> None:
    timeline = Timeline(TelemetrySettings(trace_s=1e-6))
    timeline.add_steps(REP, [step(1, 100), step(2, 900), step(3, 1_200)])
    assert [kept.step for _, kept in timeline.since(0).steps] == [2, 3]


def test_a_trace_shows_device_and_host_lanes_of_each_step() -> None:
    # SPEC I4, E5
    timeline = Timeline(TelemetrySettings())
    timeline.add_steps(REP, [step(7, 1_000)])
    events = trace(timeline, 0, [])
    names = {event["tid"]: event["args"] for event in events if event["name"] == "thread_name"}
    spans = {str(names[event["tid"]]): event for event in events if event["ph"] == "X"}
    assert set(spans) == {"{'name': 'host: schedule'}", "{'name': 'host: executor'}", "{'name': 'device'}"}
    assert (spans["{'name': 'device'}"]["ts"], spans["{'name': 'device'}"]["dur"]) == (
        0.015,
        0.015,
    )  # after its planning began


def test_steps_follow_each_other_in_their_lanes() -> None:
    # SPEC I4
    timeline = Timeline(TelemetrySettings())
    timing = StepTiming(launched_ns=120, started_ns=130, done_ns=200, plan_ns=20)
    both = msgspec.structs.replace(timing, launched_ns=140, started_ns=190, done_ns=260, plan_ns=40)
    timeline.add_steps(
        REP, [StepSpan(40, "decode", 1, 1, 0, 0, 100, timing), StepSpan(41, "decode", 1, 1, 0, 0, 100, both)]
    )
    shown = [(e["name"], e["ts"], e["dur"]) for e in trace(timeline, 0, []) if e["ph"] == "X"]
    assert [event for event in shown if event[0] != "decode"][:1] == [("plan 40", 0.0, 0.02)]
    assert ("plan 41", 0.02, 0.02) in shown
    assert [event for event in shown if event[0] == "decode"] == [("decode", 0.03, 0.07), ("decode", 0.1, 0.06)]


def test_a_trace_shows_decisions_with_their_scores() -> None:
    # SPEC L-3
    timeline = Timeline(TelemetrySettings())
    decision = Decision("pool", 5, "route", "rep-1", "lowest", (Alternative("rep-2", 2.5),))
    timeline.add_decision("front", decision)
    (found,) = [event for event in trace(timeline, 0, []) if event["ph"] == "i"]
    assert found["name"] == "route: rep-1"
    assert found["args"] == {"level": "pool", "reason": "lowest", "request": "", "score rep-2": 2.5}


def test_a_trace_leaves_out_what_ended_before() -> None:
    timeline = Timeline(TelemetrySettings())
    timeline.add_steps(REP, [step(1, 100), step(2, 900)])
    timeline.add_load(REP, "load", 0, 50)
    devices = [event for event in trace(timeline, 500, []) if event["ph"] == "X" and event["name"] == "decode"]
    assert len(devices) == 1


def test_json_lines_leave_out_what_ended_before() -> None:
    # SPEC I4
    packed = [msgspec.msgpack.encode(record(number)) for number in (1, 2)]
    last_ns = msgspec.msgpack.decode(packed[1], type=EvidenceRecord).ended_ns
    later = msgspec.msgpack.encode(msgspec.structs.replace(record(3), ended_ns=last_ns + 5))
    lines = write_lines([*packed, later], last_ns + 1).splitlines()
    assert [msgspec.json.decode(line)["request"] for line in lines] == [str(record(3).request)]
