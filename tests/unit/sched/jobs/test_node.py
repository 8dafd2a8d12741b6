"""JobNode: whom it claims, what it writes and when, and what becomes of a job whose attempt ends."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pytest

from headway.core.events import TimerFired
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.job_effects import (
    ClaimRow,
    CloseHook,
    CompleteRow,
    ExpireRows,
    FailRow,
    JobEffect,
    KeepRow,
    KeepRows,
    PostponeHook,
    ReadHooks,
    ReadRows,
    RequeueRow,
    SaveCheckpoint,
    SendHook,
    SpareRow,
    StartJob,
    StopJob,
    WatchRows,
)
from headway.core.jobs import (
    DrainBegan,
    HookAnswered,
    HookClaimed,
    HookRow,
    HooksSeen,
    JobEnded,
    JobProgressed,
    JobRow,
    JobSaved,
    JobStored,
    Outcome,
    RowClaimed,
    RowClosed,
    RowKept,
    RowLost,
    RowsKept,
    RowsSeen,
    RowsWatched,
    RowUnknown,
    SaveAsked,
    TableOpened,
)
from headway.core.units import NS_PER_S
from headway.sched.jobs.node import POLL, SWEEP, TICK, JobNode
from headway.sched.jobs.params import BackoffParams, CheckpointParams, HookParams, JobParams

S = NS_PER_S
E = TypeVar("E")
MINE = (RequestId("job-1"), 1)


def row(name: str = "job-1", **changes: object) -> JobRow:
    made = JobRow(RequestId(name), TenantId("t"), ModelId("m"), 20, 0, 1, estimate_ns=20 * S)
    return msgspec.structs.replace(made, **changes)


def only(effects: Sequence[JobEffect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def beats(effects: Sequence[JobEffect]) -> list[KeepRow]:
    return [row for kept in only(effects, KeepRows) for row in kept.rows]


def opened(params: JobParams | None = None) -> JobNode:
    node = JobNode(params or JobParams())
    node.handle(TableOpened(0, "test"))
    node.handle(RowsSeen(0, "table", (), False))
    return node


def claimed(node: JobNode, at_ns: int = 0, **changes: object) -> list[JobEffect]:
    """Store, claim, and return what the claim leads to."""
    node.handle(JobStored(at_ns, "edge", row(**changes)))
    was = row(**changes)
    taken = msgspec.structs.replace(was, attempt=was.attempt + 1)
    return node.handle(RowClaimed(at_ns, "table", taken, at_ns + 15 * S))


def test_claims_by_urgency_then_position_then_id() -> None:
    node = JobNode(JobParams(running_max=4))
    node.handle(TableOpened(0, "test"))
    rows = (row("b", position=3), row("a", position=3), row("c", position=2), row("d", position=9, urgency=1))
    claims = only(node.handle(RowsSeen(0, "table", rows, False)), ClaimRow)
    assert [claim.job for claim in claims] == ["d", "c", "a", "b"]


def test_claims_no_more_than_may_run() -> None:
    node = JobNode(JobParams(running_max=2))
    node.handle(TableOpened(0, "test"))
    rows = tuple(row(f"job-{k}", position=k) for k in range(5))
    assert len(only(node.handle(RowsSeen(0, "table", rows, False)), ClaimRow)) == 2


def test_a_lost_claim_frees_its_place() -> None:
    node = JobNode(JobParams(running_max=1))
    node.handle(TableOpened(0, "test"))
    node.handle(RowsSeen(0, "table", (row("a", position=1), row("b", position=2)), False))
    claims = only(node.handle(RowLost(0, "table", RequestId("a"), 0)), ClaimRow)
    assert [claim.job for claim in claims] == ["b"]


def test_what_is_stored_during_a_read_is_not_forgotten_by_its_answer() -> None:
    full = JobNode(JobParams(running_max=1))
    assert only(full.handle(TableOpened(0, "test")), ReadRows)
    full.handle(JobStored(0, "edge", row("a", position=1)))
    full.handle(JobStored(0, "edge", row("b", position=2)))
    full.handle(RowsSeen(0, "table", (), False))
    claims = only(full.handle(RowLost(0, "table", RequestId("a"), 0)), ClaimRow)
    assert [claim.job for claim in claims] == ["b"]


# SPEC H2
def test_progress_is_written_once_a_second_at_most() -> None:
    """SPEC H2 and field note 3.5: progress ticks stay in memory between."""
    node = opened()
    claimed(node)
    writes: list[KeepRow] = []
    for tenth in range(1, 20):
        writes += beats(node.handle(JobProgressed(tenth * S // 10, "edge", RequestId("job-1"), 1, "denoise", tenth)))
        if tenth == 10:
            writes += beats(node.handle(TimerFired(S, "t", TICK)))
    assert [(write.done, write.state) for write in writes] == [(10, "denoise")]


def test_a_heartbeat_goes_out_every_third_of_the_lease_without_progress() -> None:
    node = opened(JobParams(lease_s=15.0))
    claimed(node)
    times = []
    for at in range(1, 15):
        for kept in only(node.handle(TimerFired(at * S, "t", TICK)), KeepRows):
            times.append(at)
            node.handle(RowsKept(at * S, "table", kept.until_ns, (MINE,)))
    assert times == [5, 10]


# SPEC H3
def test_heartbeats_of_all_jobs_go_together_when_the_first_one_is_due() -> None:
    """One transaction every third of a lease, however many jobs run here and whenever they were claimed."""
    node = opened(JobParams(lease_s=15.0))
    for at in range(4):
        claimed(node, at * S, job=RequestId(f"job-{at}"))
    rounds = []
    for at in range(4, 15):
        for kept in only(node.handle(TimerFired(at * S, "t", TICK)), KeepRows):
            rounds.append((at, [one.job for one in kept.rows], kept.until_ns))
            node.handle(RowsKept(at * S, "table", kept.until_ns, tuple((one.job, 1) for one in kept.rows)))
    jobs = [f"job-{at}" for at in range(4)]
    assert rounds == [(5, jobs, 20 * S), (10, jobs, 25 * S)]


# SPEC H3
def test_of_a_round_of_heartbeats_exactly_those_are_stopped_that_lost_their_rows() -> None:
    node = opened(JobParams(lease_s=15.0))
    for number in range(3):
        claimed(node, job=RequestId(f"job-{number}"))
    places = [(RequestId(f"job-{number}"), 1) for number in range(3)]
    node.handle(TimerFired(5 * S, "t", TICK))
    answer = RowsKept(5 * S, "table", 20 * S, (places[0],), (places[1],), (places[2],))
    assert node.handle(answer) == [StopJob(*places[1])]
    (again,) = only(node.handle(TimerFired(10 * S, "t", TICK)), KeepRows)
    assert [one.job for one in again.rows] == ["job-0", "job-2"]


def test_a_job_whose_lease_could_not_be_kept_is_stopped_and_nothing_more_is_written() -> None:
    node = opened(JobParams(lease_s=15.0))
    claimed(node)
    for at in (5, 10):
        node.handle(TimerFired(at * S, "t", TICK))
        node.handle(RowsKept(at * S, "no answer", 0, unknown=(MINE,)))
    assert only(node.handle(TimerFired(15 * S, "t", TICK)), StopJob)
    ended = node.handle(JobEnded(16 * S, "edge", RequestId("job-1"), 1, Outcome("completed")))
    assert ended == [SpareRow(RequestId("job-1"), 1)]
    node.handle(RowUnknown(16 * S, "table", RequestId("job-1"), 1))
    assert only(node.handle(TimerFired(17 * S, "t", TICK)), SpareRow)  # until the table has it
    node.handle(RowLost(18 * S, "table", RequestId("job-1"), 1))  # the answer to a heartbeat from before
    assert not node.is_idle
    node.handle(RowClosed(18 * S, "table", RequestId("job-1"), 1))
    assert node.is_idle


# SPEC H3
def test_a_lease_that_a_slow_process_let_run_out_is_asked_for_again_and_the_work_goes_on() -> None:
    """A stall of an hour: the table says whether somebody else has the row, the clock does not."""
    node = opened(JobParams(lease_s=15.0))
    claimed(node)
    first = node.handle(TimerFired(5 * S, "t", TICK))
    assert beats(first)
    late = node.handle(TimerFired(3600 * S, "t", TICK))  # the answer lies in the inbox behind it
    assert not only(late, StopJob)
    node.handle(RowsKept(3600 * S, "table", 20 * S, (MINE,)))
    again = node.handle(TimerFired(3601 * S, "t", TICK))
    assert [kept.until_ns for kept in only(again, KeepRows)] == [3616 * S]
    assert only(node.handle(RowLost(3602 * S, "table", RequestId("job-1"), 1)), StopJob)


def test_a_heartbeat_that_the_table_never_answers_stops_the_job_once_its_lease_is_over() -> None:
    node = opened(JobParams(lease_s=15.0, progress_s=1.0))
    claimed(node)
    stopped = [at for at in range(1, 40) if only(node.handle(TimerFired(at * S, "t", TICK)), StopJob)]
    assert stopped == [16]


def test_heartbeats_do_not_pile_up_before_a_slow_table() -> None:
    node = opened(JobParams(lease_s=15.0))
    claimed(node)
    sent = [beats(node.handle(TimerFired(at * S, "t", TICK))) for at in range(1, 20)]
    assert sum(map(len, sent)) == 1


def test_the_lease_of_a_claim_that_waited_at_the_table_is_kept_by_its_own_age() -> None:
    """20 claims before a slow table: the last one's answer came when its lease was nearly over, and was kept a third of
    a lease later."""
    node = opened(JobParams(lease_s=3.0))
    node.handle(JobStored(0, "edge", row()))
    node.handle(RowClaimed(2 * S, "table", row(attempt=1), 3 * S))
    assert beats(node.handle(TimerFired(5 * S // 2, "t", TICK)))


def test_what_was_stopped_because_others_have_the_row_is_not_held_against_the_job() -> None:
    node = opened()
    claimed(node)
    node.handle(RowLost(16 * S, "table", RequestId("job-1"), 1))
    ended = node.handle(JobEnded(17 * S, "edge", RequestId("job-1"), 1, Outcome("interrupted")))
    assert ended == [SpareRow(RequestId("job-1"), 1)]


def test_a_result_that_came_after_others_took_the_row_is_not_held_against_the_job() -> None:
    node = opened()
    claimed(node)
    node.handle(JobEnded(17 * S, "edge", RequestId("job-1"), 1, Outcome("completed")))
    assert node.handle(RowLost(17 * S, "table", RequestId("job-1"), 1)) == [SpareRow(RequestId("job-1"), 1)]


def test_a_claim_that_the_table_did_not_answer_is_asked_again_and_counts_once() -> None:
    node = opened()
    node.handle(JobStored(0, "edge", row()))
    node.handle(RowUnknown(S, "table", RequestId("job-1"), 0))
    asked = only(node.handle(TimerFired(2 * S, "t", POLL)), ClaimRow)
    assert [(claim.job, claim.attempt) for claim in asked] == [("job-1", 0)]
    assert only(node.handle(RowClaimed(3 * S, "table", row(attempt=1), 18 * S)), StartJob)


# SPEC H3
def test_a_claim_that_is_answered_twice_begins_once() -> None:
    """The last end of an attempt and the claim of the next one name the same number: what the table says late to the
    one is taken for an answer to the other, and the claim is asked again."""
    node = opened()
    claimed(node)
    node.handle(JobEnded(S, "edge", *MINE, Outcome("refused")))
    node.handle(RowClosed(S, "table", *MINE))
    node.handle(JobStored(2 * S, "edge", row(attempt=1)))
    node.handle(RowUnknown(2 * S, "table", *MINE))  # of the end, which was written twice
    assert only(node.handle(TimerFired(3 * S, "t", POLL)), ClaimRow)
    answer = RowClaimed(4 * S, "table", row(attempt=2), 18 * S)
    assert only(node.handle(answer), StartJob)
    assert node.handle(answer) == []


# SPEC H3
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_claim_that_has_its_answer_after_all_is_not_asked_again(is_ours: bool) -> None:
    node = opened()
    claimed(node)
    node.handle(JobEnded(S, "edge", *MINE, Outcome("refused")))
    node.handle(RowClosed(S, "table", *MINE))
    node.handle(JobStored(2 * S, "edge", row(attempt=1)))
    node.handle(RowUnknown(2 * S, "table", *MINE))  # of the end, which was written twice
    node.handle(RowClaimed(2 * S, "table", row(attempt=2), 18 * S) if is_ours else RowLost(2 * S, "table", *MINE))
    assert not only(node.handle(TimerFired(3 * S, "t", POLL)), ClaimRow)
    node.handle(DrainBegan(4 * S, "SIGTERM"))
    assert node.is_idle is not is_ours


def test_a_claim_without_an_answer_does_not_keep_a_process_that_ends() -> None:
    node = opened()
    node.handle(JobStored(0, "edge", row()))
    node.handle(RowUnknown(S, "table", RequestId("job-1"), 0))
    node.handle(DrainBegan(2 * S, "SIGTERM"))
    assert node.is_idle


def test_a_kept_lease_runs_on() -> None:
    node = opened(JobParams(lease_s=15.0))
    claimed(node)
    node.handle(RowKept(10 * S, "table", RequestId("job-1"), 1, 25 * S))
    assert not only(node.handle(TimerFired(16 * S, "t", TICK)), StopJob)


def test_a_row_that_was_taken_away_is_stopped_once() -> None:
    """vllm-omni#6403: deleting or cancelling a running job stops its work."""
    node = opened()
    claimed(node)
    assert only(node.handle(RowLost(S, "cancel", RequestId("job-1"), 1)), StopJob)
    assert not only(node.handle(RowLost(2 * S, "table", RequestId("job-1"), 1)), StopJob)


