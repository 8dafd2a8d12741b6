import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, MS, begun, machine, picture

from headway.core.errors import InvariantError, RequestError
from headway.core.plans import DenoisePlan, NewDenoise
from headway.core.request import Content, LoraUse
from headway.cost.diffusion import left_ns
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams, ShapeCap
from headway.sched.registry import PolicyChoice


def test_the_oldest_chooses_the_shape_and_others_of_it_join() -> None:  # SPEC F4
    painter = DiffusionMachine(DiffusionParams(batch_max=2))
    for name, size in (("req-1", 64), ("req-2", 32), ("req-3", 64), ("req-4", 64)):
        painter.add(picture(name, size=size))
    plan = painter.plan()
    assert plan is not None
    assert ([row.seq for row in plan.rows], plan.height) == ([1, 3], 64)


def test_runs_a_few_steps_per_plan_until_all_are_done() -> None:
    painter = DiffusionMachine(DiffusionParams(steps_per_plan=2))
    painter.add(picture("req-1", steps=5))
    counts = []
    while (plan := painter.plan()) is not None:
        assert painter.plan() is None
        counts += [row.count for row in painter.done(plan.step)]
        painter.check_invariants()
    assert counts == [2, 2, 1]
    assert (painter.waiting, painter.running) == (0, 0)


def test_a_cancelled_request_is_gone_after_its_open_step() -> None:  # SPEC H2
    painter = DiffusionMachine(DiffusionParams())
    painter.add(picture("req-1"))
    painter.add(picture("req-2", size=32))
    plan = painter.plan()
    assert plan is not None
    painter.stop(1)
    assert painter.done(plan.step) == []
    following = painter.plan()
    assert following is not None
    assert (following.leave, [row.seq for row in following.rows]) == ((1,), [2])


def test_what_never_fits_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="req-1 wants 3 steps at 4096x4096"):
        DiffusionMachine(DiffusionParams(pixels_max=1 << 20)).add(picture("req-1", size=4096))


def test_an_unknown_step_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="open is none"):
        DiffusionMachine(DiffusionParams()).done(1)


def test_a_batch_starts_and_ends_together() -> None:  # SPEC F4
    painter = machine(batch_max=4, gain_min=1.0)
    painter.add(picture("req-1"))
    plan = painter.plan()
    assert plan is not None
    painter.add(picture("req-2"))
    painter.add(picture("req-3"))
    painter.done(plan.step)
    assert begun(painter) == [[2, 3]]  # nobody joined the one that ran


def test_batches_form_where_they_pay() -> None:  # SPEC F4: gain of two is 2 * (16 + n) / (16 + 2 n) for n tokens
    small, large = machine(gain_min=1.2), machine(gain_min=1.2)
    for place in range(6):
        small.add(picture(f"req-{place}", size=64))  # 16 tokens: 1.33
        large.add(picture(f"req-{place}", size=256))  # 256 tokens: 1.03
    assert begun(small) == [[1, 2, 3, 4], [5, 6]]
    assert begun(large) == [[1], [2], [3], [4], [5], [6]]


def test_a_shape_may_have_a_smaller_cap() -> None:  # SPEC F4
    painter = machine(gain_min=1.0, caps=(ShapeCap(64, 64, 2),))
    for place in range(4):
        painter.add(picture(f"req-{place}", size=64))
        painter.add(picture(f"wide-{place}", size=32))
    assert begun(painter) == [[1, 3], [2, 4, 6, 8], [5, 7]]


def test_a_batch_is_no_longer_than_its_budget() -> None:
    one = left_ns(COST, picture("req-1"))
    painter = machine(gain_min=1.0, batch_s_max=1.8 * one / 1e9)  # of 48 us a step, two take 80
    for place in range(4):
        painter.add(picture(f"req-{place}"))
    assert begun(painter) == [[1, 2], [3, 4]]


def test_pictures_of_one_prompt_count_and_too_many_run_alone() -> None:  # SPEC F1, F4
    painter = machine(gain_min=1.0, batch_max=4)
    for place, n in enumerate((2, 2, 2, 6)):
        painter.add(picture(f"req-{place}", n=n))
    plan = painter.plan()
    assert plan is not None
    assert [(row.seq, row.pictures) for row in plan.rows] == [(1, 2), (2, 2)]
    painter.done(plan.step)
    assert begun(painter) == [[3], [4]]


