"""What has run at a replica, and what may run next."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, begun, picture

from headway.core.errors import RequestError
from headway.core.reports import WarmShape
from headway.core.request import DenoiseShape
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.diffusion.warmth import Warmth

SMALL, LARGE = DenoiseShape(64, 64), DenoiseShape(128, 128)


def painter(*prepared: WarmShape, **params: object) -> DiffusionMachine:
    """Batches form by what has run alone."""
    params = {"batch_max": 16, "gain_min": 1.0, **params}
    return DiffusionMachine(replace(DiffusionParams(), **params), DenoiseCost(COST), warmth=Warmth(prepared))


# SPEC F4, F8
def test_batches_of_a_new_shape_grow_by_one_size_after_the_other() -> None:
    machine = painter()
    for n in range(12):
        machine.add(picture(f"r{n}", steps=1))
    assert [len(batch) for batch in begun(machine)] == [1, 2, 3, 4, 3]  # the first prepares


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
    assert [len(batch) for batch in begun(machine)] == [1, 2, 3, 3]  # the first prepares


def test_a_request_for_more_pictures_than_a_batch_is_warm_where_its_passes_are() -> None:
    machine = painter(WarmShape(64, 64, 1, 8), batch_max=8)
    machine.add(picture("a", steps=1, n=10))
    plan = machine.plan()
    assert plan is not None
    assert (plan.pictures_max, plan.is_cold) == (8, False)


def test_a_row_that_failed_has_warmed_nothing() -> None:
    machine = painter(WarmShape(64, 64, 1, 1))
    seqs = [machine.add(picture(name)) for name in "ab"]
    plan = machine.plan()
    assert plan is not None
    assert len(plan.rows) == 2
    machine.done(plan.step, 1000, failed=seqs[:1])
    assert machine.warmth.told == (WarmShape(64, 64, 1, 1),)


def test_a_device_without_warm_up_is_warm_for_all() -> None:
    warmth = Warmth()
    assert warmth.has_run(LARGE, 99)
    assert warmth.told is None


def test_shapes_used_long_ago_are_forgotten_before_those_of_the_warm_up() -> None:
    warmth = Warmth((WarmShape(64, 64, 1, 2),))
    for side in range(100):
        warmth.prepared(DenoiseShape(128, 8 * side + 8), 1)
        warmth.prepared(LARGE, 1)  # again and again
    assert warmth.has_run(SMALL, 2)
    assert not warmth.has_run(DenoiseShape(128, 8), 1)
    assert warmth.is_warm(DenoiseShape(128, 800), 1)
    assert warmth.is_warm(LARGE, 1)
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
