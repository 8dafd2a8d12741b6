import msgspec
import pytest
from tests.unit.sched.desk import Desk
from tests.unit.sched.diffusion.pictures import COST, picture
from tests.unit.sched.router.views import llm

from headway.core.decisions import Decision
from headway.core.effects import Record, Send
from headway.core.errors import InvariantError
from headway.core.events import ClientGone, TextStopped
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Cancel, Held, Holding, Refused, WhatDoYouHold
from headway.core.request import FinishReason, Request, Slo
from headway.sched.dispatch import Patience
from headway.sched.nodes import FrontConfig
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room

REQ = RequestId("req-1")
DUE_1S = Slo(e2e_deadline_ns=10**9)
PAINTED = picture("req-1", slo=DUE_1S)
ZERO = {"gateway/in_flight": 0, "gateway/stream_bytes": 0}


def streaming(*tokens: int) -> Desk:
    desk = Desk()
    desk.arrive("req-1")
    for index, token in enumerate(tokens):
        desk.tokens("rep-a", "req-1", 1, index, token)
    return desk


def test_dispatches_as_epoch_one_and_records_one_decision() -> None:  # SPEC L-3
    desk = Desk()
    effects = desk.arrive("req-1")
    ((replica, submit),) = desk.submits()
    assert (replica, submit.epoch, submit.emitted, submit.number) == ("rep-a", 1, (), 1)
    (decision,) = [e.entry for e in effects if isinstance(e, Record)]
    assert (decision.kind, decision.chosen) == ("route", "rep-a")
    assert {alternative.name for alternative in decision.alternatives} == {"rep-a", "rep-b"}


def test_two_replicas_share_requests_between_reports() -> None:  # SPEC A5
    desk = Desk()
    for place in range(4):
        desk.arrive(f"req-{place}")
    targets = [dst for dst, _ in desk.sent(object, desk.all) if dst.startswith("rep")]
    assert targets.count("rep-a") == targets.count("rep-b")


def test_serves_a_request_to_its_evidence_and_an_empty_ledger() -> None:  # SPEC L-2, I1
    desk = streaming(7, 8)
    desk.finish("rep-a", "req-1", 1, 2)
    (end,) = desk.ends()
    assert (end.reason, end.output_tokens, end.error) == (FinishReason.LENGTH, 2, None)
    assert desk.levels()["gateway/in_flight"] == 1
    (record,) = [e.entry for e in desk.close("req-1") if isinstance(e, Record)]
    assert isinstance(record, EvidenceRecord)
    assert desk.delivered() == [7, 8]
    assert desk.levels() == ZERO
    meters = {a.name: (a.reserved, a.used) for a in desk.node.ledger.views() if a.kind == "meter"}
    assert meters == {"tenant/default/tokens": (0, 12), "tenant/default/gpu_seconds": (0, 5)}


def test_a_gap_in_the_stream_is_a_bug_that_tells_the_story() -> None:  # SPEC C4
    desk = streaming(7)
    with pytest.raises(InvariantError, match=r"token 2 of epoch 1.*at token 1.*dispatch"):
        desk.tokens("rep-a", "req-1", 1, 2, 9)


def test_a_finish_that_lacks_tokens_is_a_bug() -> None:
    desk = streaming(7)
    with pytest.raises(InvariantError, match="finished with 2 tokens, 1 were streamed"):
        desk.finish("rep-a", "req-1", 1, 2)


def test_a_lost_replica_resumes_elsewhere_from_the_emitted_tokens() -> None:  # SPEC A11
    desk = streaming(7, 8)
    desk.lose("rep-a")
    ((replica, submit),) = desk.submits()
    assert (replica, submit.epoch, submit.emitted) == ("rep-b", 2, (7, 8))
    desk.tokens("rep-b", "req-1", 2, 2, 9)
    assert desk.delivered() == [7, 8, 9]


def test_tokens_of_an_older_epoch_are_counted_and_dropped() -> None:
    desk = streaming(7)
    desk.lose("rep-a")
    desk.tokens("rep-a", "req-1", 1, 1, 66)
    assert desk.delivered() == [7]
    assert desk.node.book.stale_dropped == 1


def test_waits_for_a_restart_when_no_replica_is_left() -> None:  # SPEC A11
    desk = Desk(replicas=("rep-a",))
    desk.arrive("req-1")
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.lose("rep-a")
    assert desk.timers() == ["replica:req-1"]
    desk.join("rep-a", incarnation=2)
    ((replica, submit),) = desk.submits()
    assert (replica, submit.epoch, submit.emitted) == ("rep-a", 2, (7,))


