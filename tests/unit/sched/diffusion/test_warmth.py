"""What has run at a replica, and what may run next."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, begun, picture

from headway.core.errors import RequestError
from headway.core.reports import WarmShape
from headway.core.request import DenoiseShape, Slo
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.diffusion.warmth import Warmth

SMALL, LARGE = DenoiseShape(64, 64), DenoiseShape(128, 128)


def painter(*prepared: WarmShape, **params: object) -> DiffusionMachine:
    """Batches form by what has run alone."""
    params = {"batch_max": 16, "gain_min": 1.0, **params}
    return DiffusionMachine(replace(DiffusionParams(), **params), DenoiseCost(COST), warmth=Warmth(prepared))


def cold_plans(machine: DiffusionMachine) -> list[tuple[int, bool]]:
    """Pictures and coldness of each plan, to the end."""
    found = []
    while (plan := machine.plan()) is not None:
        found.append((sum(row.pictures for row in plan.rows), plan.is_cold))
        machine.done(plan.step, 1000)
    return found


# SPEC F8
def test_the_first_plan_of_a_shape_that_nobody_has_seen_is_cold_and_teaches_nothing() -> None:
    machine = painter(WarmShape(64, 64, 1, 16))
    machine.add(picture("a", size=64))
    machine.add(picture("b", size=128))
    assert cold_plans(machine) == [(1, False)] * 3 + [(1, True), (1, False), (1, True)]  # and its decode
    assert machine.warmth.told == (WarmShape(128, 128, 1, 1), WarmShape(64, 64, 1, 16))
    cold = painter()
    cold.add(picture("a", steps=1))
    assert (cold_plans(cold), cold.denoise_cost) == ([(1, True)], DenoiseCost(COST).coefficients)


# SPEC F4, F8
def test_batches_of_a_new_shape_grow_by_one_size_after_the_other() -> None:
    machine = painter()
    for n in range(12):
        machine.add(picture(f"r{n}", steps=1))
    assert [len(batch) for batch in begun(machine)] == [1, 2, 3, 4, 2]


# SPEC F4, F8
def test_a_batch_has_a_size_that_is_warm_and_no_other() -> None:
    machine = painter(WarmShape(64, 64, 1, 16))
    for n in range(15 + 16):
        machine.add(picture(f"r{n}", steps=1))
    assert [len(batch) for batch in begun(machine)] == [16, 8, 7]
    several = painter(WarmShape(64, 64, 1, 16))
    for n in range(5):
        several.add(picture(f"r{n}", steps=1, n=3))
    assert [len(batch) for batch in begun(several)] == [2, 2, 1]  # 6 pictures: 9, 12 and 15 are no sizes


def test_a_request_for_several_pictures_meets_only_sizes_that_it_can_form() -> None:
    machine = painter()
    for n in range(8):
        machine.add(picture(f"r{n}", steps=1, n=2))
    assert [len(batch) for batch in begun(machine)] == [1, 2, 3, 2]


def test_a_request_for_more_pictures_than_a_batch_is_warm_where_its_passes_are() -> None:
    machine = painter(WarmShape(64, 64, 1, 8), batch_max=8)
    machine.add(picture("a", steps=1, n=10))
    plan = machine.plan()
    assert plan is not None
    assert (plan.pictures_max, plan.is_cold) == (8, False)


def test_a_row_that_failed_has_warmed_nothing() -> None:
    machine = painter()
    seq = machine.add(picture("a"))
    plan = machine.plan()
    assert plan is not None
    machine.done(plan.step, 1000, failed=(seq,))
    assert machine.warmth.told == ()


# SPEC F8
def test_what_is_warm_goes_before_a_new_shape_for_as_long_as_that_would_take() -> None:
    for first_us, expected in ((0, "cab"), (70, "acb"), (140, "abc")):
        belief, warm = DenoiseCost(COST), WarmShape(64, 64, 1, 1, first_ns=first_us * 1000)
        belief.begin([warm])
        machine = DiffusionMachine(DiffusionParams(batch_max=1), belief, warmth=Warmth([warm]))
        machine.add(picture("c", size=128))
        for name in "ab":  # 32 us a step
            machine.add(picture(name, steps=2, arrived_ns=1))
        assert "".join(" cab"[batch[0]] for batch in begun(machine)) == expected
        reasons = [made.reason for made in machine.take_decisions()]
        assert sum(reason.endswith("before a shape that has not run") for reason in reasons) == expected.index("c")


# SPEC F8
def test_a_new_shape_with_a_deadline_waits_for_nobody() -> None:
    belief, warm = DenoiseCost(COST), WarmShape(64, 64, 1, 1, first_ns=10**6)
    belief.begin([warm])
    machine = DiffusionMachine(DiffusionParams(batch_max=1), belief, warmth=Warmth([warm]))
    machine.add(picture("c", size=128, slo=Slo(e2e_deadline_ns=10**9)))
    machine.add(picture("a"))
    assert begun(machine) == [[1], [2]]


def test_a_device_without_warm_up_is_warm_for_all() -> None:
    warmth = Warmth()
    assert warmth.has_run(LARGE, 99)
    assert warmth.told is None


def test_shapes_met_long_ago_are_forgotten_before_those_of_the_warm_up() -> None:
    warmth = Warmth((WarmShape(64, 64, 1, 2),))
    for side in range(100):
        warmth.ran(DenoiseShape(128, 8 * side + 8), 1)
    assert warmth.has_run(SMALL, 2)
    assert not warmth.has_run(DenoiseShape(128, 8), 1)
    assert warmth.has_run(DenoiseShape(128, 800), 1)
    assert len(warmth.told or ()) == 65


# SPEC F8: a new shape is prepared off the request path or refused.
def test_a_shape_that_has_not_run_is_refused_with_those_that_have_where_that_is_wanted() -> None:
    warmth = Warmth((WarmShape(64, 64, 1, 2), WarmShape(64, 96, 5, 1)), refuses_new=True)
    machine = DiffusionMachine(DiffusionParams(), DenoiseCost(COST), warmth=warmth)
    machine.add(picture("a", size=64))
    with pytest.raises(RequestError) as caught:
        machine.add(picture("b", size=128))
    assert (caught.value.code, caught.value.param) == ("unservable", "size")
    assert str(caught.value) == "request b asks for 128x128, which has not run there; warm are: 64x64, 96x64, 5 frames"
    machine.add(replace(picture("c", size=128), begun=1, checkpoint=b"c"))  # elsewhere
    warmth.ran(LARGE, 1)
    machine.add(picture("d", size=128))
    Warmth(refuses_new=True).check(picture("e"))  # of a device without warm-up nothing is cold
