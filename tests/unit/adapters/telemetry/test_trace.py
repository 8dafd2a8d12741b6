import msgspec

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
    args: dict[str, object] = {}


class File(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815  the format's name


def events(spans: list[Span], requests: bool = False) -> list[Event]:
    return msgspec.json.decode(chrome_trace(spans, [RECORD] if requests else []), type=File).traceEvents


def test_times_are_microseconds() -> None:
    # SPEC I4
    (span,) = [e for e in events([Span(Lane("p", "l"), "x", 1_500, 4_000)]) if e.ph == "X"]
    assert (span.ts, span.dur) == (1.5, 2.5)


def test_every_process_and_lane_is_named_once() -> None:
    lanes = [Lane("p", "a"), Lane("p", "b"), Lane("q", "a"), Lane("p", "a")]
    found = events([Span(lane, "x", 0, 1) for lane in lanes])
    names = [(e.name, e.args["name"]) for e in found if e.ph == "M"]
    assert names == [
        ("process_name", "p"), ("thread_name", "a"), ("thread_name", "b"), ("process_name", "q"), ("thread_name", "a"),
    ]  # fmt: skip
    assert [(e.pid, e.tid) for e in found if e.ph == "X"] == [(1, 1), (1, 2), (2, 1), (1, 1)]


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