def test_a_deterministic_request_shares_no_batch() -> None:  # SPEC F7: batches change the last bits
    painter = machine(gain_min=1.0)
    painter.add(picture("req-1"))
    painter.add(picture("req-2", deterministic=True))
    painter.add(picture("req-3"))
    assert begun(painter) == [[1, 3], [2]]


def test_reports_the_work_that_it_holds_and_less_of_it_with_every_step() -> None:  # SPEC F2, F5
    painter = machine(batch_max=1)
    one, two = picture("req-1", steps=4), picture("req-2", steps=2, size=128)
    painter.add(one)
    painter.add(two)
    both = left_ns(COST, one) + left_ns(COST, two)
    assert painter.queued_work_ns == both
    plan = painter.plan()
    assert plan is not None
    assert painter.queued_work_ns == both
    painter.done(plan.step)
    assert painter.queued_work_ns == both - (16 + 16) * 1000
    assert DiffusionMachine(DiffusionParams()).queued_work_ns == 0


def test_learns_from_what_its_plans_took() -> None:  # SPEC F2
    painter = machine(steps_per_plan=3)
    before = painter.denoise_cost
    assert before is not None
    for place in range(30):
        painter.add(picture(f"req-{place}"))
        plan = painter.plan()
        assert plan is not None
        painter.done(plan.step, took_ns=2 * 3 * 32_000)
    after = painter.denoise_cost
    assert after is not None
    assert after.token_ns == pytest.approx(2 * before.token_ns)
    assert after.error == pytest.approx(0.5 / 30, rel=0.01)  # only the first was wrong, by half


def test_says_whom_it_began_and_against_whom() -> None:  # SPEC L-3
    painter = machine(order=PolicyChoice("sjf"), batch_max=1)
    painter.add(picture("req-1", steps=9))
    painter.add(picture("req-2", steps=2))
    painter.plan(at_ns=77)
    (decision,) = painter.take_decisions()
    assert (decision.level, decision.kind, decision.at_ns, decision.chosen) == ("batch", "batch", 77, "req-2")
    assert [other.name for other in decision.alternatives] == ["req-2", "req-1"]
    assert painter.take_decisions() == []


def test_a_request_alone_is_no_decision() -> None:
    painter = machine()
    painter.add(picture("req-1"))
    painter.plan()
    assert painter.take_decisions() == []


def test_a_pool_refuses_what_belongs_to_another() -> None:  # SPEC F5
    with pytest.raises(
        RequestError, match="at least 1 step, 1 picture and 65536 pixels and at most any number of pixels"
    ):
        machine(pixels_min=65_536).add(picture("req-1", size=64))
    with pytest.raises(RequestError, match=r"64x64 and 81 frames, 1 times"):
        machine(pixels_max=65_536).add(picture("req-1", size=64, frames=81))


def test_a_stop_of_one_leaves_its_batch_running() -> None:  # SPEC H2
    painter = machine(gain_min=1.0)
    for place in range(3):
        painter.add(picture(f"req-{place}"))
    plan = painter.plan()
    assert plan is not None
    painter.stop(2)
    assert [row.seq for row in painter.done(plan.step)] == [1, 3]
    following = painter.plan()
    assert following is not None
    assert ([row.seq for row in following.rows], following.leave) == ([1, 3], (2,))


def test_a_merged_adapter_is_taken_out_and_put_in_once_per_change() -> None:  # SPEC G3, seed 003 6
    merging = replace(COST, merge_ns=1e6)
    painter = DiffusionMachine(DiffusionParams(batch_max=1), DenoiseCost(merging))
    names = ("a", "a", "b", "", "a")
    for place, name in enumerate(names):
        painter.add(picture(f"req-{place}", loras=(LoraUse(name),) if name else ()))
    merges = []
    while (plan := painter.plan()) is not None:
        if plan.rows[0].start == 0:
            merges.append(plan.merges)
        else:
            assert plan.merges == 0
        painter.done(plan.step)
    assert merges == [1, 0, 2, 1, 1]


def test_wrapped_adapters_rewrite_no_weights() -> None:
    painter = machine(batch_max=1)
    painter.add(picture("req-1", loras=(LoraUse("a"),)))
    plan = painter.plan()
    assert plan is not None
    assert plan.merges == 0


