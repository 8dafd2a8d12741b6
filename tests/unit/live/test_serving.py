import asyncio
import re
from collections.abc import Callable

import msgspec
import pytest

from headway.adapters.gateway.ports import ModelCard
from headway.core.decisions import Decision, Explanation
from headway.core.effects import End, Record
from headway.core.events import ClientGone, DrainAsked, Event, RequestArrived, StreamClosed, TextStopped
from headway.core.evidence import EvidenceRecord, FrontMarks, evidence_record
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.ledger import AccountView, Ledger
from headway.core.messages import Message, Report, ResetPrefixCache
from headway.core.reports import (
    PoolFigures,
    PrefixFigures,
    PreparationFailure,
    RateLimit,
    RateLimits,
    ReplicaFigures,
    ReplicaReport,
)
from headway.core.request import FinishReason, LlmRequest, Request, SamplingParams, TraceContext
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.live.board import Board
from headway.live.clock import Clock
from headway.live.replica_desk import ReplicaDesk
from headway.live.serving import LiveServing, Wiring
from headway.live.stores import TelemetrySettings, Timeline
from headway.live.wire import Phase, Ready

FRONT, REP, R, MODEL = NodeId("front"), NodeId("rep-0"), RequestId("req-1"), ModelId("m")
UP = NodeId("up-a")
REQUEST = LlmRequest(R, TenantId("t"), MODEL, (1,), SamplingParams(max_tokens=1), 0)


class Front:
    id = FRONT

    def __init__(self) -> None:
        self.ledger = Ledger("front")
        self.ledger.open("gateway/in_flight", "requests", 4)

    def pool_figures(self) -> tuple[PoolFigures, ...]:
        return (PoolFigures("m", "mixed", 1, 2, 3, 0.5, 0.75),)

    def prefix_figures(self) -> tuple[PrefixFigures, ...]:
        return (PrefixFigures("m", 3, 1, 128, 64, 64, 0),)

    def explain(self, request: Request, at_ns: int) -> Explanation:
        return Explanation(request.model, "P", 1, 1, "admit", f"asked at {bool(at_ns)}", ())

    def recovery_figures(self) -> tuple[tuple[str, int], ...]:
        return (("retried", 2),)


class World:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sent: list[tuple[NodeId, Message]] = []
        self.clock = Clock()
        settings = TelemetrySettings()
        timeline = Timeline(settings)
        self.lines: list[str] = []
        self.board = Board({REP: "m"}, timeline, lambda node, line: self.lines.append(f"{node}: {line}"))
        self.serving = LiveServing(self.clock, self.board, timeline, settings)
        wiring = Wiring(
            front=Front(),
            feed=self._feed,
            send=lambda src, dst, message: self.sent.append((dst, message)),
            waiting=lambda: 3,
            in_flight=lambda: 5,
            desk=ReplicaDesk(lambda _: [ReplicaFigures(UP, "ready")], self._feed, dict),
            rate_limits=lambda tenant, at_ns: RateLimits(requests=RateLimit(9, 4, at_ns - at_ns)),
        )
        self.serving.attach(wiring, [ModelCard("m", ("text",), 10, 0, 16, 100)])

    def _feed(self, make: Callable[[Ns], Event]) -> None:
        self.events.append(make(7))

    def decide(self, kind: str, chosen: str, request: str) -> None:
        self.serving.edge.record(Record(Decision("pool", 1, kind, chosen, "why", (), RequestId(request))))

    def there(self) -> None:
        self.board.joined(REP, 1, Ready(None, 0))


def record(request: str) -> EvidenceRecord:
    return evidence_record(FrontMarks(RequestId(request), TenantId("t"), 0, 1, 2, None, None, None, 3, 0), None)


def test_operators_see_and_drain_replicas() -> None:  # SPEC A11
    world = World()
    assert [one.replica for one in world.serving.stats().replicas] == [REP, UP]
    assert world.serving.stats().recoveries == (("retried", 2),)
    world.serving.drain(UP, False)
    assert world.events == [DrainAsked(7, "an operator asked", UP, False)]


