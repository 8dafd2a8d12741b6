import msgspec
import pytest

from headway.adapters.telemetry.trace import Lane, Span, chrome_trace
from headway.core.evidence import FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import NodeId, RequestId, TenantId

RECORD = evidence_record(
    FrontMarks(RequestId("req-1"), TenantId("t"), 0, 1_000, 3_000, 4_000, 20_000, 40_000, 50_000, 5),
    WorkerMarks(NodeId("rep-1"), 5_000, 6_000, 18_000, 39_000, 39_000, steps=5),
)


class Event(msgspec.Struct):
    name: str
    ph: str
    pid: int
    tid: int
    ts: float
    dur: float | None = None
    id: str = ""
    s: str = ""
    args: dict[str, object] = {}


class File(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815  the format's name


def events(spans: list[Span], requests: bool = False) -> list[Event]:
    return msgspec.json.decode(chrome_trace(spans, [RECORD] if requests else []), type=File).traceEvents


def test_times_are_microseconds() -> None:
    # SPEC I4
    lane = Lane("p", "l")
    _, span = [e for e in events([Span(lane, "first", 0, 1), Span(lane, "x", 1_500, 4_000)]) if e.ph == "X"]
    assert (span.ts, span.dur) == (1.5, 2.5)


def test_times_count_from_the_first_event() -> None:
    # SPEC I4
    early, late = 92_000_000_000, 93_000_000_000
    raw = chrome_trace([Span(Lane("p", "b"), "late", late, late + 1), Span(Lane("p", "a"), "early", early, early + 1)])
    shown = {e.name: e.ts for e in msgspec.json.decode(raw, type=File).traceEvents if e.ph == "X"}
    assert shown == {"early": 0.0, "late": 1_000_000.0}
    assert msgspec.json.decode(raw)["otherData"] == {"origin_ns": early}


def test_what_overlaps_in_a_lane_gets_a_lane_of_its_own() -> None:
    # SPEC I4
    lane = Lane("p", "host: schedule")
    found = events(
        [Span(lane, "40", 0, 10), Span(lane, "41", 0, 20), Span(lane, "42", 10, 15), Span(lane, "43", 20, 30)]
    )
    assert {e.name: e.tid for e in found if e.ph == "X"} == {"40": 1, "41": 2, "42": 1, "43": 1}
    assert [e.args["name"] for e in found if e.name == "thread_name"] == ["host: schedule", "host: schedule (2)"]


def test_what_has_no_length_is_an_instant() -> None:
    # SPEC I4
    lane = Lane("front-0", "decisions")
    found = [e for e in events([Span(lane, "route", 5, 5), Span(lane, "admit", 5, 5)]) if e.ph != "M"]
    assert [(e.ph, e.s, e.dur, e.tid) for e in found] == [("i", "t", None, 1)] * 2


@pytest.mark.parametrize(("request_id", "shown"), [("req-my-req-1-ea52ea52ea52ea52-0", "my-req-1"), ("req-7", "req-7")])
def test_a_request_carries_the_id_of_its_client(request_id: str, shown: str) -> None:
    record = msgspec.structs.replace(RECORD, request=RequestId(request_id))
    made = Span(Lane("front-0", "decisions"), "route", 5, 5, {"request": request_id})
    found = msgspec.json.decode(chrome_trace([made], [record]), type=File).traceEvents
    assert [e.args["request_id"] for e in found if "request_id" in e.args] == [shown, shown]


def test_every_process_and_lane_is_named_once() -> None:
    lanes = [Lane("p", "a"), Lane("p", "b"), Lane("q", "a"), Lane("p", "a")]
    found = events([Span(lane, "x", at, at + 1) for at, lane in enumerate(lanes)])
    names = [(e.name, e.args["name"]) for e in found if e.ph == "M"]
    assert names == [
        ("process_name", "p"), ("thread_name", "a"), ("thread_name", "b"), ("process_name", "q"), ("thread_name", "a"),
    ]  # fmt: skip
    placed = sorted((e.ts, e.pid, e.tid) for e in found if e.ph == "X")
    assert [place for _, *place in placed] == [[1, 1], [1, 2], [2, 1], [1, 1]]


def test_the_segments_of_a_request_lie_inside_it_and_fill_it() -> None:
    # SPEC I2
    found = [e for e in events([], requests=True) if e.id == "req-1"]
    assert (found[0].ph, found[0].ts, found[-1].ph, found[-1].ts) == ("b", 0.0, "e", 50.0)
    inner = found[1:-1]
    opened = [e for e in inner if e.ph == "b"]
    closed = [e for e in inner if e.ph == "e"]
    assert [e.name for e in opened] == [e.name for e in closed]
    assert opened[0].ts == 0.0
    assert all(abs(a.ts - b.ts) < 1e-6 for a, b in zip(closed, opened[1:], strict=False))
    assert abs(closed[-1].ts - 50.0) < 1e-3
