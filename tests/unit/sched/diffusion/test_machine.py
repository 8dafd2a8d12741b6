import pytest
from tests.unit.sched.diffusion.pictures import picture

from headway.core.errors import InvariantError, RequestError
from headway.sched.diffusion.machine import DiffusionMachine, DiffusionParams


def test_the_oldest_chooses_the_shape_and_others_of_it_join() -> None:  # SPEC F4
    machine = DiffusionMachine(DiffusionParams(batch_max=2))
    for name, size in (("req-1", 64), ("req-2", 32), ("req-3", 64), ("req-4", 64)):
        machine.add(picture(name, size=size))
    plan = machine.plan()
    assert plan is not None
    assert ([row.seq for row in plan.rows], plan.height) == ([1, 3], 64)


def test_runs_a_few_steps_per_plan_until_all_are_done() -> None:
    machine = DiffusionMachine(DiffusionParams(steps_per_plan=2))
    machine.add(picture("req-1", steps=5))
    counts = []
    while (plan := machine.plan()) is not None:
        assert machine.plan() is None
        counts += [row.count for row in machine.done(plan.step)]
        machine.check_invariants()
    assert counts == [2, 2, 1]
    assert (machine.waiting, machine.running) == (0, 0)


def test_a_cancelled_request_is_gone_after_its_open_step() -> None:  # SPEC H2
    machine = DiffusionMachine(DiffusionParams())
    machine.add(picture("req-1"))
    machine.add(picture("req-2", size=32))
    plan = machine.plan()
    assert plan is not None
    machine.stop(1)
    assert machine.done(plan.step) == []
    following = machine.plan()
    assert following is not None
    assert (following.leave, [row.seq for row in following.rows]) == ((1,), [2])


def test_what_never_fits_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="req-1 wants 3 steps at 4096x4096"):
        DiffusionMachine(DiffusionParams(pixels_max=1 << 20)).add(picture("req-1", size=4096))


def test_an_unknown_step_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="open is none"):
        DiffusionMachine(DiffusionParams()).done(1)