def test_nobody_came_back_in_time() -> None:  # SPEC A11
    desk = Desk(replicas=("rep-a",))
    desk.arrive("req-1")
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.lose("rep-a")
    desk.fire("replica:req-1")
    (end,) = desk.ends()
    assert end.error is not None
    assert (end.error.status, end.error.code) == (502, "engine_lost")
    desk.close("req-1")
    assert desk.levels() == ZERO


def test_a_new_request_without_replica_is_a_503_after_the_wait() -> None:
    desk = Desk(replicas=())
    desk.arrive("req-1")
    desk.fire("replica:req-1")
    (end,) = desk.ends()
    assert end.error is not None
    assert (end.error.status, end.error.code) == (503, "no_replica")


def test_gives_up_after_the_configured_attempts() -> None:
    desk = Desk(FrontConfig(patience=Patience(attempts_max=1)))
    desk.arrive("req-1")
    desk.lose("rep-a")
    desk.lose("rep-b")
    (end,) = desk.ends()
    assert end.error is not None
    assert end.error.code == "engine_lost"


def test_a_replica_lost_after_the_last_token_only_owes_the_end() -> None:
    desk = Desk()
    desk.arrive(llm("req-1", max_tokens=1))
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.lose("rep-a")
    (end,) = desk.ends()
    assert (end.reason, end.output_tokens) == (FinishReason.LENGTH, 1)
    assert desk.submits() == []


def test_an_old_incarnations_loss_changes_nothing() -> None:
    desk = Desk(replicas=("rep-a",))
    desk.join("rep-a", incarnation=2)
    desk.arrive("req-1")
    desk.lose("rep-a", incarnation=1)
    assert desk.last == []


def test_a_restart_that_was_never_reported_lost_resumes_too() -> None:
    desk = streaming(7)
    desk.join("rep-a", incarnation=2)
    submits = [(dst, m.epoch, m.emitted) for dst, m in desk.sent(object, desk.all) if type(m).__name__ == "Submit"]
    assert submits[-1] == ("rep-b", 2, (7,))


def test_a_gone_client_cancels_the_replica_and_closes_by_itself() -> None:  # SPEC B5
    desk = streaming(7)
    desk.event(ClientGone(0, "t", REQ))
    assert [(dst, m.epoch) for dst, m in desk.sent(Cancel)] == [("rep-a", 1)]
    assert [end.reason for end in desk.ends()] == [FinishReason.CANCELLED]
    desk.finish("rep-a", "req-1", 1, 1, FinishReason.CANCELLED)
    desk.fire("close:req-1")
    assert desk.levels() == ZERO


def test_a_stop_string_ends_the_stream_and_frees_the_replica() -> None:  # SPEC B5
    desk = streaming(7, 8)
    desk.event(TextStopped(0, "t", REQ, 1))
    assert [(m.epoch, m.reason) for _, m in desk.sent(Cancel)] == [(1, FinishReason.STOP)]
    (end,) = desk.ends()
    assert (end.reason, end.output_tokens, end.cached_tokens) == (FinishReason.STOP, 2, 3)
    desk.tokens("rep-a", "req-1", 1, 2, 9)
    assert desk.delivered() == [7, 8]


def test_a_deadline_in_the_queue_is_a_408() -> None:  # SPEC L-4
    desk = Desk(replicas=())
    desk.arrive(llm("req-1", slo=Slo(e2e_deadline_ns=500)))
    assert "deadline:req-1" in desk.timers()
    desk.now_ns = 500
    desk.fire("deadline:req-1")
    (end,) = desk.ends()
    assert end.error is not None
    assert (end.reason, end.error.status, end.error.code) == (FinishReason.DEADLINE, 408, "deadline_passed")


def test_a_deadline_while_running_stops_the_replica() -> None:  # SPEC L-4
    desk = Desk()
    desk.arrive(llm("req-1", slo=Slo(e2e_deadline_ns=500)))
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.fire("deadline:req-1")
    assert [m.reason for _, m in desk.sent(Cancel)] == [FinishReason.DEADLINE]
    assert [end.reason for end in desk.ends()] == [FinishReason.DEADLINE]


def test_a_late_timer_is_ignored() -> None:
    desk = streaming(7)
    desk.finish("rep-a", "req-1", 1, 1)
    assert desk.fire("deadline:req-1") == []
    assert desk.fire("replica:req-1") == []
    assert desk.fire("unknown:req-1") == []