def test_losing_an_older_attempt_does_not_stop_the_one_that_runs() -> None:
    """InvokeAI#6089."""
    node = opened()
    claimed(node, attempt=4)
    assert not only(node.handle(RowLost(S, "table", RequestId("job-1"), 4)), StopJob)


def test_a_broken_attempt_waits_longer_each_time() -> None:
    waits = []
    for failures in range(3):
        node = opened(JobParams(backoff=BackoffParams(4.0, 300.0)))
        claimed(node, failures=failures)
        end = node.handle(JobEnded(0, "edge", RequestId("job-1"), 1, Outcome("broken", "engine_lost", "gone")))
        waits.append(only(end, RequeueRow)[0].not_before_ns / S)
    assert [2 <= waits[0] <= 4, 4 <= waits[1] <= 8, 8 <= waits[2] <= 16] == [True] * 3


def test_a_job_that_breaks_every_attempt_is_a_dead_letter() -> None:
    node = opened(JobParams(attempts_max=3))
    claimed(node, failures=2)
    end = node.handle(JobEnded(0, "edge", RequestId("job-1"), 1, Outcome("broken", "engine_lost", "worker died")))
    fail = only(end, FailRow)[0]
    assert (fail.state, fail.code) == ("lost", "lost")
    assert "engine_lost: worker died" in fail.message
    assert fail.failures == 3  # fewer, where one of them turns out to have been slow: then it is tried again


