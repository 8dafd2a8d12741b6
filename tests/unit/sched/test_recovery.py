"""A front under failing, silent, full and slow replicas (SPEC A11)."""

import msgspec
import pytest
from tests.unit.sched.desk import Desk
from tests.unit.sched.diffusion.pictures import picture
from tests.unit.sched.router.views import llm

from headway.core.decisions import Decision
from headway.core.effects import Record
from headway.core.events import ClientGone
from headway.core.evidence import EvidenceRecord, WorkerMarks
from headway.core.ids import ModelId, NodeId, RequestId, TenantId, TransferId
from headway.core.messages import Begun, Cancel, Finished, Probed, Refused, Reserve, Reserved, TakeOver, TakeOverAck
from headway.core.reports import DenoiseCoefficients, ShapePreparation
from headway.core.request import FinishReason, LlmRequest, Slo, TextRequest
from headway.core.units import NS_PER_S
from headway.sched.config import RouteConfig
from headway.sched.dispatch import Patience
from headway.sched.fleet.breaker import BreakerParams
from headway.sched.fleet.health import HealthParams
from headway.sched.fleet.hedge import HedgeParams
from headway.sched.fleet.retry import RetryParams
from headway.sched.nodes import FrontConfig
from headway.sched.router.machine import PdPools, Room
from headway.sched.watch import Silence

REQ = RequestId("req-1")
ZERO = {"gateway/in_flight": 0, "gateway/stream_bytes": 0}
UPSTREAMS = ("up-a", "up-b")


def text(name: str, **change: object) -> TextRequest:
    made = TextRequest(RequestId(name), TenantId("default"), ModelId("synthetic"), 10, 20, 0)
    return msgspec.structs.replace(made, **change)


def upstreams(config: FrontConfig | None = None) -> Desk:
    desk = Desk(config, UPSTREAMS)
    for node in UPSTREAMS:
        desk.report(node, role="upstream")
    return desk


def fail(desk: Desk, src: str, epoch: int, request: str = "req-1", count: int = 0) -> None:
    marks = WorkerMarks(NodeId(src), 0)
    desk.message(src, Finished(RequestId(request), epoch, FinishReason.LOST, count, marks, f"{src} 500", "fault"))


def refuse(desk: Desk, src: str, epoch: int, retry_after_ms: int | None = None, request: str = "req-1") -> None:
    desk.message(src, Refused(RequestId(request), epoch, "full", "429", retry_after_ms))


def targets(desk: Desk) -> list[tuple[str, int]]:
    return [(dst, message.epoch) for dst, message in desk.submits()]


def cancels(desk: Desk) -> list[tuple[str, int]]:
    return [(dst, message.epoch) for dst, message in desk.sent(Cancel)]


def error(desk: Desk) -> tuple[int, str | None]:
    (end,) = desk.ends()
    assert end.error is not None
    return end.error.status, end.error.code


def decisions(desk: Desk, kind: str) -> list[str]:
    said = [e.entry for e in desk.all if isinstance(e, Record) and isinstance(e.entry, Decision)]
    return [entry.chosen for entry in said if entry.kind == kind]


# Retry


def test_a_failed_request_is_retried_where_it_has_not_failed() -> None:  # SPEC A11, L-3
    desk = Desk(replicas=("rep-a", "rep-b", "rep-c"))
    desk.report("rep-c", running=9)
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    assert targets(desk) == [("rep-b", 2)]
    fail(desk, "rep-b", 2)
    assert targets(desk) == [("rep-c", 3)]  # the most loaded, and the only one that has not failed it
    assert decisions(desk, "retry") == ["retry", "retry"]


def test_the_only_replica_is_asked_again() -> None:
    desk = Desk(replicas=("rep-a",))
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    assert targets(desk) == [("rep-a", 2)]


def test_a_restarted_replica_is_another_one() -> None:
    desk = Desk()
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    desk.report("rep-b", draining=True)
    desk.join("rep-a", incarnation=2)
    fail(desk, "rep-b", 2)
    assert targets(desk) == [("rep-a", 3)]


def test_before_its_first_byte_a_relayed_request_runs_elsewhere() -> None:  # SPEC A11
    desk = upstreams()
    desk.arrive(text("req-1"))
    fail(desk, "up-a", 1)
    assert targets(desk) == [("up-b", 2)]