def test_what_the_edge_says_becomes_events() -> None:
    world = World()
    serving = world.serving
    serving.submit(REQUEST, 1, 2)
    serving.cancel(R)
    serving.text_stopped(R, 4)
    serving.closed(R, 5, 6)
    assert world.events == [
        RequestArrived(7, "edge", REQUEST, 1, 2),
        ClientGone(7, "edge", R),
        TextStopped(7, "edge", R, 4),
        StreamClosed(7, "edge", R, 5, 6),
    ]


def test_a_stream_gets_its_end() -> None:
    async def main() -> None:
        world = World()
        stream = world.serving.submit(REQUEST, 1, 2)
        world.serving.edge.end(End(R, FinishReason.LENGTH))
        assert await stream.next() == [End(R, FinishReason.LENGTH)]

    asyncio.run(main())


def test_each_arrival_counts_one_verdict() -> None:
    # SPEC A7
    world = World()
    world.decide("route", "rep-0", "req-1")
    world.decide("admit", "queue", "req-2")
    world.decide("route", "rep-0", "req-2")
    world.decide("route", "rep-1", "req-1")
    world.decide("admit", "reject", "req-3")
    assert world.serving.stats().admissions == (("admit", 1), ("queue", 1), ("reject", 1))


def test_every_verdict_counts_once_whatever_follows() -> None:
    # SPEC A7
    world = World()
    for number, verdict in enumerate(("degrade", "admit", "transfer")):
        world.decide("admit", verdict, f"req-{number}")
        if verdict != "transfer":
            world.decide("route", "rep-0", f"req-{number}")
    world.serving.edge.record(Record(Decision("pool", 1, "scale", "scale_out", "r")))
    world.serving.edge.record(Record(Decision("pool", 1, "scale", "grow", "a pool's, no verdict")))
    assert world.serving.stats().admissions == (("admit", 1), ("degrade", 1), ("scale_out", 1), ("transfer", 1))


def test_a_record_is_kept_and_told_to_every_sink() -> None:
    # SPEC I1, I4
    world = World()
    seen: list[EvidenceRecord] = []
    world.serving.on_record(seen.append)
    world.serving.edge.record(Record(record("req-1")))
    assert seen == [record("req-1")]
    assert world.serving.evidence(R) == record("req-1")


def test_a_record_carries_the_trace_of_its_request() -> None:
    # SPEC I4
    world = World()
    trace = TraceContext("a" * 32, "b" * 16, None, True, "chat")
    world.serving.submit(msgspec.structs.replace(REQUEST, trace=trace), 1, 2)
    world.serving.edge.record(Record(record("req-1")))
    found = world.serving.evidence(R)
    assert found is not None
    assert found.trace_id == trace.trace_id


def test_evidence_comes_as_json_lines() -> None:
    # SPEC I4
    world = World()
    for name in ("req-1", "req-2"):
        world.serving.edge.record(Record(record(name)))
    lines = asyncio.run(world.serving.trace(3600, "jsonl"))
    assert [msgspec.json.decode(line)["request"] for line in lines.splitlines()] == ["req-1", "req-2"]


def test_a_replicas_accounts_carry_the_age_of_its_report() -> None:
    # SPEC L-2
    world = World()
    world.there()
    view = AccountView("replica/rep-0/kv_blocks", "rep-0", "blocks", "level", 4, 0, 1)
    sent_ns = world.clock.now_ns() - 50 * NS_PER_MS
    world.board.heard(REP, Report(ReplicaReport(REP, 1, 1, sent_ns, "llm", "m", 0, 0, 0, 0, 4, 4, 0, accounts=(view,))))
    (own, own_age), (reported, age_ms) = world.serving.accounts()
    assert (own.name, own_age, reported) == ("gateway/in_flight", 0.0, view)
    assert age_ms >= 50.0


