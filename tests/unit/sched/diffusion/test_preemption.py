"""Step-boundary preemption (SPEC F6). vllm-omni#1679: a long video blocks short pictures."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, machine, picture

from headway.core.artifacts import StageTimes
from headway.core.errors import ConfigError
from headway.core.ids import RequestId
from headway.core.plans import DenoisePlan
from headway.core.reports import DenoiseMemory, WarmShape
from headway.core.request import DiffusionRequest, LoraUse, Slo
from headway.cost.diffusion import left_ns
from headway.cost.diffusion_belief import DenoiseCost, plan_ns
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams, Preemption
from headway.sched.diffusion.warmth import Warmth
from headway.sched.registry import PolicyChoice

FREE = Preemption(price_s=0.0)
LONG = picture("req-long", steps=20, size=256)
LONG_NS = left_ns(COST, LONG)


def short(number: int = 1, **more: object) -> DiffusionRequest:
    return picture(f"req-short-{number}", steps=1, size=64, **more)  # type: ignore[arg-type]  # fields by name


def painting(preempt: Preemption | None, order: str = "sjf", **params: object) -> DiffusionMachine:
    return machine(preempt=preempt, order=PolicyChoice(order), batch_max=2, **params)


def stepped(painter: DiffusionMachine, at_ns: int = 0) -> DenoisePlan:
    """One plan, done; what it was asked to save is saved."""
    plan = painter.plan(at_ns)
    assert plan is not None
    painter.done(plan.step, saved=dict.fromkeys(plan.save, b"state"))
    painter.check_invariants()
    return plan


def measured(painter: DiffusionMachine, save_ns: int, resume_ns: int, size: int = 256) -> None:
    """Its engine has saved a row of that size, and gone on from it."""
    for more, stages in (({"save_every": 1}, StageTimes(save_ns=save_ns)), ({}, StageTimes(resume_ns=resume_ns))):
        begun = 0 if more else 1
        seq = painter.add(
            picture(f"req-price-{begun}", steps=3, size=size, begun=begun, checkpoint=b"c" * begun, **more)
        )
        plan = painter.plan()
        assert plan is not None
        took_ns = round(plan_ns(COST, plan)) + stages.save_ns + stages.resume_ns
        painter.done(plan.step, took_ns, stages=stages)
        painter.stop(seq)


def rows(plan: DenoisePlan) -> list[tuple[int, int]]:
    return [(row.seq, row.start) for row in plan.rows]


def test_a_batch_that_has_begun_runs_to_its_end_unless_preemption_is_asked_for() -> None:
    painter = painting(None)
    painter.add(LONG)
    stepped(painter)
    painter.add(short())
    assert rows(stepped(painter)) == [(1, 1)]


def test_a_short_picture_interrupts_a_long_one_which_goes_on_where_it_was() -> None:
    painter = painting(FREE)
    painter.add(LONG)
    stepped(painter)
    painter.add(short())
    plan = stepped(painter)
    assert rows(plan) == [(2, 0)]
    assert plan.leave == ()  # its state stays in the engine
    assert painter.take_interrupted() == [1]
    resumed = stepped(painter)
    assert (rows(resumed), resumed.new) == ([(1, 1)], ())
    (made,) = [one for one in painter.take_decisions() if one.kind == "interrupt"]
    assert (made.level, made.chosen, made.request) == ("step", "req-short-1", "req-long")


@pytest.mark.parametrize("order", ["fifo", "sjf_aging"])
def test_the_order_decides_who_is_more_urgent(order: str) -> None:
    painter = painting(FREE, order)
    painter.add(LONG)
    stepped(painter)
    painter.add(short(arrived_ns=6 * LONG_NS))  # aging: later than five times the work of the long one
    assert rows(stepped(painter)) == [(1, 1)]


def test_what_is_won_must_exceed_what_the_others_lose_and_the_price() -> None:
    for price_s, interrupts in ((0.5 * LONG_NS / 1e9, True), (1.5 * LONG_NS / 1e9, False)):
        painter = painting(Preemption(price_s=price_s))
        painter.add(LONG)
        stepped(painter)
        painter.add(short())
        assert (rows(stepped(painter)) == [(2, 0)]) is interrupts


def test_two_of_a_batch_lose_twice() -> None:
    painter = painting(FREE, gain_min=1.0)
    for number in range(2):
        painter.add(replace(LONG, id=f"req-{number}", steps=4))
    stepped(painter)
    stepped(painter)  # 1056 us of both are left, 544 of each
    painter.add(picture("req-9", steps=13, size=80))  # 533 us, which two would wait for
    assert rows(stepped(painter)) == [(1, 2), (2, 2)]


def test_a_request_is_interrupted_so_often_and_no_more() -> None:
    painter = painting(Preemption(times_max=2, price_s=0.0))
    painter.add(LONG)
    stepped(painter)
    seen = []
    for number in range(3):
        painter.add(short(number))
        seen.append(rows(stepped(painter))[0][0])
        if seen[-1] != 1:
            stepped(painter)
    assert seen == [2, 3, 1]


def test_rows_that_do_not_fit_in_the_engine_are_saved_first() -> None:
    painter = painting(Preemption(resident_max=0, price_s=0.0))
    painter.add(LONG)
    stepped(painter)
    painter.add(short())
    saving = stepped(painter)
    assert (rows(saving), saving.save) == ([(1, 1)], (1,))
    switched = stepped(painter)
    assert (rows(switched), switched.leave) == ([(2, 0)], (1,))
    back = stepped(painter)
    assert rows(back) == [(1, 2)]
    ((seq, request),) = [(new.seq, new.request) for new in back.new]
    assert (seq, request.begun, request.checkpoint) == (1, 2, b"state")


def test_a_waiting_one_that_is_cancelled_is_forgotten_by_the_engine_too() -> None:
    painter = painting(FREE)
    painter.add(LONG)
    stepped(painter)
    painter.add(short())
    painter.add(short(2))
    stepped(painter)
    painter.stop(1)
    painter.add(short(3))
    assert stepped(painter).leave == (1,)


# SPEC F6, H5
@pytest.mark.parametrize("when", [lambda ns: {"slo": Slo(e2e_deadline_ns=ns)}, lambda ns: {"played_ns": ns}])
def test_a_deadline_or_a_playback_interrupts_what_has_time(when: Callable[[int], dict[str, object]]) -> None:
    for due_ns, interrupts in ((LONG_NS, True), (LONG_NS * 99 // 100, False)):
        painter = painting(FREE, "least_slack")
        video = replace(LONG, slo=Slo(e2e_deadline_ns=due_ns))
        painter.add(video)
        stepped(painter)
        for _ in range(14):
            stepped(painter)
        urgent = picture("req-2", steps=15, size=256, **when(LONG_NS * 95 // 100))  # type: ignore[arg-type]  # fields by name
        painter.add(urgent)  # takes three times as long as what is left of the other, and would be late behind it
        assert (rows(stepped(painter))[0][0] == 2) is interrupts


# SPEC F6
@pytest.mark.parametrize(("share", "interrupts"), [(0.3, True), (0.6, False)])
def test_a_measured_price_above_what_is_won_interrupts_nobody(share: float, interrupts: bool) -> None:
    painter = painting(Preemption(resident_max=0, price_s=0.0))
    price_ns = round(share * LONG_NS)
    measured(painter, save_ns=price_ns, resume_ns=price_ns)
    seq = painter.add(LONG)
    stepped(painter)
    painter.add(short())
    plan = stepped(painter)
    assert plan.save == ((seq,) if interrupts else ())
    assert (rows(stepped(painter))[0][0] != seq) is interrupts


def test_the_setting_holds_only_until_the_first_measure() -> None:
    painter = painting(Preemption(resident_max=0, price_s=1.5 * LONG_NS / 1e9))
    measured(painter, save_ns=10, resume_ns=10)
    seq = painter.add(LONG)
    stepped(painter)
    painter.add(short())
    assert stepped(painter).save == (seq,)


def test_rows_that_stay_in_the_engine_do_not_pay_for_checkpoints() -> None:
    painter = painting(Preemption(price_s=0.0))
    measured(painter, save_ns=LONG_NS, resume_ns=LONG_NS)
    seq = painter.add(LONG)
    stepped(painter)
    painter.add(short())
    assert rows(stepped(painter))[0][0] != seq


def test_nobody_is_saved_for_less_than_the_save_takes() -> None:
    painter = painting(Preemption(resident_max=0, price_s=0.0))
    measured(painter, save_ns=LONG_NS * 6 // 10, resume_ns=LONG_NS // 100)
    seq = painter.add(LONG)
    while painter.plan() is not None:
        step = painter.steps
        painter.done(step)
        if step >= 8:
            break
    painter.add(short())  # more than half is done: the save alone would cost more than is won
    assert rows(stepped(painter))[0][0] == seq
    assert painter.preemptions == 0


def test_a_deadline_is_not_worth_more_than_the_wait_that_it_saves() -> None:
    for resume_ns, interrupts in ((10, True), (LONG_NS, False)):
        painter = painting(Preemption(resident_max=0, price_s=0.0), "least_slack")
        measured(painter, save_ns=10, resume_ns=resume_ns)
        seq = painter.add(LONG)
        for _ in range(15):
            stepped(painter)
        painter.add(picture("req-2", steps=15, size=256, slo=Slo(e2e_deadline_ns=LONG_NS * 95 // 100)))
        assert (stepped(painter).save == (seq,)) is interrupts


# SPEC F6
@pytest.mark.parametrize(("merge_share", "interrupts"), [(0.1, True), (0.6, False)])
@pytest.mark.parametrize("who", ["row", "head"])
def test_adapters_that_must_be_merged_anew_are_part_of_the_price(
    merge_share: float, interrupts: bool, who: str
) -> None:
    belief = DenoiseCost(replace(COST, merge_ns=merge_share * LONG_NS))
    painter = DiffusionMachine(DiffusionParams(preempt=FREE, order=PolicyChoice("sjf"), batch_max=2), belief)
    used = (LoraUse("a", 1.0),)  # one rewrite for the head, and one to have the row's weights back
    seq = painter.add(replace(LONG, loras=used if who == "row" else ()))
    stepped(painter)
    painter.add(short(loras=used if who == "head" else ()))
    assert (rows(stepped(painter))[0][0] != seq) is interrupts


# SPEC F6
def test_adapters_that_both_use_cost_no_preemption() -> None:
    belief = DenoiseCost(replace(COST, merge_ns=float(LONG_NS)))
    painter = DiffusionMachine(DiffusionParams(preempt=FREE, order=PolicyChoice("sjf"), batch_max=2), belief)
    seq = painter.add(replace(LONG, loras=(LoraUse("a", 1.0),)))
    stepped(painter)
    painter.add(short(loras=(LoraUse("a", 1.0),)))
    assert rows(stepped(painter))[0][0] != seq


# SPEC F6, F8
@pytest.mark.parametrize("is_warm", [False, True])
def test_rows_do_not_give_way_to_a_shape_that_has_not_run(is_warm: bool) -> None:
    warm = [WarmShape(256, 256, 1, 2), *([WarmShape(64, 64, 1, 2)] if is_warm else ())]
    params = DiffusionParams(preempt=FREE, order=PolicyChoice("sjf"), batch_max=2)
    painter = DiffusionMachine(params, DenoiseCost(COST), warmth=Warmth(warm))
    seq = painter.add(LONG)
    stepped(painter)
    painter.add(short())
    ran = [rows(stepped(painter))[0][0] for _ in range(3)]
    assert ran == ([2, seq, seq] if is_warm else [-1, seq, seq])  # they wait for one slice


def test_it_needs_a_belief() -> None:
    with pytest.raises(ConfigError, match="preempt needs a belief"):
        DiffusionMachine(DiffusionParams(preempt=FREE))


def crowded(room: int) -> tuple[DiffusionMachine, Holdings]:
    """A byte for each token of 16x16 pixels that is held; so many in all."""
    holdings = Holdings("rep", DenoiseMemory(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, room=room), COST)
    params = DiffusionParams(preempt=FREE, order=PolicyChoice("sjf"), batch_max=2, gain_min=1.0)
    return DiffusionMachine(params, DenoiseCost(COST), holdings), holdings


# SPEC F4, F6, L-2: it would be out of memory there.
def test_what_has_no_room_beside_interrupted_rows_does_not_begin_before_they_end_or_are_saved() -> None:
    painter, holdings = crowded(room=256 + 63)
    painter.add(LONG)
    stepped(painter)
    painter.add(short())
    stepped(painter)
    painter.add(picture("req-middle", steps=1, size=128))  # 64 tokens
    plans = []
    for _ in range(4):
        plan = painter.plan()
        assert plan is not None
        device = next(view for view in holdings.views() if view.name == "device/rep/bytes")
        assert device.used <= 256 + 63
        plans.append(plan)
        painter.done(plan.step, saved=dict.fromkeys(plan.save, b"state"))
        painter.check_invariants()
    assert [(rows(plan), plan.save) for plan in plans] == [
        ([(1, 1)], ()),
        ([(1, 2)], (1,)),
        ([(3, 0)], ()),
        ([(1, 3)], ()),
    ]
    decision = next(one for one in painter.take_decisions() if (one.kind, one.chosen) == ("batch", LONG.id))
    assert decision.reason.endswith("req-middle is next, and has no room beside it")


def test_interrupted_rows_go_on_together_where_they_were_together() -> None:  # SPEC F4, F6
    painter, _ = crowded(room=2 * 256 + 16)
    for name in "ab":
        painter.add(replace(LONG, id=RequestId(name)))
    assert rows(stepped(painter)) == [(1, 0), (2, 0)]
    painter.add(short())
    assert [rows(stepped(painter)) for _ in range(2)] == [[(3, 0)], [(1, 1), (2, 1)]]