def test_after_its_first_byte_it_ends_with_an_error_at_once() -> None:  # litellm#29808, semantic-router#3063
    desk = upstreams()
    desk.arrive(text("req-1"))
    desk.message("up-a", Begun(REQ, 1))
    fail(desk, "up-a", 1, count=3)
    assert error(desk) == (502, "engine_lost")
    assert targets(desk) == []
    desk.close("req-1")
    assert desk.levels() == ZERO


def test_a_late_begin_of_an_old_epoch_changes_nothing() -> None:
    desk = upstreams()
    desk.arrive(text("req-1"))
    fail(desk, "up-a", 1)
    desk.message("up-a", Begun(REQ, 1))
    fail(desk, "up-b", 2)
    assert targets(desk) == [("up-a", 3)]  # nothing had begun


def test_a_retry_over_the_budget_waits_for_it() -> None:  # SPEC A11: no retry storm
    desk = Desk(FrontConfig(retry=RetryParams(share=0, per_s=2, saved_max=1, wait_s=1)))
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    fail(desk, "rep-b", 2)
    assert targets(desk) == []
    assert "retry:2:req-1" in desk.timers()
    desk.fire("retry:2:req-1")
    assert targets(desk) == [("rep-a", 3)]
    desk.fire("retry:2:req-1")
    assert targets(desk) == []


def test_a_retry_far_over_the_budget_is_not_made() -> None:
    desk = Desk(FrontConfig(retry=RetryParams(share=0, per_s=2, saved_max=1, wait_s=0)))
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    fail(desk, "rep-b", 2)
    assert error(desk) == (502, "engine_lost")
    assert decisions(desk, "retry") == ["retry", "give_up"]


def test_the_requests_of_a_lost_replica_need_no_budget() -> None:  # SPEC A11: drain and loss lose no request
    desk = Desk(FrontConfig(retry=RetryParams(share=0, per_s=1, saved_max=1, wait_s=0)))
    desk.report("rep-b", draining=True)
    for number in range(2):
        desk.arrive(f"req-{number}")
    desk.report("rep-b")
    desk.lose("rep-a")
    assert len(desk.submits()) == 2


def test_a_client_that_leaves_while_its_retry_waits_frees_everything() -> None:
    desk = Desk(FrontConfig(retry=RetryParams(share=0, per_s=2, saved_max=1, wait_s=1)))
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    fail(desk, "rep-b", 2)
    desk.event(ClientGone(0, "t", REQ))
    desk.fire("close:req-1")
    assert desk.fire("retry:2:req-1") == []
    assert desk.levels() == ZERO


# Health and breaker


def test_a_failing_replica_gets_nothing_until_a_trial_succeeds() -> None:  # SPEC A11; smg#2468
    desk = Desk(FrontConfig(breaker=BreakerParams(faults_min=1, open_s=1), room=Room(cold_requests=9)))
    desk.report("rep-b", running=9)
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    desk.arrive("req-2")
    assert targets(desk) == [("rep-b", 1)]
    desk.now_ns = NS_PER_S
    desk.arrive("req-3")
    assert targets(desk) == [("rep-a", 1)]  # the trial
    desk.arrive("req-4")
    assert targets(desk) == [("rep-b", 1)]  # one at a time
    desk.tokens("rep-a", "req-3", 1, 0, 7)
    desk.arrive("req-5")
    assert targets(desk) == [("rep-a", 1)]
    assert decisions(desk, "breaker") == ["open", "half_open", "closed"]


def test_a_rested_breaker_is_tried_even_when_the_policy_prefers_others() -> None:  # smg#2468: probed again
    desk = Desk(FrontConfig(breaker=BreakerParams(faults_min=1, open_s=1)))
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    desk.report("rep-a", running=90, running_kv_tokens=90_000)
    desk.arrive("req-2")
    assert targets(desk) == [("rep-b", 1)]
    desk.now_ns = NS_PER_S
    desk.arrive("req-3")
    assert targets(desk) == [("rep-a", 1)]


