"""An upstream's node speaks as a worker does: one end per Submit, reports with their source, incarnations (SPEC A5)."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from headway.adapters.gateway.relay.ports import Answering, Exchange, Target, UpstreamCall, Usage
from headway.adapters.upstream.pool import PoolSettings
from headway.adapters.upstream.scrape import Scraped
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import (
    Begun,
    Cancel,
    Finished,
    Holding,
    Message,
    Probed,
    Refused,
    Report,
    Submit,
    WhatDoYouHold,
)
from headway.core.reports import ReplicaReport
from headway.core.request import FinishReason, LlmRequest, SamplingParams, TextRequest
from headway.live.hub import Peer
from headway.live.model_names import Adapter, Offer
from headway.live.upstream_node import UpstreamNode
from headway.live.upstream_ports import Surroundings
from headway.live.wire import Envelope

FRONT, NODE = NodeId("node-front-0"), NodeId("up-a")


class FakeCall:
    def __init__(self, target: Target, answering: Answering) -> None:
        self.target, self.answering, self.is_cancelled = target, answering, False

    def cancel(self) -> None:
        self.is_cancelled = True

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class FakePool:
    def __init__(self) -> None:
        self.calls: list[FakeCall] = []
        self.is_closed = False

    def start(self, exchange: Exchange, target: Target, answering: Answering) -> UpstreamCall:
        self.calls.append(FakeCall(target, answering))
        return self.calls[-1]

    def close(self) -> None:
        self.is_closed = True


class FakeExchange(msgspec.Struct):
    body: bytes = b'{"model":"m"}'


class Bench:
    """A node with everything around it."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.told: list[Message] = []
        self.news: list[tuple[str, int]] = []
        self.used: list[int | None] = []
        self.gone: list[RequestId] = []
        self.now_ns = 1000
        self.pool = FakePool()
        around = Surroundings(
            hub=self,
            front=FRONT,
            now_ns=lambda: self.now_ns,
            exchange=lambda request: None if request in self.gone else FakeExchange(),  # type: ignore[return-value]  # only the body is read
            is_renamed=lambda _: False,
            answered=lambda _, usage: self.used.append(usage.prompt_tokens),
            forget=lambda _: None,
        )
        self.node = UpstreamNode(NODE, settings, self.pool, around)
        self.node.offers(Offer({"m": "theirs"}, {"lora": Adapter("m", "lora")}))
        self.node.appear()

    def join(self, node: NodeId, incarnation: int, peer: Peer) -> None:
        self.news.append(("join", incarnation))

    def leave(self, node: NodeId, incarnation: int, reason: str) -> None:
        self.news.append(("leave", incarnation))

    def receive(self, node: NodeId, frame: Envelope) -> None:
        assert (frame.src, frame.dst) == (NODE, FRONT)
        self.told.append(frame.message)

    def say(self, message: Message) -> None:
        self.node.send(Envelope(FRONT, NODE, message))

    def submit(self, number: int, **change: object) -> TextRequest:
        request = TextRequest(RequestId(f"req-{number}"), TenantId("t"), ModelId("m"), 100, 10, 0)
        request = msgspec.structs.replace(request, **change)
        self.say(Submit(request, 1, number=number))
        return request

    def last(self) -> Message:
        """The last that was told, reports aside."""
        return [message for message in self.told if not isinstance(message, Report)][-1]

    def report(self) -> ReplicaReport:
        self.node.report()
        told = self.told[-1]
        assert isinstance(told, Report)
        return told.report


def bench(
    check: Callable[[Bench], Awaitable[None] | None],
    settings: UpstreamSettings = UpstreamSettings("a", "http://a:1"),  # noqa: B008  frozen
) -> None:
    async def run() -> None:
        waited = check(Bench(settings))
        if waited is not None:
            await waited

    asyncio.run(run())


def test_an_answer_becomes_begun_and_one_finished_with_marks_and_usage() -> None:
    def check(made: Bench) -> None:
        made.submit(1)
        call = made.pool.calls[0]
        assert call.target == Target(model="theirs")
        call.answering.begun()
        assert made.last() == Begun(RequestId("req-1"), 1)
        made.now_ns = 9000
        call.answering.done(Usage(120, 7, 64, 8, 4000, 8000), "success")
        done = made.last()
        assert isinstance(done, Finished)
        assert (done.reason, done.output_tokens, done.health) == (FinishReason.STOP, 7, "success")
        assert (done.prompt_tokens, done.cached_tokens) == (120, 64)
        marks = done.marks
        stamps = (marks.received_ns, marks.first_token_ns, marks.last_token_ns, marks.finished_ns)
        assert stamps == (1000, 4000, 8000, 9000)
        assert made.used == [120]
        assert made.node.in_flight == 0

    bench(check)


def test_a_client_error_is_neutral_and_a_fault_is_one() -> None:
    def check(made: Bench) -> None:
        made.submit(1)
        made.pool.calls[0].answering.done(Usage(None, None, None, 1), "neutral")
        done = made.last()
        assert isinstance(done, Finished)
        assert (done.reason, done.health, done.output_tokens) == (FinishReason.STOP, "neutral", 0)
        made.submit(2)
        made.pool.calls[1].answering.fault("it broke")
        lost = made.last()
        assert isinstance(lost, Finished)
        assert (lost.reason, lost.health, lost.error) == (FinishReason.LOST, "fault", "up-a: it broke")

    bench(check)