def test_ready_follows_the_replicas_and_says_why_not() -> None:
    world = World()
    assert world.serving.ready() == (False, "no replica of m is ready: it is loading")
    since_ns = world.clock.now_ns() - 12 * NS_PER_S
    world.board.phase(REP, Phase("warm-up", 0.0, since_ns))
    world.board.phase(REP, Phase("warm-up", 0.0, since_ns + NS_PER_S, "64x64 up to 4: 1.0 s"))  # the phase goes on
    why = world.serving.ready()[1]
    assert re.search(r"rep-0 has been in phase 'warm-up' for 1\d s", why), why
    world.there()
    assert world.serving.ready()[0]
    world.board.lost(REP, 1, "killed")
    assert world.serving.ready() == (False, "no replica of m is ready: killed")
    world.board.phase(REP, Phase("warm-up", 0.0, world.clock.now_ns()))
    again = "no replica of m is ready: rep-0 has been in phase 'warm-up' for 0 s; it starts again: killed"
    assert world.serving.ready() == (False, again)


def test_the_log_tells_once_what_a_replica_could_not_prepare() -> None:  # SPEC F8
    world = World()
    world.there()
    world.lines.clear()
    failure = PreparationFailure(96, 64, 1, 2, "no room", 5)
    for number in (1, 2):
        told = ReplicaReport(REP, 1, number, 6, "diffusion", "m", 0, 0, 0, 0, 0, 0, 0, unprepared=(failure,))
        world.board.heard(REP, Report(told))
    assert world.lines == ["rep-0: preparing 64x96 by 2 failed: no room"]


def test_a_reset_goes_to_every_replica_and_fails_without_one() -> None:
    # SPEC B2
    async def main() -> None:
        world = World()
        assert not await world.serving.reset_prefix_cache()
        world.there()
        assert await world.serving.reset_prefix_cache()
        assert world.sent == [(REP, ResetPrefixCache(2))]

    asyncio.run(main())


def test_stats_are_the_fronts_numbers() -> None:
    stats = World().serving.stats()
    assert (stats.waiting, stats.in_flight, stats.reports) == (3, 5, ())


def test_use_before_the_front_is_there_is_a_wiring_fault() -> None:
    settings = TelemetrySettings()
    timeline = Timeline(settings)
    board = Board({REP: "m"}, timeline, lambda node, line: None)
    with pytest.raises(RuntimeError, match="attached"):
        LiveServing(Clock(), board, timeline, settings).stats()


def test_it_tells_what_is_left_of_a_quota() -> None:
    # SPEC A8
    assert World().serving.rate_limits(TenantId("t")).requests == RateLimit(9, 4, 0)


def test_the_fronts_prefix_figures_are_told() -> None:  # AMD-AGI/Infera#143
    assert World().serving.stats().prefixes == (PrefixFigures("m", 3, 1, 128, 64, 64, 0),)


def test_a_route_is_explained_by_the_front_at_the_time_of_the_run() -> None:  # SPEC L-5
    world = World()
    request = LlmRequest(
        RequestId("req-1"), TenantId("t"), ModelId("m"), (1,), SamplingParams(max_tokens=1), world.serving.now_ns()
    )
    assert world.serving.explain(request).verdict_reason == "asked at True"


def test_stats_tell_what_pools_should_have() -> None:
    # SPEC A12
    assert [(pool.replicas, pool.wanted) for pool in World().serving.stats().pools] == [(1, 2)]


def test_what_befalls_a_replica_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    # SPEC A11, M2
    world = World()
    for kind, chosen in (("health", "down"), ("breaker", "open"), ("route", "rep-0")):
        world.serving.edge.record(Record(Decision("pool", 1, kind, chosen, f"up-a: {kind} said so")))
    assert [record.getMessage() for record in caplog.records] == [
        "health down: up-a: health said so",
        "breaker open: up-a: breaker said so",
    ]