def test_a_job_that_took_its_gateways_down_is_a_dead_letter_without_another_try() -> None:
    node = opened(JobParams(attempts_max=3))
    effects = claimed(node, failures=3)
    (fail,) = only(effects, FailRow)
    assert (fail.state, fail.failures) == ("lost", 4)  # this attempt too, which is not begun
    assert not only(effects, StartJob)


def test_a_checkpoint_makes_earlier_failures_count_no_more() -> None:
    node = opened(JobParams(attempts_max=3))
    claimed(node, failures=2)
    node.handle(JobSaved(S, "edge", RequestId("job-1"), 1, 10, "key", S // 100, S))
    end = node.handle(JobEnded(0, "edge", RequestId("job-1"), 1, Outcome("broken", "engine_lost")))
    assert not only(end, RequeueRow)[0].spares


def test_a_refusal_costs_no_attempt_and_waits_as_told() -> None:
    node = opened()
    claimed(node)
    refused = Outcome("refused", "queue_full", "full", retry_after_ns=30 * S)
    end = only(node.handle(JobEnded(0, "edge", RequestId("job-1"), 1, refused)), RequeueRow)[0]
    assert (end.spares, end.not_before_ns) == (True, 30 * S)


def test_a_job_that_fails_by_its_own_fault_is_not_tried_again() -> None:
    """vllm-omni#2327: out of memory fails the job, with its code, and the client does not poll for ever."""
    node = opened()
    claimed(node)
    end = node.handle(JobEnded(0, "edge", RequestId("job-1"), 1, Outcome("failed", "out_of_memory", "720p")))
    assert [(fail.state, fail.code) for fail in only(end, FailRow)] == [("failed", "out_of_memory")]


def test_device_time_of_earlier_attempts_counts_up_to_their_checkpoint() -> None:
    node = opened()
    claimed(node, device_ns=5 * S, begun=10)
    saved = node.handle(JobSaved(S, "edge", RequestId("job-1"), 1, 15, "key", S // 100, 2 * S))
    assert only(saved, SaveCheckpoint)[0].device_ns == 7 * S
    end = node.handle(JobEnded(S, "edge", RequestId("job-1"), 1, Outcome("completed", device_ns=4 * S, images=1)))
    assert only(end, CompleteRow)[0].device_ns == 9 * S


def test_an_end_that_the_table_did_not_answer_is_written_again() -> None:
    node = opened()
    claimed(node)
    end = node.handle(JobEnded(0, "edge", RequestId("job-1"), 1, Outcome("completed")))
    node.handle(RowUnknown(0, "table", RequestId("job-1"), 1))
    assert only(node.handle(TimerFired(S, "t", TICK)), CompleteRow) == only(end, CompleteRow)
    assert not only(node.handle(TimerFired(2 * S, "t", TICK)), CompleteRow)
    node.handle(RowClosed(2 * S, "table", RequestId("job-1"), 1))
    assert node.is_idle


def test_a_process_that_ends_hands_its_jobs_back_at_once_and_claims_no_more() -> None:
    node = opened()
    claimed(node, failures=1)
    (stop,) = only(node.handle(DrainBegan(S, "SIGTERM")), StopJob)
    assert stop.saves
    assert not only(node.handle(JobStored(S, "edge", row("job-2"))), ClaimRow)
    end = node.handle(JobEnded(S, "edge", RequestId("job-1"), 1, Outcome("interrupted")))
    assert [(e.not_before_ns, e.spares) for e in only(end, RequeueRow)] == [(S, True)]


def test_what_a_job_was_saved_with_at_the_end_of_its_process_is_written_before_it_is_handed_back() -> None:
    # SPEC H3
    node = opened()
    claimed(node, failures=1)
    node.handle(DrainBegan(S, "SIGTERM"))
    saved = node.handle(JobSaved(S, "store", RequestId("job-1"), 1, 5, "key-5", 0, 0))
    assert [(effect.done, effect.key) for effect in only(saved, SaveCheckpoint)] == [(5, "key-5")]
    end = node.handle(JobEnded(S, "edge", RequestId("job-1"), 1, Outcome("interrupted")))
    assert [(e.not_before_ns, e.spares) for e in only(end, RequeueRow)] == [(S, True)]


def test_only_jobs_of_the_model_that_is_paused_are_saved_and_handed_back() -> None:
    node = opened()
    claimed(node)
    assert not node.handle(SaveAsked(S, "queue", ModelId("other")))
    (stop,) = only(node.handle(SaveAsked(S, "queue", row("job-1").model)), StopJob)
    assert stop.saves
    assert not only(node.handle(SaveAsked(S, "queue")), StopJob)  # it was asked already
    end = node.handle(JobEnded(S, "edge", RequestId("job-1"), 1, Outcome("interrupted")))
    assert [e.not_before_ns for e in only(end, RequeueRow)] == [S]


def test_what_others_did_to_a_row_is_looked_for_with_every_tick_and_one_look_at_a_time() -> None:
    node = opened()
    claimed(node)
    mine = (RequestId("job-1"), 1)
    assert only(node.handle(TimerFired(S, "tick", TICK)), WatchRows) == [WatchRows((mine,))]
    assert only(node.handle(TimerFired(2 * S, "tick", TICK)), WatchRows) == []
    assert node.handle(RowsWatched(2 * S, "table")) == []
    assert only(node.handle(TimerFired(3 * S, "tick", TICK)), WatchRows) == [WatchRows((mine,))]


def test_a_job_that_was_paused_at_another_gateway_is_saved_and_handed_back() -> None:
    node = opened()
    claimed(node)
    mine = (RequestId("job-1"), 1)
    assert node.handle(RowsWatched(S, "table", saves=((RequestId("job-1"), 2),))) == []  # another attempt
    assert node.handle(RowsWatched(S, "table", saves=(mine,))) == [StopJob(*mine, saves=True)]
    assert node.handle(RowsWatched(S, "table", saves=(mine,))) == []
    (back,) = node.handle(JobEnded(2 * S, "run", *mine, Outcome("interrupted")))
    assert back == RequeueRow(*mine, 2 * S, True, "")


def test_a_job_that_was_cancelled_at_another_gateway_stops_at_once() -> None:
    node = opened()
    claimed(node)
    mine = (RequestId("job-1"), 1)
    assert node.handle(RowsWatched(S, "table", lost=(mine,))) == [StopJob(*mine)]
    assert only(node.handle(JobEnded(2 * S, "run", *mine, Outcome("interrupted"))), RequeueRow) == []


def test_pausing_one_job_here_leaves_the_others() -> None:
    node = opened()
    for name in ("job-1", "job-2"):
        node.handle(JobStored(0, "edge", row(name)))
        node.handle(RowClaimed(0, "table", row(name, attempt=1), 15 * S))
    assert only(node.handle(SaveAsked(S, "client", job=RequestId("job-2"))), StopJob) == [
        StopJob(RequestId("job-2"), 1, saves=True)
    ]


def test_jobs_that_nobody_began_expire() -> None:
    node = opened(JobParams(wait_hours_max=1.0))
    assert only(node.handle(TimerFired(7200 * S, "t", SWEEP)), ExpireRows)[0].stored_before_ns == 3600 * S


def test_checkpoints_are_further_apart_where_crashes_are_rare() -> None:
    """Young: sqrt(2 * 20 ms * mean time between failures); steps take one second here."""

    def save_every(failure_every_s: float) -> int:
        node = opened(JobParams(checkpoint=CheckpointParams(failure_every_s, 20.0)))
        return only(claimed(node), StartJob)[0].save_every

    assert [save_every(100.0), save_every(1000.0), save_every(36_000.0)] == [2, 7, 0]


# SPEC H3
def test_every_step_is_saved_where_an_orderly_end_does_not_wait_for_two_of_them() -> None:
    """Steps take one second here, and crashes are so rare that nothing else would be saved."""

    def save_every(grace_ns: int | None, **changes: object) -> int:
        node = JobNode(JobParams(checkpoint=CheckpointParams(1e9, 20.0)), grace_ns)
        node.handle(TableOpened(0, "test"))
        node.handle(RowsSeen(0, "table", (), False))
        return only(claimed(node, **changes), StartJob)[0].save_every

    assert [save_every(None), save_every(2 * S), save_every(2 * S - 1)] == [0, 0, 1]
    assert save_every(S, begun=19) == 0  # one step is left


def test_what_a_step_takes_is_learned_where_nobody_estimated_it() -> None:
    node = opened(JobParams(checkpoint=CheckpointParams(100.0, 20.0)))
    assert only(claimed(node, estimate_ns=0), StartJob)[0].save_every == 0
    for done in (1, 2, 3):
        node.handle(JobProgressed(done * S, "edge", RequestId("job-1"), 1, "denoise", done))
    assert only(claimed(node, name="job-2", estimate_ns=0), StartJob)[0].save_every == 2


def hook(node: JobNode, attempt: int, status: int | None) -> list[JobEffect]:
    node.handle(HooksSeen(0, "table", (HookRow("evt-1", attempt - 1, 0, 0),)))
    sent = node.handle(HookClaimed(0, "table", HookRow("evt-1", attempt, 0, 0)))
    assert only(sent, SendHook)
    return node.handle(HookAnswered(0, "http", "evt-1", attempt, status, "answer"))


def test_a_webhook_is_tried_again_later_until_it_is_given_up() -> None:
    params = JobParams(hooks=HookParams(attempts_max=4, backoff=BackoffParams(5.0, 100.0)))
    waits = [only(hook(opened(params), k, 503), PostponeHook)[0].not_before_ns / S for k in (1, 2, 3)]
    assert [2.5 <= waits[0] <= 5, 5 <= waits[1] <= 10, 10 <= waits[2] <= 20] == [True] * 3
    assert [close.is_delivered for close in only(hook(opened(params), 4, None), CloseHook)] == [False]


# SPEC H3
def test_a_look_for_webhooks_is_not_asked_again_before_it_is_answered() -> None:
    """Before a table slower than `poll_s` they would fill its thread, and no heartbeat came through."""
    node = opened()  # which looks
    assert not only(node.handle(TimerFired(S, "timer", POLL)), ReadHooks)
    node.handle(HooksSeen(S, "table", ()))
    assert only(node.handle(TimerFired(2 * S, "timer", POLL)), ReadHooks)


def test_a_webhook_that_was_taken_or_is_unwanted_is_closed() -> None:
    assert only(hook(opened(), 1, 204), CloseHook)[0].is_delivered
    assert not only(hook(opened(), 1, 410), CloseHook)[0].is_delivered


def test_a_checkpoint_that_does_not_fit_costs_its_steps_and_no_attempt() -> None:
    node = opened()
    claimed(node, begun=10, device_ns=7 * S, failures=1)
    end = JobEnded(S, "front", RequestId("job-1"), 1, Outcome("unfit", "bad_checkpoint", "other weights"))
    (back,) = only(node.handle(end), RequeueRow)
    assert (back.forgets, back.not_before_ns, back.spares, back.reason) == (
        True,
        S,
        True,
        "bad_checkpoint: other weights",
    )


def test_a_job_whose_checkpoints_never_fit_is_lost() -> None:
    node = opened(JobParams(attempts_max=2))
    claimed(node, begun=10, restarts=2)
    end = JobEnded(S, "front", RequestId("job-1"), 1, Outcome("unfit", "bad_checkpoint", "other weights"))
    (fail,) = only(node.handle(end), FailRow)
    assert (fail.state, fail.code) == ("lost", "lost")
    assert "began anew 2 times" in fail.message
