"""Shapes that have not run are prepared by slices, beside requests that go on."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, picture

from headway.core.plans import DenoisePlan
from headway.core.reports import DenoiseMemory, ShapePreparation, WarmShape
from headway.core.request import DenoiseShape, Slo
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.first_runs import preparation_ns
from headway.sched.diffusion.batches import Batches
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.diffusion.preparing import SHAPES_MAX
from headway.sched.diffusion.unprepared import NO_ROOM
from headway.sched.diffusion.warmth import Warmth
from headway.sched.registry import PolicyChoice

SMALL, LARGE = DenoiseShape(64, 64), DenoiseShape(128, 128)
WARM = WarmShape(64, 64, 1, 4)
MEMORY = DenoiseMemory(0.0, 1.0, 0.0, 0.0, 0.0, 0.0)  # a byte for each latent token of 16x16 pixels


def painter(*warm: WarmShape, holdings: Holdings | None = None, **params: object) -> DiffusionMachine:
    settings = replace(DiffusionParams(gain_min=1.0), **params)
    return DiffusionMachine(settings, DenoiseCost(COST), holdings, Warmth(warm or (WARM,)))


def ran(machine: DiffusionMachine, failed: Sequence[int] = ()) -> DenoisePlan:
    """One plan, from its beginning to its end."""
    plan = machine.plan()
    assert plan is not None
    machine.done(plan.step, 1000, [row.seq for row in plan.rows if row.seq in failed])
    machine.check_invariants()
    return plan


def story(machine: DiffusionMachine) -> str:
    """All plans to the end: `p` for a slice, the place of its first request for others."""
    said = ""
    while machine.plan() is not None:
        assert machine._open is not None
        plan = machine._open
        machine.done(plan.step, 1000)
        machine.check_invariants()
        said += "p" if plan.rows[0].seq < 0 else str(plan.rows[0].seq)
    return said


# SPEC F8
def test_a_new_shape_runs_in_two_slices_before_its_request_which_then_goes_its_ordinary_way() -> None:
    machine = painter()
    machine.add(picture("a", size=128))
    assert (machine.waiting, machine.running) == (1, 0)
    first, second, *steps = [ran(machine) for _ in range(5)]
    assert [(plan.shape, plan.rows[0].start, plan.rows[0].count) for plan in (first, second)] == [
        (LARGE, 0, 1),
        (LARGE, 1, 1),
    ]
    assert (first.is_cold, len(first.new), len(second.new)) == (True, 1, 0)
    assert [(plan.rows[0].seq, plan.is_cold) for plan in steps] == [(1, False)] * 3
    assert machine.warmth.told == (WarmShape(128, 128, 1, 1), WARM)


# SPEC F8
def test_a_request_of_a_warm_shape_waits_for_one_slice_in_its_life() -> None:
    machine = painter(batch_max=1)
    machine.add(picture("a"))
    ran(machine)
    machine.add(picture("b", size=128))
    machine.add(picture("c"))
    assert story(machine) == "p1133" + "3p222"
    patient = painter(batch_max=1, prepare_slices_max=2)
    patient.add(picture("a"))
    patient.add(picture("b", size=128))
    assert story(patient) == "pp111222"


def test_one_that_comes_while_a_slice_runs_has_waited_for_it() -> None:
    machine = painter()
    machine.add(picture("a", size=128))
    plan = machine.plan()
    assert plan is not None
    machine.add(picture("b"))
    machine.done(plan.step)
    assert story(machine) == "222p111"


# SPEC F8, F3
@pytest.mark.parametrize("slo", [Slo(), Slo(e2e_deadline_ns=1)])
def test_what_waits_for_its_shape_is_prepared_in_the_order_of_the_policy(slo: Slo) -> None:
    machine = painter(batch_max=1)
    machine.add(picture("a", size=128, arrived_ns=5))
    machine.add(picture("b", size=96, arrived_ns=3, slo=slo))
    assert [ran(machine).height for _ in range(4)] == [96, 96, 128, 96]


# SPEC F8
def test_passes_of_a_request_for_several_pictures_are_prepared_each() -> None:
    machine = painter(WarmShape(64, 64, 1, 16), batch_max=8)
    machine.add(picture("a", n=10, size=128))
    found = [ran(machine).rows[0].pictures for _ in range(4)]
    assert found == [2, 2, 8, 8]
    assert not ran(machine).is_cold


# SPEC F8
def test_what_is_prepared_is_told_with_who_waits() -> None:
    machine = painter()
    machine.add(picture("a", size=128))
    machine.add(picture("b", size=128))
    machine.preparing.ask([(DenoiseShape(96, 64), 1)])
    ran(machine)
    assert machine.preparing.told() == (
        ShapePreparation(128, 128, 1, 1, "running", 1, 2, 2),
        ShapePreparation(96, 64, 1, 1, "queued", 0, 2, 0),
    )
    while machine.plan() is not None:
        assert machine._open is not None
        machine.done(machine._open.step)
    assert machine.preparing.told() == ()


# SPEC F2, F8
def test_the_wait_for_a_shape_is_part_of_the_work_that_is_told() -> None:
    machine = painter()
    belief = DenoiseCost(COST)
    asked = picture("a", size=128)
    machine.add(asked)
    assert machine.queued_work_ns == belief.left_ns(asked) + preparation_ns(COST, LARGE, 1)


# SPEC F8, I2
def test_each_that_waits_is_told_why() -> None:
    machine = painter()
    machine.add(picture("a", size=128))
    ran(machine)
    (decision,) = machine.take_decisions()
    assert (decision.level, decision.kind, decision.chosen, decision.request) == ("batch", "prepare", "128x128", "a")
    assert decision.reason.startswith("128x128 has not run here: it is prepared first")


# SPEC F2: what it takes more for being the first is measured over both slices, and teaches nothing else.
def test_a_preparation_teaches_what_first_runs_take() -> None:
    machine, belief = painter(), DenoiseCost(COST)
    machine.add(picture("a", size=128))
    for _ in range(2):
        plan = machine.plan()
        assert plan is not None
        machine.done(plan.step, belief.plan_ns(plan) + 500)
    assert machine.denoise_cost == replace(belief.coefficients, first_ns=1000.0)


# SPEC F8
def test_one_that_fails_fails_those_that_wait_for_it() -> None:
    machine = painter()
    waiting = [machine.add(picture(name, size=128)) for name in "ab"]
    machine.add(picture("c", size=96))
    ran(machine)
    failed = ran(machine, failed=[-1])
    assert machine.preparing.take_failed() == [(seq, failed.rows[0].seq) for seq in waiting]
    for seq in waiting:
        machine.stop(seq)
    assert story(machine) == "pp333"
    assert not machine.warmth.is_warm(LARGE, 1)


# SPEC F8: nothing hangs.
def test_one_whose_waiting_request_is_gone_ends_if_it_has_begun_and_never_begins_else() -> None:
    machine = painter(holdings=Holdings("rep", MEMORY, COST))
    seq = machine.add(picture("a", size=128))
    machine.stop(seq)
    assert machine.plan() is None
    seq = machine.add(picture("a", size=128))
    ran(machine)
    machine.stop(seq)
    assert story(machine) == "p"
    machine.check_invariants()  # nothing is held
    assert machine.warmth.is_warm(LARGE, 1)


# SPEC F8
@pytest.mark.parametrize("is_slice", [True, False])
def test_an_engine_that_fails_takes_those_that_waited_for_the_slice_with_it(is_slice: bool) -> None:
    machine = painter(batch_max=1)
    warm = machine.add(picture("a"))
    cold = machine.add(picture("b", size=128))
    if not is_slice:
        ran(machine)
    plan = machine.plan()
    assert plan is not None
    assert machine.fail(plan.step) == ([cold] if is_slice else [warm])
    machine.check_invariants()
    assert story(machine) == ("111" if is_slice else "pp222")  # anew


# SPEC L-2, F8
def test_it_begins_where_its_state_fits_beside_the_batch_and_makes_way_for_what_does_not_fit_beside_it() -> None:
    room = replace(MEMORY, room=16 + 63)  # a small picture has 16 tokens, a large one 64
    machine = painter(holdings=Holdings("rep", room, COST), batch_max=1)
    machine.add(picture("a"))
    ran(machine)
    machine.add(picture("b", size=128))
    assert story(machine) == "11pp222"
    crowded = painter(WARM, WarmShape(64, 128, 1, 1), holdings=Holdings("rep", room, COST), batch_max=1)
    crowded.add(picture("a", size=128))
    crowded.add(picture("b", size=64, width=128, height=64))
    crowded.add(picture("c", size=64, width=128, height=64))
    plans = []
    while crowded.plan() is not None:
        assert crowded._open is not None
        plans.append(crowded._open)
        crowded.done(crowded._open.step)
        crowded.check_invariants()
    gave_way = next(plan for plan in plans if plan.leave)
    assert gave_way.leave[0] < 0
    assert gave_way.rows[0].seq == 2
    whole = [plan.rows[0].count for plan in plans if plan.rows[0].seq < 0]
    assert whole == [1, 2]  # the second time in one slice


# SPEC L-2, F8
def test_its_next_slice_waits_where_a_batch_that_began_meanwhile_leaves_no_room_for_its_pass() -> None:
    room = replace(MEMORY, step_token=1.0, room=150)  # a large picture holds 64, and 64 more in a pass
    machine = painter(holdings=Holdings("rep", room, COST), batch_max=2, order=PolicyChoice("sjf"))
    machine.add(picture("a"))
    machine.add(picture("b", size=128))
    plan = machine.plan()
    assert plan is not None
    spent = machine.add(picture("c", steps=20))
    machine.done(plan.step)
    machine.add(picture("d", steps=4, n=2))  # holds 32
    assert [ran(machine).rows[0].seq for _ in range(4)] == [1, 1, 1, 4]
    machine.stop(spent)
    assert story(machine) == "444" + "p222"


def test_what_operators_ask_for_waits_for_those_who_wait_and_while_the_replica_drains() -> None:
    machine = painter()
    machine.preparing.ask([(DenoiseShape(96, 64), 1)])
    machine.add(picture("a", size=128))
    assert [ran(machine).height for _ in range(2)] == [128, 128]
    machine.preparing.only_for_requests = True
    assert story(machine) == "111"
    machine.preparing.only_for_requests = False
    assert story(machine) == "pp"


# SPEC F8, F4
def test_what_has_no_room_in_one_pass_is_not_prepared_in_smaller_ones_and_told_as_warm() -> None:
    room = DenoiseMemory(0.0, 0.0, 0.0, 1.0, 0.0, 0.0, room=40)  # a byte for each of 16 tokens of a row, in a step
    machine = painter(WarmShape(32, 32, 1, 4), holdings=Holdings("rep", room, COST))
    machine.preparing.ask([(SMALL, None)])
    assert [ran(machine).rows[0].pictures for _ in range(4)] == [1, 1, 2, 2]
    assert machine.plan() is None
    assert machine.warmth.told is not None
    assert WarmShape(64, 64, 1, 2) in machine.warmth.told


# SPEC F8: a report, and each event, cost no look at the memory of all that wait.
def test_what_each_lacks_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, lacking = [], Batches.lacking
    monkeypatch.setattr(Batches, "lacking", lambda self, item: looks.append(item) or lacking(self, item))
    machine = painter()
    for place in range(20):
        machine.add(picture(f"req-{place}", size=128))
        machine.preparing.told()
        assert machine.queued_work_ns > 0
    assert len(looks) == 40


def test_what_operators_ask_for_and_never_fits_is_told() -> None:  # SPEC F8
    machine = painter(holdings=Holdings("rep", replace(MEMORY, room=63), COST))  # a large picture has 64 tokens
    machine.preparing.ask([(LARGE, None)])
    assert machine.plan(7) is None
    told = machine.preparing.unprepared.told(machine.warmth.is_warm)
    assert [(one.width, one.batch, one.error, one.at_ns) for one in told] == [(128, 1, NO_ROOM, 7)]


def test_what_operators_ask_for_is_bounded() -> None:
    machine = painter()
    machine.preparing.ask([(DenoiseShape(64, 64 + 8 * place), 1) for place in range(2 * SHAPES_MAX)])
    assert len(machine.preparing.told()) == SHAPES_MAX
    assert len(story(machine)) == 2 * SHAPES_MAX


def test_a_shape_begun_elsewhere_waits_too_where_new_ones_are_refused() -> None:
    warmth = Warmth((WARM,), refuses_new=True)
    machine = DiffusionMachine(DiffusionParams(), DenoiseCost(COST), warmth=warmth)
    machine.add(replace(picture("c", size=128), begun=1, checkpoint=b"c"))
    assert story(machine) == "pp11"