def test_a_trial_whose_client_leaves_gives_its_place_back() -> None:  # sglang-omni#931: counters leak on cancel
    desk = Desk(FrontConfig(breaker=BreakerParams(faults_min=1, open_s=1)), ("rep-a",))
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    desk.now_ns = NS_PER_S
    desk.fire("guard:rep-a:1000000000")
    assert targets(desk) == [("rep-a", 2)]
    desk.event(ClientGone(desk.now_ns, "t", REQ))
    desk.finish("rep-a", "req-1", 2, 0, FinishReason.CANCELLED)
    desk.arrive("req-2")
    assert targets(desk) == [("rep-a", 1)]


@pytest.mark.parametrize("health", ["neutral", "success"])
def test_client_errors_are_answers_and_open_no_breaker(health: str) -> None:  # sglang#25811, vllm-router#60
    desk = upstreams(FrontConfig(breaker=BreakerParams(faults_min=1)))
    for number in range(20):
        desk.arrive(text(f"req-{number}"))
        ((node, submit),) = desk.submits()
        desk.message(node, Begun(submit.request.id, 1))
        marks = WorkerMarks(NodeId(node), 0)
        desk.message(node, Finished(submit.request.id, 1, FinishReason.STOP, 0, marks, None, health))  # type: ignore[arg-type]  # a literal
        desk.close(f"req-{number}")
    assert decisions(desk, "breaker") == []


def test_bad_checks_take_a_replica_out_and_good_ones_bring_it_back() -> None:  # SPEC A11
    desk = Desk(FrontConfig(health=HealthParams(up_after=1, down_after=2)))
    for _ in range(2):
        desk.message("rep-a", Probed(False, "GET /health: timed out"))
    desk.arrive("req-1")
    assert targets(desk) == [("rep-b", 1)]
    desk.message("rep-a", Probed(True, "200"))
    desk.arrive("req-2")
    assert targets(desk) == [("rep-a", 1)]
    assert decisions(desk, "health") == ["down", "up"]


def test_with_every_check_bad_requests_still_go_through_one_by_one() -> None:  # dynamo#10564: never 503 for ever
    desk = Desk(FrontConfig(health=HealthParams(up_after=9, down_after=1)), ("rep-a",))
    desk.message("rep-a", Probed(False, "404"))
    desk.arrive("req-1")
    assert targets(desk) == [("rep-a", 1)]
    desk.arrive("req-2")
    assert targets(desk) == []
    desk.finish("rep-a", "req-1", 1, 0)
    assert targets(desk) == [("rep-a", 1)]


def test_while_every_breaker_is_open_requests_wait_and_then_one_tries() -> None:  # dynamo#10564
    desk = Desk(FrontConfig(breaker=BreakerParams(faults_min=1, open_s=1)), ("rep-a",))
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    assert targets(desk) == []
    assert f"guard:rep-a:{NS_PER_S}" in desk.timers()
    desk.now_ns = NS_PER_S
    desk.fire(f"guard:rep-a:{NS_PER_S}")
    assert targets(desk) == [("rep-a", 2)]


def test_a_request_that_nobody_takes_in_time_is_a_503() -> None:
    desk = Desk(FrontConfig(breaker=BreakerParams(faults_min=1, open_s=1), patience=Patience(replica_wait_s=0.5)))
    desk.report("rep-b", draining=True)
    desk.arrive("req-1")
    fail(desk, "rep-a", 1)
    assert "replica:req-1" in desk.timers()
    desk.now_ns = NS_PER_S // 2
    desk.fire("replica:req-1")
    assert error(desk) == (503, "no_replica")


@pytest.mark.parametrize("has_run", [True, False])
def test_a_second_time_without_replicas_is_waited_out_like_the_first(has_run: bool) -> None:
    desk = Desk(replicas=())
    desk.arrive("req-1")
    assert "replica:req-1" in desk.timers()
    desk.join("rep-a")
    if has_run:
        desk.lose("rep-a")
    else:  # it came back just in time, full, and is gone again
        desk.message("rep-a", Refused(REQ, 1, "full", "429", 20_000))
        desk.fire("replica:req-1")
        desk.lose("rep-a")
    assert "replica:req-1" in desk.timers()


def test_whoever_waits_for_room_is_told_too_when_the_last_replica_goes() -> None:
    desk = Desk(FrontConfig(room=Room(cold_requests=2)), ("rep-a",))
    for number in range(4):  # two wait at the front: no rate is known
        desk.arrive(f"req-{number}")
    desk.finish("rep-a", "req-0", 1, 0)
    desk.report("rep-a", draining=True)
    waiting = [request for request in desk.node.book.requests if request in desk.node.dispatch.queue]
    assert waiting
    desk.lose("rep-a")
    desk.now_ns = 30 * NS_PER_S
    ended = []
    for _ in range(8):
        for request in list(desk.node.book.requests):
            desk.fire(f"replica:{request}")
            ended += [end.request for end in desk.ends()]
    assert set(waiting) <= set(ended)