def test_an_unservable_request_is_a_400() -> None:
    desk = Desk()
    desk.arrive("req-1")
    desk.message("rep-a", Refused(REQ, 1, "unservable", "needs 99 blocks, replica rep-a has 8"))
    (end,) = desk.ends()
    assert end.error is not None
    assert (end.error.status, end.error.code) == (400, "unservable")
    assert "99 blocks" in end.error.message


def test_a_draining_replica_sends_the_request_elsewhere() -> None:  # SPEC A11
    desk = Desk()
    desk.arrive("req-1")
    desk.message("rep-a", Refused(REQ, 1, "draining", "drain"))
    assert [(dst, m.epoch) for dst, m in desk.submits()] == [("rep-b", 2)]


def test_a_drained_replica_is_no_candidate() -> None:  # SPEC A11
    desk = Desk()
    desk.report("rep-a", draining=True)
    desk.arrive("req-1")
    assert [dst for dst, _ in desk.submits()] == ["rep-b"]


def test_the_global_queue_holds_what_a_replicas_own_queue_may_not() -> None:  # SPEC L-1
    desk = Desk(FrontConfig(room=Room(engine_queue_ms=100.0, cold_requests=2)), replicas=("rep-a",))
    busy = {"waiting": 1, "waiting_prefill_tokens": 10, "prefill_tokens_per_s": 100.0}
    desk.report("rep-a", **busy)
    desk.arrive("req-1")
    desk.arrive("req-2")
    assert len(desk.node.dispatch.queue) == 1  # 20 tokens at 100/s are 200 ms
    desk.report("rep-a", submits_seen=1, running=2)
    assert [m.request.id for _, m in desk.submits()] == ["req-2"]


def test_a_full_front_answers_429() -> None:  # SPEC A7
    desk = Desk(FrontConfig(in_flight_max=1))
    desk.arrive("req-1")
    desk.arrive("req-2")
    (end,) = desk.ends()
    assert end.error is not None
    assert (end.error.status, end.error.code, end.error.retry_after_ms) == (429, "queue_full", 1000)
    desk.close("req-2")
    assert desk.levels()["gateway/in_flight"] == 1


def test_a_full_queue_answers_429() -> None:  # SPEC A7
    desk = Desk(FrontConfig(admission=PolicyChoice("bounded", {"queue_max": 1})), replicas=())
    desk.arrive("req-1")
    desk.arrive("req-2")
    assert [end.error.code for end in desk.ends() if end.error is not None] == ["queue_full"]


def test_asks_a_joining_replica_and_drops_what_it_should_not_hold() -> None:
    desk = streaming(7)
    assert [dst for dst, _ in desk.sent(WhatDoYouHold, desk.all)] == ["rep-a", "rep-b"]
    held = (Held(REQ, 1, 1), Held(RequestId("req-9"), 4, 0))
    desk.message("rep-a", Holding(1, held))
    assert [(dst, m.request, m.epoch) for dst, m in desk.sent(Cancel)] == [("rep-a", "req-9", 4)]


def test_one_id_cannot_arrive_twice() -> None:
    desk = streaming(7)
    with pytest.raises(InvariantError, match="arrived twice"):
        desk.arrive("req-1")


def test_retries_draw_with_another_attempt() -> None:
    desk = Desk()
    desk.arrive("req-1")
    desk.lose("rep-a")
    ((_, submit),) = desk.submits()
    assert submit.request == msgspec.structs.replace(llm("req-1"), attempts=1)


DUE = Slo(ttft_deadline_ns=500)


@pytest.mark.parametrize(
    ("asked", "tokens", "words"),
    [
        (llm("req-1", slo=DUE_1S), 0, "before its first token"),
        (llm("req-1", slo=DUE_1S), 1, "after 1 token"),
        (llm("req-1", slo=DUE_1S), 2, "after 2 tokens"),
        (PAINTED, 0, "before its picture was done"),
        (msgspec.structs.replace(PAINTED, n=2), 0, "before its pictures were done"),
        (msgspec.structs.replace(PAINTED, frames=9), 0, "before its video was done"),
    ],
)
def test_who_is_told_of_a_deadline_is_told_how_far_it_came(asked: Request, tokens: int, words: str) -> None:  # SPEC L-4
    desk = Desk()
    desk.report("rep-b", role="diffusion", model="m", denoise_cost=COST)
    desk.arrive(asked)
    for index in range(tokens):
        desk.tokens("rep-a", "req-1", 1, index, 7)
    desk.now_ns = 10**9
    desk.fire("deadline:req-1")
    (end,) = desk.ends()
    assert end.error is not None
    assert end.error.message == f"request req-1: its end-to-end deadline passed {words}"


