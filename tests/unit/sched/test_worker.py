import msgspec
import pytest
from tests.unit.sched.bench import CONTROL, FRONT, STEP_NS, Bench
from tests.unit.sched.router.views import llm

from headway.core.blockhash import block_hashes, cache_root
from headway.core.effects import Effect, Send
from headway.core.errors import ConfigError
from headway.core.events import PeerJoined, PeerLost
from headway.core.ids import NodeId, RequestId
from headway.core.messages import (
    Accepted,
    Cancel,
    Drain,
    Finished,
    Holding,
    Refused,
    Report,
    ResetPrefixCache,
    Tokens,
    Undrain,
    WhatDoYouHold,
)
from headway.core.reports import KvEvents
from headway.core.request import FinishReason, LlmRequest
from headway.core.units import NS_PER_MS, NS_PER_S
from headway.engines.synthetic.tokens import reference
from headway.sched.executor.buckets import Buckets
from headway.sched.nodes import WorkerConfig
from headway.sched.registry import PolicyChoice

REQ = RequestId("req-1")


def messages(effects: list[Effect], kind: type) -> list[object]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def streamed(effects: list[Effect]) -> list[int]:
    return [token for message in messages(effects, Tokens) for token in message.tokens]  # type: ignore[attr-defined]  # all are Tokens


def alone(prompt: int = 10, max_tokens: int = 20) -> list[int]:
    request = llm("req-1", prompt=prompt, max_tokens=max_tokens)
    return reference(request.prompt, request.sampling, 32_000, (2,))[0]


@pytest.mark.parametrize("credits", [1, 2, 3])
def test_streams_the_tokens_and_finishes_with_marks(credits: int) -> None:  # SPEC B6, I1
    bench = Bench(credits)
    bench.submit(llm("req-1"))
    assert bench.sent(Accepted) == [Accepted(REQ, 1)]
    assert len(bench.plans) <= credits
    effects = bench.finish()
    assert streamed(effects) == alone()
    (finished,) = messages(effects, Finished)
    assert isinstance(finished, Finished)
    marks = finished.marks
    assert (finished.reason, finished.output_tokens) == (FinishReason.LENGTH, 20)
    assert (marks.scheduled_ns, marks.first_token_ns, marks.last_token_ns) == (0, STEP_NS, 20 * STEP_NS)
    assert (marks.steps, marks.preemptions, marks.cached_tokens) == (20, 0, 0)
    # Alone, the first step's ten tokens and the nineteen decodes after it are all its own.
    assert marks.device_ns == 20 * STEP_NS


def test_one_message_per_step_carries_every_row() -> None:
    bench = Bench()
    for place in range(3):
        bench.submit(llm(f"req-{place}", prompt=4 + place), number=place + 1)
    for _ in range(4):
        bench.step()
        assert len(bench.sent(Tokens)) <= 1
    (message,) = bench.sent(Tokens)
    assert message.requests == ("req-0", "req-1", "req-2")


def test_the_first_token_says_how_much_of_the_prompt_was_cached() -> None:  # SPEC B2
    bench = Bench()
    bench.submit(llm("req-1", prompt=40))
    first, *later = messages(bench.finish(), Tokens)
    assert isinstance(first, Tokens)
    assert first.cached == ((0, 0),)
    assert all(message.cached == () for message in later)  # type: ignore[attr-defined]  # all are Tokens


def test_a_repeated_submit_changes_nothing() -> None:
    bench = Bench()
    bench.submit(llm("req-1"))
    before = len(bench.plans)
    bench.submit(llm("req-1"))
    assert bench.sent(Accepted) == []
    assert len(bench.plans) == before


def test_a_newer_epoch_replaces_the_stay_without_an_answer() -> None:
    bench = Bench()
    bench.submit(llm("req-1"))
    bench.step()
    bench.submit(llm("req-1"), epoch=2, emitted=tuple(alone()[:1]), number=2)
    assert bench.sent(Finished) == []
    effects = bench.finish()
    assert {epoch for message in messages(effects, Tokens) for epoch in message.epochs} == {2}  # type: ignore[attr-defined]  # all are Tokens
    assert streamed(effects) == alone()[1:]


def test_resumes_from_emitted_tokens_exactly() -> None:  # SPEC A11, B7
    bench = Bench()
    bench.submit(llm("req-1"), epoch=4, emitted=tuple(alone()[:7]))
    effects = bench.finish()
    assert streamed(effects) == alone()[7:]
    (finished,) = messages(effects, Finished)
    assert isinstance(finished, Finished)
    assert finished.output_tokens == 20