def test_a_relayed_request_goes_to_the_fallback_once_every_replica_has_failed_it() -> None:  # SPEC A11
    desk = upstreams(FrontConfig(routes={"synthetic": RouteConfig(fallbacks=("small",))}))
    desk.report("up-b", role="upstream", model="small")
    desk.arrive(text("req-1"))
    fail(desk, "up-a", 1)
    assert error(desk) == (502, "engine_lost")  # the edge submits it again, as `small`
    assert targets(desk) == []


def test_without_a_fallback_that_can_answer_it_is_tried_again() -> None:  # SPEC A11
    desk = upstreams(FrontConfig(routes={"synthetic": RouteConfig(fallbacks=("small",))}))
    desk.arrive(text("req-1"))
    fail(desk, "up-a", 1)
    fail(desk, "up-b", 2)
    assert desk.ends() == []
    assert desk.node.book.requests


# Backpressure


def test_a_full_replica_sends_the_request_elsewhere_and_is_no_fault() -> None:  # sglang#39464
    desk = upstreams(FrontConfig(breaker=BreakerParams(faults_min=1)))
    desk.arrive(text("req-1"))
    refuse(desk, "up-a", 1, 5000)
    assert targets(desk) == [("up-b", 2)]
    desk.arrive(text("req-2"))
    assert targets(desk) == [("up-b", 1)]
    assert decisions(desk, "breaker") == []


def test_while_all_are_full_it_waits_until_the_first_may_be_asked_again() -> None:
    desk = upstreams()
    desk.arrive(text("req-1"))
    refuse(desk, "up-a", 1, 5000)
    refuse(desk, "up-b", 2, 2000)
    assert targets(desk) == []
    assert desk.ends() == []
    desk.now_ns = 2 * NS_PER_S
    desk.fire(f"guard:up-b:{2 * NS_PER_S}")
    assert targets(desk) == [("up-b", 3)]


def test_all_full_for_longer_than_the_deadline_is_a_429_with_the_smallest_retry_after() -> None:
    desk = upstreams()
    desk.arrive(text("req-1", slo=Slo(e2e_deadline_ns=NS_PER_S)))
    refuse(desk, "up-a", 1, 5000)
    refuse(desk, "up-b", 2, 2000)
    assert error(desk) == (429, "queue_full")
    (end,) = desk.ends()
    assert end.error is not None
    assert end.error.retry_after_ms == 2000


def test_who_comes_while_all_are_full_waits_no_longer_than_who_was_refused() -> None:
    desk = upstreams(FrontConfig(patience=Patience(full_wait_s=3)))
    desk.arrive(text("req-1"))
    refuse(desk, "up-a", 1, 60_000)
    refuse(desk, "up-b", 2, 60_000)
    assert error(desk) == (429, "queue_full")
    desk.arrive(text("req-2"))
    assert error(desk) == (429, "queue_full")  # nobody will ask in its 3 s
    refuse(desk, "up-a", 1, 2000)
    desk.arrive(text("req-3"))
    assert desk.ends() == []  # one will be asked again in time
    assert "full:req-3" in desk.timers()
    for name in ("req-1", "req-2"):
        desk.close(name)


def test_a_storm_of_refusals_ends_in_429s_after_the_wait() -> None:
    desk = upstreams(FrontConfig(patience=Patience(full_wait_s=3)))
    desk.arrive(text("req-1"))
    epoch = 0
    for second in range(3):
        desk.now_ns = second * NS_PER_S
        desk.fire("guard:up-a:0")
        for node in ("up-a", "up-b"):
            epoch += 1
            refuse(desk, node, epoch)
    assert desk.ends() == []
    desk.fire("full:req-1")
    assert error(desk) == (429, "queue_full")
    desk.close("req-1")
    assert desk.levels() == ZERO