def test_what_arrives_after_its_deadline_is_answered_at_once_and_sent_to_nobody() -> None:
    # SPEC L-4: a job whose gateway was down until then
    desk = Desk()
    desk.now_ns = 501
    desk.arrive(picture("req-1", slo=Slo(e2e_deadline_ns=500)))
    (end,) = desk.ends()
    assert end.error is not None
    assert (end.reason, end.error.status, end.error.code) == (FinishReason.DEADLINE, 408, "deadline_passed")
    assert desk.submits() == []
    desk.close("req-1")
    assert desk.levels() == ZERO


def waiting(patience: Patience | None = None) -> Desk:
    """Both replicas are full, and a request with a TTFT deadline waits."""
    desk = Desk(FrontConfig(patience=patience or Patience(), room=Room(engine_queue_ms=0, cold_requests=1)))
    for place in range(2):
        desk.arrive(f"req-{place + 10}")
    desk.arrive(llm("req-1", slo=DUE))
    assert desk.submits() == []
    return desk


def test_a_passed_ttft_deadline_in_the_queue_is_answered_and_never_run() -> None:  # SPEC A7
    desk = waiting()
    desk.now_ns = 500
    desk.fire("ttft:req-1")
    (end,) = desk.ends()
    assert end.error is not None
    assert (end.reason, end.error.status, end.error.code) == (FinishReason.DEADLINE, 408, "deadline_passed")
    desk.report("rep-a")
    assert desk.submits() == []


def test_room_that_comes_before_the_late_timer_does_not_run_doomed_work() -> None:  # SPEC A7
    desk = waiting()
    desk.now_ns = 501
    desk.report("rep-a", submits_seen=1)
    assert desk.submits() == []
    assert [end.reason for end in desk.ends()] == [FinishReason.DEADLINE]


def test_a_dispatched_request_outlives_its_ttft_deadline() -> None:  # SPEC A7
    desk = Desk()
    desk.arrive(llm("req-1", slo=DUE))
    desk.now_ns = 500
    (drop,) = desk.fire("ttft:req-1")
    assert drop == Send(NodeId("rep-a"), Cancel(RequestId("req-1"), 1, FinishReason.DEADLINE, if_waiting=True))
    desk.tokens("rep-a", "req-1", 1, 0, 7)  # it was running there
    assert desk.delivered() == [7]


def test_a_request_that_was_refused_is_not_tried_again_past_its_ttft_deadline() -> None:  # SPEC A7, A11
    desk = Desk(replicas=("rep-a",))
    desk.arrive(llm("req-1", slo=DUE))
    desk.now_ns = 600
    desk.fire("ttft:req-1")
    desk.message("rep-a", Refused(REQ, 1, "full", "no room"))
    assert [end.reason for end in desk.ends()] == [FinishReason.DEADLINE]
    desk.report("rep-a")
    assert desk.submits() == []


def test_a_lost_replica_before_the_first_token_is_one_deadline_too() -> None:  # SPEC A7, A11
    desk = Desk()
    desk.arrive(llm("req-1", slo=DUE))
    desk.now_ns = 600
    desk.lose("rep-a")
    assert desk.submits() == []
    assert [end.reason for end in desk.ends()] == [FinishReason.DEADLINE]


def test_a_stream_that_began_in_time_resumes_past_its_ttft_deadline() -> None:  # SPEC A7, A11
    desk = Desk()
    desk.arrive(llm("req-1", slo=DUE))
    desk.tokens("rep-a", "req-1", 1, 0, 7)
    desk.now_ns = 600
    desk.lose("rep-a")
    assert [(dst, submit.emitted) for dst, submit in desk.submits()] == [("rep-b", (7,))]


def test_best_effort_runs_what_waited_too_long() -> None:  # SPEC A7
    desk = waiting(Patience(runs_late=True))
    desk.now_ns = 600
    assert desk.fire("ttft:req-1") == []
    desk.report("rep-a", submits_seen=1)
    assert [submit.request.id for _, submit in desk.submits()] == [REQ]


def test_a_route_shows_the_scores_that_the_policy_compared() -> None:  # SPEC L-3
    desk = Desk(FrontConfig(router=PolicyChoice("least_requests")))
    desk.report("rep-a", running=2, prefill_tokens_per_s=100.0)
    desk.report("rep-b", running=5, prefill_tokens_per_s=100.0)
    made = [effect.entry for effect in desk.arrive(llm("req-1")) if isinstance(effect, Record)]
    (route,) = [entry for entry in made if isinstance(entry, Decision) and entry.kind == "route"]
    assert [(one.name, one.score) for one in route.alternatives] == [("rep-a", 2.0), ("rep-b", 5.0)]