def test_videos_share_a_batch_as_far_as_their_activations_fit() -> None:  # SPEC F4
    painter = DiffusionMachine(DiffusionParams(batch_max=4, batch_pixels_max=2 * 9 * 64 * 64 + 1))
    for number in range(3):
        painter.add(picture(f"req-{number}", frames=9))
    assert begun(painter) == [[1, 2], [3]]
    for number in range(3):
        painter.add(picture(f"req-{number}"))
    assert begun(painter) == [[4, 5, 6]]


def plans(painter: DiffusionMachine) -> list[DenoisePlan]:
    """Run to the end."""
    out = []
    while (plan := painter.plan()) is not None:
        out.append(plan)
        painter.done(plan.step)
    return out


def test_a_request_is_told_to_the_engine_once_with_its_content() -> None:
    painter = DiffusionMachine(DiffusionParams())
    request = picture("req-1", steps=3, content=Content("a red circle"))
    seq = painter.add(request)
    assert [plan.new for plan in plans(painter)] == [(NewDenoise(seq, request),), (), ()]


def test_previews_and_checkpoints_are_asked_for_on_the_way_and_never_of_what_is_complete() -> None:  # SPEC H2, F6
    painter = DiffusionMachine(DiffusionParams(steps_per_plan=2))
    painter.add(picture("req-1", steps=9, save_every=3, content=Content(previews=2)))
    made = [(plan.rows[0].start + plan.rows[0].count, plan.save, plan.show) for plan in plans(painter)]
    assert made == [(2, (), ()), (4, (1,), (1,)), (6, (1,), (1,)), (8, (), ()), (9, (), ())]


def test_a_request_with_a_checkpoint_goes_on_from_there_with_those_that_have_come_as_far() -> None:  # SPEC F6
    painter = DiffusionMachine(DiffusionParams())
    painter.add(picture("req-1", steps=4, begun=2, checkpoint=b"x"))
    painter.add(picture("req-2", steps=4))
    painter.add(picture("req-3", steps=4, begun=2, checkpoint=b"y"))
    first = plans(painter)[0]
    assert [(row.seq, row.start) for row in first.rows] == [(1, 2), (3, 2)]


@pytest.mark.parametrize("begun", [-1, 3, 4])
def test_refuses_a_request_that_has_no_step_left(begun: int) -> None:
    painter = DiffusionMachine(DiffusionParams())
    with pytest.raises(RequestError, match="begun is at most 2"):
        painter.add(picture("req-1", steps=3, begun=begun))


def test_the_engine_is_told_of_those_that_leave_early_only() -> None:
    painter = DiffusionMachine(DiffusionParams())
    seqs = [painter.add(picture(f"req-{n}", steps=2)) for n in range(4)]
    first = painter.plan()
    assert first is not None
    painter.stop(seqs[0])
    painter.done(first.step, failed=(seqs[1],))
    second = painter.plan()
    assert second is not None
    assert (second.leave, [row.seq for row in second.rows]) == ((seqs[0],), seqs[2:])
    painter.stop(seqs[2])
    painter.done(second.step)  # complete in the engine before it could hear of the stop
    painter.add(picture("req-9", steps=1))
    third = painter.plan()
    assert third is not None
    assert third.leave == ()


def test_an_engine_that_failed_has_lost_its_batch_and_not_who_waits() -> None:
    painter = DiffusionMachine(DiffusionParams(batch_max=2))
    seqs = [painter.add(picture(f"req-{n}", steps=2)) for n in range(3)]
    first = painter.plan()
    assert first is not None
    assert painter.fail(first.step) == seqs[:2]
    painter.check_invariants()
    second = painter.plan()
    assert second is not None
    assert ([row.seq for row in second.rows], second.leave) == (seqs[2:], ())


def test_a_plan_in_which_a_row_failed_teaches_nothing_of_times() -> None:
    painter = machine()
    seqs = [painter.add(picture(f"req-{n}", steps=2)) for n in range(2)]
    first = painter.plan()
    assert first is not None
    painter.done(first.step, 999 * MS, failed=seqs[:1])
    assert painter.denoise_cost is not None
    assert painter.denoise_cost.error is None