def test_requests_of_others_that_wait_at_every_upstream_do_not_keep_ours_out() -> None:
    desk = upstreams(FrontConfig(room=Room(cold_requests=2)))
    for node in UPSTREAMS:
        desk.report(node, role="upstream", waiting=9, running=9)
    sent = []
    for name in ("req-1", "req-2", "req-3"):
        desk.arrive(text(name))
        sent += [dst for dst, _ in targets(desk)]
    assert sorted(sent) == list(UPSTREAMS)


# Silence


def silent(first_token_s: float = 8, replica_s: float = 8, stop_s: float = 8, preparing_s: float = 0) -> FrontConfig:
    return FrontConfig(patience=Patience(silence=Silence(first_token_s, replica_s, stop_s, preparing_s)))


def test_a_replica_without_first_token_loses_the_request() -> None:  # dynamo#13088
    desk = Desk(silent())
    desk.arrive("req-1")
    assert "watch" in desk.timers()
    desk.now_ns = 8 * NS_PER_S - 1
    desk.fire("watch")
    assert targets(desk) == []
    desk.now_ns += 1
    desk.fire("watch")
    assert cancels(desk) == [("rep-a", 1)]
    assert targets(desk) == [("rep-b", 2)]
    desk.tokens("rep-a", "req-1", 1, 0, 66)  # it wakes up
    desk.tokens("rep-b", "req-1", 2, 0, 7)
    assert desk.delivered() == [7]


def test_silence_is_a_fault() -> None:
    desk = Desk(msgspec.structs.replace(silent(), breaker=BreakerParams(faults_min=1)))
    desk.arrive("req-1")
    desk.now_ns = 8 * NS_PER_S
    desk.fire("watch")
    assert decisions(desk, "breaker") == ["open"]


def test_a_replica_that_falls_silent_mid_stream_is_left_with_what_was_emitted() -> None:  # SPEC A11
    desk = Desk(silent())
    desk.arrive("req-1")
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.now_ns = 8 * NS_PER_S
    desk.fire("watch")
    ((dst, submit),) = desk.submits()
    assert (dst, submit.emitted) == ("rep-b", (7,))


def test_a_busy_replica_that_says_anything_is_not_silent() -> None:
    desk = Desk(silent())
    desk.arrive("req-1")
    desk.tokens("rep-a", "req-1", 1, 0, 7)  # and preempted then
    desk.now_ns = 7 * NS_PER_S
    desk.report("rep-a", running=3)
    desk.now_ns = 9 * NS_PER_S
    desk.fire("watch")
    assert (cancels(desk), targets(desk)) == ([], [])


def test_a_diffusion_replica_may_be_silent_for_twice_its_work_and_a_while() -> None:  # ComfyUI#3670, SPEC A11
    desk = Desk(silent())
    cost, video = DenoiseCoefficients(0.0, 0.0, 1e9, 0.0), picture("req-1", steps=5, size=16, model=ModelId("m"))
    for node in ("rep-a", "rep-b"):  # 5 s for the request, and 20 s that are there already
        desk.report(node, role="diffusion", model="m", denoise_cost=cost, queued_work_ns=20 * NS_PER_S)
    desk.arrive(video)
    ((owner, _),) = targets(desk)
    desk.now_ns = (8 + 2 * 25) * NS_PER_S - 1
    desk.fire("watch")
    assert (cancels(desk), targets(desk)) == ([], [])
    desk.now_ns += 1
    desk.fire("watch")
    assert cancels(desk) == [(owner, 1)]
    assert len(targets(desk)) == 1


def test_a_replica_that_prepares_a_shape_may_be_silent_for_longer() -> None:  # SPEC F8, A11
    desk = Desk(silent(preparing_s=30))
    cost, cold = DenoiseCoefficients(0.0, 0.0, 1e9, 0.0), picture("req-1", steps=5, size=16, model=ModelId("m"))
    for node in ("rep-a", "rep-b"):
        desk.report(node, role="diffusion", model="m", denoise_cost=cost)
    desk.arrive(cold)
    ((owner, _),) = targets(desk)
    shape = ShapePreparation(16, 16, 1, 1, "running", done=0, slices=2, waiting=1)
    desk.report(owner, role="diffusion", model="m", denoise_cost=cost, preparing=(shape,))
    desk.now_ns = (8 + 30) * NS_PER_S - 1
    desk.fire("watch")
    assert (cancels(desk), targets(desk)) == ([], [])
    desk.now_ns += 60 * NS_PER_S
    desk.fire("watch")
    assert cancels(desk) == [(owner, 1)]