def test_resumed_after_the_last_token_only_the_end_is_missing() -> None:
    bench = Bench()
    bench.submit(llm("req-1"), emitted=tuple(alone()))
    assert [m.reason for m in bench.sent(Finished)] == [FinishReason.LENGTH]
    request = llm("req-2")
    ending = msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, stop_token_ids=(5,)))
    bench.submit(ending, emitted=(7, 5))
    assert [m.reason for m in bench.sent(Finished)] == [FinishReason.STOP]
    assert bench.plans == []


def test_what_can_never_fit_is_refused_by_name() -> None:
    bench = Bench(kv_blocks=2)
    bench.submit(llm("req-1", prompt=500))
    (refused,) = bench.sent(Refused)
    assert (refused.code, refused.epoch) == ("unservable", 1)
    assert "req-1" in refused.message


def test_a_draining_replica_finishes_what_it_has_and_takes_nothing() -> None:  # SPEC A11
    bench = Bench()
    bench.submit(llm("req-1"))
    bench.message(Drain("maintenance"), CONTROL)
    bench.submit(llm("req-2"), number=2)
    assert [refused.code for refused in bench.sent(Refused)] == ["draining"]
    assert streamed(bench.finish()) == alone()


def test_a_replica_that_is_brought_back_takes_requests_and_says_so() -> None:  # SPEC A11
    bench = Bench()
    bench.now_ns += NS_PER_S
    bench.message(Drain("maintenance"), CONTROL)
    assert [report.report.draining for report in bench.sent(Report)][-1:] == [True]
    bench.now_ns += NS_PER_S
    bench.message(Undrain("done"), CONTROL)
    assert [report.report.draining for report in bench.sent(Report)][-1:] == [False]
    bench.submit(llm("req-1"))
    assert bench.sent(Refused) == []
    assert streamed(bench.finish()) == alone()


def test_cancel_ends_at_once_and_is_idempotent() -> None:  # SPEC B5
    bench = Bench()
    bench.submit(llm("req-1"))
    bench.step()
    bench.message(Cancel(REQ, 1))
    (finished,) = bench.sent(Finished)
    assert (finished.reason, finished.output_tokens) == (FinishReason.CANCELLED, 1)
    bench.message(Cancel(REQ, 1))
    assert bench.sent(Finished) == []
    assert streamed(bench.finish()) == []
    machine = bench.node.worker.machine
    assert machine.kv_blocks_free == 64 - sum(a.used for a in machine.accounts() if a.cache)


def test_a_replica_without_live_sequences_has_told_all_that_it_will() -> None:  # SPEC I1: it may end there
    bench = Bench()
    bench.submit(llm("req-1"))
    bench.step()
    bench.message(Cancel(REQ, 1))
    (finished,) = bench.sent(Finished)
    assert finished.marks.device_ns > 0
    machine = bench.node.worker.machine
    assert (machine.live, len(bench.plans)) == (0, 2)  # the two steps that were open run on
    rest = bench.finish()
    assert [
        effect
        for effect in rest
        if isinstance(effect, Send) and effect.dst == FRONT and not isinstance(effect.message, Report)
    ] == []


def test_a_late_request_is_dropped_only_while_it_waits() -> None:  # SPEC A7
    bench = Bench(1)
    bench.submit(llm("req-1"))
    late = Cancel(REQ, 1, FinishReason.DEADLINE, if_waiting=True)
    assert messages(bench.message(late), Finished) == []  # its prefill is under way
    assert streamed(bench.finish()) == alone()
    busy = Bench(1)
    busy.submit(llm("req-0"))
    busy.submit(llm("req-1"))
    (finished,) = messages(busy.message(late), Finished)
    assert isinstance(finished, Finished)
    assert (finished.request, finished.reason, finished.marks.steps) == (REQ, FinishReason.DEADLINE, 0)


def test_a_cancel_of_an_older_epoch_is_ignored() -> None:
    bench = Bench()
    bench.submit(llm("req-1"), epoch=3)
    bench.message(Cancel(REQ, 2))
    assert bench.sent(Finished) == []


def test_a_failed_step_starts_everybody_again_with_their_tokens() -> None:  # SPEC A11, B7
    bench = Bench()
    bench.submit(llm("req-1"))
    before = streamed(bench.step() + bench.step())
    bench.fail()
    assert before + streamed(bench.finish()) == alone()


def test_gives_its_requests_back_after_too_many_failures() -> None:
    bench = Bench(config=WorkerConfig(failures_max=1))
    bench.submit(llm("req-1"))
    bench.fail()
    assert bench.sent(Finished) == []
    bench.fail()
    (finished,) = bench.sent(Finished)
    assert (finished.reason, finished.error) == (FinishReason.LOST, "broken")


