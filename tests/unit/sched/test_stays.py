from tests.unit.sched.router.views import llm

from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId
from headway.core.plans import Chunk, Join, StepPlan, StepTiming
from headway.sched.stays import Stay, Sums, fold_chunks, fold_rows

REPLICA, FRONT = NodeId("rep-a"), NodeId("front-0")


def stay(seq: int = 1) -> Stay:
    return Stay(llm(f"req-{seq}"), 1, FRONT, seq, 100)


def timing(took: int, **change: int) -> StepTiming:
    return StepTiming(0, 0, took, **change)


def test_only_steps_with_its_row_are_its_own() -> None:  # SPEC I1
    sums, mine = Sums(), stay()
    sums.fold(1, timing(100, idle_gap_ns=7))
    mine.enter(sums, 0)
    sums.fold(2, timing(100, idle_gap_ns=3))
    mine.exit(sums)
    sums.fold(1, timing(100, idle_gap_ns=9))
    marks = mine.marks(REPLICA, sums, 500)
    assert (marks.steps, marks.idle_gap_ns, marks.device_ns) == (1, 3, 50)


def test_the_device_time_of_a_step_is_shared_by_its_tokens() -> None:  # SPEC H6
    sums, stays = Sums(), {1: stay(1), 2: stay(2)}
    plan = StepPlan(
        1, 0, "mixed", join=(Join(1, token=4),), chunks=(Chunk(2, 0, 9, False),), decodes=1, prefill_tokens=9
    )
    fold_rows(stays, plan, 0, sums)
    fold_chunks(stays, plan, sums.fold(plan.tokens, timing(1000)))
    shares = [stays[seq].marks(REPLICA, sums, 0).device_ns for seq in (1, 2)]
    assert shares == [100, 900]


def test_the_first_chunk_says_what_was_cached() -> None:  # SPEC B2
    sums, stays = Sums(), {1: stay(1)}
    fold_rows(stays, StepPlan(1, 0, "prefill", chunks=(Chunk(1, 32, 8, True),)), 0, sums)
    fold_rows(stays, StepPlan(2, 0, "prefill", chunks=(Chunk(1, 0, 8, True),)), 0, sums)
    assert stays[1].marks(REPLICA, sums, 0).cached_tokens == 32


def test_preempted_time_ends_when_the_row_is_back_and_recompute_at_the_next_token() -> None:  # SPEC I2, B4
    sums, mine = Sums(), stay()
    mine.enter(sums, 0)
    mine.emit(5, 1, 200)
    mine.exit(sums, 300, is_lost=True)
    mine.enter(sums, 450)
    mine.emit(6, 9, 480)
    marks = mine.marks(REPLICA, sums, 500)
    assert (marks.preempted_ns, marks.preempted_before_first_ns, marks.recompute_ns) == (150, 0, 30)
    assert marks.preemptions == 1


def test_preempted_before_the_first_token_is_kept_apart() -> None:
    sums, mine = Sums(), stay()
    mine.enter(sums, 0)
    mine.exit(sums, 100, is_lost=True)
    mine.enter(sums, 160)
    marks = mine.marks(REPLICA, sums, 500)
    assert (marks.preempted_ns, marks.preempted_before_first_ns) == (0, 60)


def test_a_pause_that_becomes_a_preemption_is_one_gap() -> None:
    sums, mine = Sums(), stay()
    mine.enter(sums, 0)
    mine.emit(5, 1, 10)
    mine.exit(sums, 100)
    mine.exit(sums, 140, is_lost=True)
    mine.enter(sums, 200)
    marks = mine.marks(REPLICA, sums, 500)
    assert (marks.preempted_ns, marks.preemptions) == (100, 1)


def test_kv_is_resident_from_the_first_token_after_it_was_lost() -> None:  # SPEC C4
    mine = stay()
    assert not mine.is_resident
    mine.emit(5, 3, 0)
    assert mine.is_resident
    mine.lost_step = 5
    mine.emit(6, 4, 0)  # was in flight when the preemption was planned
    assert not mine.is_resident
    mine.emit(7, 6, 0)
    assert mine.is_resident


def test_marks_of_an_earlier_stay_are_added() -> None:  # SPEC I1, C4
    sums, mine = Sums(), stay()
    mine.inherit(
        WorkerMarks(NodeId("rep-b"), 10, 20, 30, 40, steps=5, cached_tokens=16, device_ns=9, transfer_bytes=64)
    )
    mine.enter(sums, 0)
    sums.fold(1, timing(6))
    marks = mine.marks(REPLICA, sums, 500)
    assert (marks.replica, marks.received_ns, marks.first_token_ns, marks.cached_tokens) == (REPLICA, 10, 30, 16)
    assert (marks.steps, marks.device_ns, marks.transfer_bytes) == (6, 15, 64)