def test_back_pressure_is_a_refusal_with_its_time() -> None:
    def check(made: Bench) -> None:
        made.submit(1)
        made.pool.calls[0].answering.refused(429, 1500)
        assert made.last() == Refused(RequestId("req-1"), 1, "full", "up-a answered 429", 1500)

    bench(check)


def test_a_cancel_stops_the_call_and_is_answered_once() -> None:
    # smg PR#2136
    def check(made: Bench) -> None:
        made.submit(1)
        made.say(Cancel(RequestId("req-1"), 1, FinishReason.DEADLINE))
        done = made.last()
        assert made.pool.calls[0].is_cancelled
        assert isinstance(done, Finished)
        assert done.reason is FinishReason.DEADLINE
        before = len(made.told)
        made.say(Cancel(RequestId("req-1"), 1))
        assert len(made.told) == before

    bench(check)


def test_what_cannot_be_sent_is_refused_by_its_reason() -> None:
    settings = UpstreamSettings("a", "http://a:1", connection=PoolSettings(connections_max=1))

    def check(made: Bench) -> None:
        codes = []
        tokens = LlmRequest(RequestId("r"), TenantId("t"), ModelId("m"), (1,), SamplingParams(max_tokens=1), 0)
        made.say(Submit(tokens, 1))
        codes.append(made.last())
        made.submit(1, model=ModelId("other"))
        codes.append(made.last())
        made.submit(2)
        made.submit(3)
        codes.append(made.last())
        made.node.drain()
        made.submit(4)
        codes.append(made.last())
        assert [c.code for c in codes if isinstance(c, Refused)] == ["unservable", "draining", "full", "draining"]
        assert len(made.pool.calls) == 1

    bench(check, settings)


def test_a_request_whose_client_has_left_is_not_sent() -> None:
    def check(made: Bench) -> None:
        made.gone.append(RequestId("req-1"))
        made.submit(1)
        done = made.last()
        assert made.pool.calls == []
        assert isinstance(done, Finished)
        assert done.reason is FinishReason.CANCELLED

    bench(check)


def test_a_restarted_front_learns_what_runs_here() -> None:
    def check(made: Bench) -> None:
        made.submit(1)
        made.say(WhatDoYouHold(7))
        held = made.last()
        assert isinstance(held, Holding)
        assert (held.number, [h.request for h in held.held]) == (7, ["req-1"])

    bench(check)


def test_a_report_says_what_was_scraped_and_how_old_it_is() -> None:
    def check(made: Bench) -> None:
        made.submit(5)
        scraped = Scraped(running=3, waiting=2, kv_usage=0.25, kv_blocks_total=100, block_size=16, adapters_max=4)
        made.node.load.heard(scraped, 5, at_ns=700)
        report = made.report()
        assert (report.role, report.source, report.at_ns, report.submits_seen) == ("upstream", "scrape", 700, 5)
        assert (report.running, report.waiting) == (3, 2)
        assert (report.kv_blocks_free, report.kv_blocks_total, report.running_kv_tokens) == (75, 100, 400)
        assert (report.model, report.models, report.adapters_max) == ("m", ("lora",), 4)

    bench(check)


def test_without_a_scrape_only_own_requests_are_reported() -> None:
    def check(made: Bench) -> None:
        made.submit(1)
        report = made.report()
        assert (report.source, report.running, report.waiting, report.kv_blocks_total) == ("counted", 1, 0, 0)
        assert report.at_ns == made.now_ns

    bench(check)


def test_adapters_that_we_used_last_are_taken_to_be_loaded() -> None:
    # SPEC A6
    def check(made: Bench) -> None:
        assert made.report().adapters == ()
        made.submit(1, lora="lora")
        assert made.pool.calls[0].target == Target()
        assert made.report().adapters == ("lora",)

    bench(check)


def test_a_restart_is_a_new_incarnation_once_nothing_runs() -> None:
    def check(made: Bench) -> None:
        made.submit(1)
        made.node.restarted("it was started again")
        assert made.news == [("join", 1)]
        made.pool.calls[0].answering.done(Usage(None, None, None, 1), "success")
        assert made.news == [("join", 1), ("leave", 1), ("join", 2)]
        assert made.report().incarnation == 2

    bench(check)


def test_nothing_is_told_before_it_appears_and_after_it_is_gone() -> None:
    def check(made: Bench) -> None:
        made.submit(1)
        made.node.close("taken out")
        assert made.pool.calls[0].is_cancelled
        assert made.pool.is_closed
        told = len(made.told)
        made.node.probed(False, "no answer")
        made.node.report()
        assert len(made.told) == told
        assert made.news[-1] == ("leave", 1)

    bench(check)


def test_health_checks_are_passed_on() -> None:
    def check(made: Bench) -> None:
        made.node.probed(False, "GET /health: status 503")
        assert made.told[-1] == Probed(False, "GET /health: status 503")

    bench(check)


def test_reports_are_bundled() -> None:
    async def check(made: Bench) -> None:
        before = len(made.told)
        for number in range(1, 50):
            made.submit(number)
        assert len(made.told) == before
        while len(made.told) == before:
            await asyncio.sleep(0)
        assert [type(message) for message in made.told[before:]] == [Report]
        assert made.report().running == 49

    bench(check)