def test_a_relayed_stream_is_watched_by_who_relays_it() -> None:
    desk = upstreams(silent())
    desk.arrive(text("req-1"))
    desk.message("up-a", Begun(REQ, 1))
    desk.now_ns = 100 * NS_PER_S
    desk.fire("watch")
    assert (cancels(desk), desk.ends()) == ([], [])


def test_a_replica_that_never_confirms_a_cancel_holds_nothing() -> None:  # vllm-router#215
    desk = Desk(silent(stop_s=3))
    desk.arrive("req-1")
    desk.now_ns = 5 * NS_PER_S
    desk.event(ClientGone(desk.now_ns, "t", REQ))
    desk.fire("close:req-1")
    desk.fire("watch")
    assert desk.levels()["gateway/in_flight"] == 1
    desk.now_ns = 8 * NS_PER_S
    desk.fire("watch")
    assert desk.levels() == ZERO
    assert desk.node.book.requests == {}


# SPEC H6
def test_a_replica_that_ends_a_long_step_of_a_picture_that_was_cancelled_says_what_it_took() -> None:
    """A step of a large video takes longer than `stop_s`: its record waits for it, and is closed once."""
    desk = Desk(silent(stop_s=3))
    cost = DenoiseCoefficients(0.0, 0.0, 1e9, 0.0)
    desk.report("rep-a", role="diffusion", model="m", denoise_cost=cost, queued_work_ns=20 * NS_PER_S)
    desk.arrive(picture("req-1", steps=5, size=16, model=ModelId("m")))
    desk.now_ns = 5 * NS_PER_S
    desk.event(ClientGone(desk.now_ns, "t", REQ))
    desk.fire("close:req-1")
    desk.now_ns = (5 + 3 + 2 * 25) * NS_PER_S - 1
    desk.fire("watch")
    assert "req-1" in desk.node.book.requests
    took = WorkerMarks(NodeId("rep-a"), 0, steps=1, device_ns=40 * NS_PER_S)
    said = desk.message("rep-a", Finished(REQ, 1, FinishReason.CANCELLED, 0, took))
    records = [effect.entry for effect in said if isinstance(effect, Record)]
    assert [entry.device_ms for entry in records if isinstance(entry, EvidenceRecord)] == [40_000.0]
    assert desk.node.book.requests == {}


def test_who_is_told_to_stop_while_it_prepares_a_shape_is_waited_for() -> None:  # SPEC F8, H6
    """It is as silent as before, and says afterwards what the request took."""
    desk = Desk(silent(stop_s=3, preparing_s=30))
    cost, shape = DenoiseCoefficients(0.0, 0.0, 1e9, 0.0), ShapePreparation(16, 16, 1, 1, "running", 0, 2, 1)
    desk.report("rep-a", role="diffusion", model="m", denoise_cost=cost)
    desk.arrive(picture("req-1", steps=5, size=16, model=ModelId("m")))
    desk.report("rep-a", role="diffusion", model="m", denoise_cost=cost, preparing=(shape,))
    desk.now_ns = 5 * NS_PER_S
    desk.event(ClientGone(desk.now_ns, "t", REQ))
    desk.fire("close:req-1")
    desk.now_ns = (5 + 3 + 30) * NS_PER_S - 1
    desk.fire("watch")
    assert "req-1" in desk.node.book.requests
    desk.now_ns += 60 * NS_PER_S
    desk.fire("watch")
    assert desk.node.book.requests == {}


def test_the_look_out_ends_with_the_last_request() -> None:
    desk = Desk(silent())
    desk.arrive("req-1")
    desk.finish("rep-a", "req-1", 1, 0)
    desk.fire("watch")
    assert desk.timers() == []


def test_a_take_over_by_who_was_given_the_request_meanwhile_is_refused() -> None:  # SPEC C4
    """Its source has lost the request without knowing; what it hands over is not what the new owner runs."""
    desk = Desk(silent())
    desk.arrive("req-1")
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.now_ns = 8 * NS_PER_S
    desk.fire("watch")
    assert targets(desk) == [("rep-b", 2)]
    desk.message("rep-b", TakeOver(REQ, 2, TransferId("move-1"), 1))
    assert [message.accepted for _, message in desk.sent(TakeOverAck)] == [False, False]