def test_results_of_a_voided_step_are_ignored() -> None:
    bench = Bench()
    bench.submit(llm("req-1"))
    late = bench.plans[0].step
    bench.fail()
    bench.plans.insert(0, bench.plans[0].__class__(late, 0, "decode"))
    bench.step()
    assert bench.sent(Tokens) == []


def test_reports_on_change_at_most_every_interval() -> None:  # SPEC A5
    bench = Bench()
    (first,) = bench.sent(Report)
    bench.submit(llm("req-1"))
    assert bench.sent(Report) == []
    assert ("report", 20 * NS_PER_MS) in bench.timers()
    bench.fire("report", 20 * NS_PER_MS)
    (second,) = bench.sent(Report)
    assert second.report.number == first.report.number + 1
    assert (second.report.submits_seen, second.report.running + second.report.waiting) == (1, 1)
    bench.fire("report", 40 * NS_PER_MS)
    assert bench.sent(Report) == []  # nothing has changed


def test_the_prefill_rate_is_learned_from_what_it_serves() -> None:  # SPEC A5
    bench = Bench()
    bench.submit(llm("req-1", prompt=100))
    report = messages(bench.finish(), Report)[-1]
    assert isinstance(report, Report)
    assert report.report.prefill_tokens_per_s == pytest.approx(100 / 0.010)
    assert report.report.step_ns == STEP_NS


def test_a_report_tells_block_size_and_the_learned_step_cost() -> None:  # SPEC A5
    bench = Bench()
    (first,) = bench.sent(Report)
    assert first.report.step_cost is None  # a prior is nobody's news
    bench.submit(llm("req-1", prompt=100))
    report = messages(bench.finish(), Report)[-1]
    assert isinstance(report, Report)
    assert report.report.block_size == 16
    assert report.report.step_cost is not None
    assert report.report.step_cost.base_ns > 0


def test_answers_a_front_with_its_own_and_control_with_everything() -> None:
    bench = Bench()
    bench.submit(llm("req-1"))
    bench.step()
    for asker, names in ((FRONT, ["req-1"]), (NodeId("front-9"), []), (CONTROL, ["req-1"])):
        bench.message(WhatDoYouHold(7), asker)
        (holding,) = bench.sent(Holding)
        assert (holding.number, [held.request for held in holding.held]) == (7, names)


def test_orphans_are_dropped_after_a_grace_unless_their_front_is_back() -> None:
    for comes_back in (True, False):
        bench = Bench()
        bench.submit(llm("req-1"))
        bench.event(PeerLost(0, "t", FRONT, 1))
        if comes_back:
            bench.event(PeerJoined(0, "t", FRONT, 1))
        bench.fire(f"orphans:{FRONT}", 10 * NS_PER_S)
        assert bench.node.worker.machine.live == int(comes_back)


def test_the_loss_of_a_peers_older_life_changes_nothing() -> None:
    bench = Bench()
    bench.event(PeerJoined(0, "t", FRONT, 2))
    bench.event(PeerLost(0, "t", FRONT, 1))
    assert bench.timers() == []
    bench.event(PeerLost(0, "t", FRONT, 2))
    assert bench.timers() == [(f"orphans:{FRONT}", 10 * NS_PER_S)]


def test_the_prefix_cache_is_forgotten_on_demand() -> None:  # SPEC B2
    bench = Bench()
    bench.submit(llm("req-1", prompt=64))
    bench.finish()
    bench.message(ResetPrefixCache(1))
    assert sum(account.used for account in bench.node.worker.machine.accounts() if account.cache) == 0


def test_evidence_counts_idle_host_and_overlapped_time_of_its_own_steps() -> None:  # SPEC I1
    bench = Bench(credits=1)
    bench.submit(llm("req-0", max_tokens=3))
    bench.step(idle_gap_ns=1000, host_ns=7, plan_ns=3, overlapped_ns=5)
    bench.submit(llm("req-1", max_tokens=2), number=2)
    ends = []
    while bench.plans:
        bench.step(idle_gap_ns=10, host_ns=7, plan_ns=3, overlapped_ns=5)
        ends += bench.sent(Finished)
    first, second = ends
    assert (first.request, first.marks.idle_gap_ns, first.marks.host_ns, first.marks.steps) == ("req-0", 1020, 30, 3)
    assert (second.marks.idle_gap_ns, second.marks.overlapped_ns, second.marks.steps) == (20, 10, 2)