# Prefill here, decode there


def split() -> Desk:
    pools = PdPools(prefill=(NodeId("rep-a"),), decode=(NodeId("rep-b"),), prompt_tokens_min=1)
    desk = Desk(FrontConfig(pools=pools))
    desk.arrive("req-1")
    assert [dst for dst, _ in desk.sent(Reserve)] == ["rep-b"]
    return desk


def prefilling() -> Desk:
    desk = split()
    desk.message("rep-b", Reserved(REQ, 1, TransferId("xfer-req-1-1"), (1, 2)))
    assert targets(desk) == [("rep-a", 1)]
    return desk


def test_a_failed_prefill_frees_the_decode_replica_that_waits_for_it() -> None:  # aibrix#2289
    desk = prefilling()
    fail(desk, "rep-a", 1)
    assert ("rep-b", 1) in cancels(desk)


def test_a_refused_prefill_frees_the_decode_replica_that_waits_for_it() -> None:  # sglang#29482
    desk = prefilling()
    refuse(desk, "rep-a", 1)
    assert ("rep-b", 1) in cancels(desk)


def test_a_decode_replica_that_dies_before_the_prefill_costs_the_reservation_only() -> None:  # sglang#29482
    desk = split()
    desk.lose("rep-b")
    assert targets(desk) == [("rep-a", 2)]
    assert desk.node.book.requests[REQ].decode is None


@pytest.mark.parametrize(("gone", "left"), [("rep-a", "rep-b"), ("rep-b", "rep-a")])
def test_without_one_pool_the_other_serves_whole_requests(gone: str, left: str) -> None:
    """A pool that is still loading, or gone, makes nothing unservable (sglang#33740)."""
    pools = PdPools(prefill=(NodeId("rep-a"),), decode=(NodeId("rep-b"),), prompt_tokens_min=1)
    desk = Desk(FrontConfig(pools=pools))
    desk.lose(gone)
    desk.arrive("req-1")
    assert targets(desk) == [(left, 1)]


def test_a_burst_between_two_reports_does_not_pile_up() -> None:
    """Pick and count are one step (aibrix#2422)."""
    desk = Desk(FrontConfig(room=Room(cold_requests=99)), ("rep-a", "rep-b", "rep-c"))
    sent = []
    for number in range(30):
        desk.arrive(f"req-{number}")
        sent += [dst for dst, _ in desk.submits()]
    assert {replica: sent.count(replica) for replica in ("rep-a", "rep-b", "rep-c")} == {
        "rep-a": 10,
        "rep-b": 10,
        "rep-c": 10,
    }


# Hedging


def hedged(request: LlmRequest | TextRequest | None = None, **params: object) -> Desk:
    config = FrontConfig(hedge=HedgeParams(after_ms=50, **params))  # type: ignore[arg-type]  # fields by name
    desk = Desk(config) if request is None or isinstance(request, LlmRequest) else upstreams(config)
    desk.arrive(request or llm("req-1"))
    return desk


def open_hedge() -> Desk:
    desk = hedged()
    desk.fire("hedge:1:req-1")
    assert targets(desk) == [("rep-b", 1001)]
    return desk


def test_the_first_leg_with_a_token_wins_and_the_other_is_cancelled_at_once() -> None:
    desk = open_hedge()
    desk.tokens("rep-b", "req-1", 1001, 0, 7)
    assert cancels(desk) == [("rep-a", 1)]
    desk.tokens("rep-a", "req-1", 1, 0, 66)
    desk.tokens("rep-b", "req-1", 1001, 1, 8)
    assert desk.delivered() == [7, 8]
    assert desk.node.front.recovery.counts["hedge_won"] == 1


def test_a_slow_leg_that_is_first_after_all_cancels_the_second() -> None:
    desk = open_hedge()
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    assert cancels(desk) == [("rep-b", 1001)]
    desk.tokens("rep-b", "req-1", 1001, 0, 66)
    desk.finish("rep-a", "req-1", 1, 1)
    desk.close("req-1")
    assert desk.delivered() == [7]
    assert desk.levels() == ZERO