def test_pads_to_the_configured_buckets() -> None:  # SPEC E1
    bench = Bench(config=WorkerConfig(buckets=Buckets((4, 8), "full")))
    bench.submit(llm("req-1"))
    bench.step()
    bench.step()
    assert {(plan.bucket, plan.graph) for plan in bench.plans} == {(4, "full")}


def test_padding_is_reported_as_the_executor_tells_it() -> None:  # SPEC E1
    bench = Bench()
    bench.submit(llm("req-1"))
    rows = bench.plans[0].tokens + 3
    bench.step(padded_rows=3)
    totals = bench.node.worker.rates.totals()
    assert (totals["step_rows"], totals["step_padded_rows"]) == (rows, 3)


def test_combinations_that_cannot_work_are_refused() -> None:  # SPEC B6
    with pytest.raises(ConfigError, match=r"just_in_time.*credits"):
        WorkerConfig(credits=1, pace=PolicyChoice("just_in_time"))
    with pytest.raises(ConfigError, match="credits"):
        WorkerConfig(credits=0)


def follow_up(first: LlmRequest, output: list[int]) -> LlmRequest:
    """The next turn of the conversation."""
    prompt = (*first.prompt, *output, *range(1, 40))
    sampling = msgspec.structs.replace(first.sampling, max_tokens=5)
    return cacheable(msgspec.structs.replace(first, id=RequestId("req-2"), prompt=prompt, sampling=sampling))


def cacheable(request: LlmRequest) -> LlmRequest:
    root = cache_root(model="synthetic")
    return msgspec.structs.replace(
        request, cache_root=root, block_tokens=16, block_hashes=block_hashes(root, request.prompt, 16)
    )


def cached_tokens(bench: Bench, request: LlmRequest) -> int:
    bench.submit(request)
    (finished,) = messages(bench.finish(), Finished)
    assert isinstance(finished, Finished)
    assert finished.marks.cached_tokens is not None
    return finished.marks.cached_tokens


@pytest.mark.parametrize("credits", [1, 2, 3])
def test_a_follow_up_hits_the_output_that_ended_by_length(credits: int) -> None:
    bench = Bench(credits)
    first = cacheable(llm("req-1", prompt=20, max_tokens=60))
    bench.submit(first)
    output = streamed(bench.finish())
    assert len(output) == 60
    assert cached_tokens(bench, follow_up(first, output)) == 64  # 79 tokens were fed: four whole blocks


@pytest.mark.parametrize("credits", [1, 2, 3])
def test_a_follow_up_hits_the_output_that_its_client_stopped(credits: int) -> None:
    bench = Bench(credits)
    first = cacheable(llm("req-1", prompt=20, max_tokens=200))
    bench.submit(first)
    output: list[int] = []
    while len(output) < 50:
        output += streamed(bench.step())
    bench.message(Cancel(REQ, 1, FinishReason.STOP))
    bench.finish()
    assert cached_tokens(bench, follow_up(first, output)) == 64  # 69 tokens were fed for certain


def test_reports_tell_what_the_cache_holds() -> None:
    bench = Bench()
    greeted = bench.sent(Report)
    assert [r.report.kv_events for r in greeted] == [KvEvents(is_reset=True)]
    request = cacheable(llm("req-1", prompt=128, max_tokens=20))
    bench.submit(request)
    told = [m.report.kv_events for m in messages(bench.finish(), Report) if isinstance(m, Report)]
    assert [key for events in told if events is not None for key in events.stored] == [*request.block_hashes[3::4]]


def test_a_new_listener_and_an_emptied_cache_are_told_everything() -> None:
    bench = Bench()
    request = cacheable(llm("req-1", prompt=128, max_tokens=20))
    bench.submit(request)
    bench.finish()
    bench.fire("report", NS_PER_S)
    bench.now_ns = 2 * NS_PER_S
    bench.event(PeerJoined(bench.now_ns, "t", CONTROL, 1))
    assert bench.sent(Report)[0].report.kv_events == KvEvents((*request.block_hashes[3::4],), is_reset=True)
    bench.now_ns = 3 * NS_PER_S
    bench.message(ResetPrefixCache(1))
    assert bench.sent(Report)[0].report.kv_events == KvEvents(is_reset=True)


def test_after_an_engine_failure_nothing_is_told_as_cached() -> None:  # SPEC A11
    bench = Bench()
    bench.submit(cacheable(llm("req-1", prompt=128, max_tokens=20)))
    bench.step()
    bench.now_ns = NS_PER_S
    bench.fail()
    (told,) = bench.sent(Report)
    assert told.report.kv_events is not None
    assert told.report.kv_events.is_reset