@pytest.mark.parametrize("how", ["lost", "failed", "refused"])
def test_the_second_leg_goes_on_alone_when_the_first_is_gone(how: str) -> None:
    desk = open_hedge()
    if how == "lost":
        desk.lose("rep-a")
    elif how == "failed":
        fail(desk, "rep-a", 1)
    else:
        refuse(desk, "rep-a", 1)
    assert (targets(desk), desk.ends()) == ([], [])
    desk.tokens("rep-b", "req-1", 1001, 0, 7)
    assert desk.delivered() == [7]
    assert desk.node.front.recovery.counts["retried"] == 0


@pytest.mark.parametrize("how", ["lost", "failed", "refused"])
def test_the_first_leg_goes_on_alone_when_the_second_is_gone(how: str) -> None:
    desk = open_hedge()
    if how == "lost":
        desk.lose("rep-b")
    elif how == "failed":
        fail(desk, "rep-b", 1001)
    else:
        refuse(desk, "rep-b", 1001)
    assert (targets(desk), cancels(desk), desk.ends()) == ([], [], [])
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    assert desk.delivered() == [7]


def test_a_client_that_leaves_cancels_both_legs() -> None:
    desk = open_hedge()
    desk.event(ClientGone(0, "t", REQ))
    assert sorted(cancels(desk)) == [("rep-a", 1), ("rep-b", 1001)]
    desk.finish("rep-a", "req-1", 1, 0, FinishReason.CANCELLED)
    desk.fire("close:req-1")
    assert desk.levels() == ZERO


def test_a_hedged_request_counts_once_in_every_account() -> None:  # SPEC L-2
    desk = open_hedge()
    assert desk.levels()["gateway/in_flight"] == 1
    desk.tokens("rep-b", "req-1", 1001, 0, 7)
    desk.finish("rep-b", "req-1", 1001, 1)
    desk.close("req-1")
    meters = {a.name: (a.reserved, a.used) for a in desk.node.ledger.views() if a.kind == "meter"}
    assert meters["tenant/default/tokens"] == (0, 11)


def test_a_retry_after_a_hedge_has_a_younger_epoch_than_both_legs() -> None:
    desk = open_hedge()
    desk.tokens("rep-b", "req-1", 1001, 0, 7)
    desk.lose("rep-b")
    assert targets(desk) == [("rep-a", 1002)]


def test_only_short_requests_without_first_token_are_hedged() -> None:
    desk = hedged(llm("req-1", prompt=40), prompt_tokens_max=32)
    assert not [timer for timer in desk.timers() if timer.startswith("hedge")]
    desk = hedged()
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.fire("hedge:1:req-1")
    assert targets(desk) == []


def test_a_relayed_request_is_hedged_only_when_running_it_twice_says_the_same() -> None:
    assert not [timer for timer in hedged(text("req-1")).timers() if timer.startswith("hedge")]
    desk = hedged(text("req-1", is_idempotent=True))
    desk.fire("hedge:1:req-1")
    assert targets(desk) == [("up-b", 1001)]
    desk.message("up-b", Begun(REQ, 1001))
    assert cancels(desk) == [("up-a", 1)]
    marks = WorkerMarks(NodeId("up-b"), 0)
    desk.message("up-b", Finished(REQ, 1001, FinishReason.STOP, 5, marks))
    assert [end.output_tokens for end in desk.ends()] == [5]


def test_a_request_with_two_legs_is_not_handed_over() -> None:  # SPEC C4
    desk = open_hedge()
    desk.message("rep-c", TakeOver(REQ, 2, TransferId("move-1"), 0))
    assert ("rep-c", False) in [(dst, message.accepted) for dst, message in desk.sent(TakeOverAck)]
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    assert desk.delivered() == [7]


def test_hedges_stay_within_their_share() -> None:
    desk = Desk(FrontConfig(hedge=HedgeParams(after_ms=1, share_max=0.1), in_flight_max=100))
    hedges = 0
    for number in range(40):
        desk.arrive(f"req-{number}")
        dst = targets(desk)[0][0]
        desk.fire(f"hedge:1:req-{number}")
        hedges += len(desk.submits())
        desk.tokens(dst, f"req-{number}", 1, 0, 7)
        desk.finish(dst, f"req-{number}", 1, 1)
        desk.close(f"req-{number}")
        for node in ("rep-a", "rep-b"):
            desk.report(node, submits_seen=1 << 30)
    assert hedges == 5  # 40 x 0.1, and the one that a start allows
