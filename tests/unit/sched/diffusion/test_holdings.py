"""The bytes of a diffusion replica in its ledger (SPEC L-2)."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, begun, picture

from headway.core.errors import RequestError
from headway.core.reports import DenoiseMemory
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.diffusion_memory import needed_bytes, state_bytes, working_bytes
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams, Preemption
from headway.sched.registry import PolicyChoice

MEMORY = DenoiseMemory(100.0, 2.0, 1000.0, 5.0, 0.0, 3.0)
ONE = picture("req-0")
HELD, WORKING = state_bytes(MEMORY, COST, ONE), working_bytes(MEMORY, COST, ONE)


def studio(room: int | None, **params: object) -> DiffusionMachine:
    holdings = Holdings("rep-a", replace(MEMORY, room=room), COST, 1 << 20)
    return DiffusionMachine(replace(DiffusionParams(gain_min=1.0), **params), DenoiseCost(COST), holdings)


def used(painter: DiffusionMachine) -> dict[str, int]:
    return {view.name: view.used for view in painter.holdings.views()}


def device(painter: DiffusionMachine) -> int:
    return used(painter)["device/rep-a/bytes"]


def test_a_row_is_held_from_its_first_plan_to_its_end_and_activations_while_a_plan_runs() -> None:
    painter = studio(1 << 20)
    seq = painter.add(ONE)
    held = [device(painter)]
    for _ in range(3):
        plan = painter.plan()
        assert plan is not None
        held.append(device(painter))
        painter.done(plan.step)
        held.append(device(painter))
        painter.check_invariants()
    assert held == [0, *[HELD + WORKING, HELD] * 2, HELD + WORKING, 0]
    painter.over(seq)  # again
    assert device(painter) == 0


def test_what_never_fits_is_refused_with_numbers() -> None:  # FramePack#25, ai-toolkit PR#819: before any step is paid
    painter = studio(needed_bytes(MEMORY, COST, ONE))
    painter.add(ONE)
    with pytest.raises(RequestError, match=r"needs \d+ bytes .* rep-a has \d+: ask for a smaller size") as refused:
        painter.add(picture("req-1", size=128))
    assert refused.value.code == "unservable"


# SPEC F4
def test_a_request_for_several_pictures_runs_in_passes_that_have_room() -> None:
    several, step = replace(ONE, n=4), 5 * 16  # bytes a picture of a pass, beside 1000
    decode = 3 * 64 * 64
    memory = replace(MEMORY, decode_pixel=0.0, step_base=10.0 * decode)
    held = state_bytes(memory, COST, several)
    for pictures in (1, 2, 3, 4):
        room = held + round(memory.step_base) + step * pictures
        holdings = Holdings("rep-a", replace(memory, room=room), COST, 1 << 20)
        painter = DiffusionMachine(DiffusionParams(batch_max=4), DenoiseCost(COST), holdings)
        painter.add(several)
        plan = painter.plan()
        assert plan is not None
        assert plan.pictures_max == pictures
        assert device(painter) <= room
    short = Holdings("rep-a", replace(memory, room=held + round(memory.step_base) + step - 1), COST, 1 << 20)
    with pytest.raises(RequestError, match=f"{round(memory.step_base) + step} for a denoise step"):
        DiffusionMachine(DiffusionParams(batch_max=4), DenoiseCost(COST), short).add(several)


def test_a_batch_is_as_large_as_fits() -> None:  # SPEC F4
    for size in (1, 2, 3):
        painter = studio(needed_bytes(MEMORY, COST, ONE, size), batch_max=4)
        for number in range(4):
            painter.add(picture(f"req-{number}"))
        plan = painter.plan()
        assert plan is not None
        assert len(plan.rows) == size
        assert device(painter) <= needed_bytes(MEMORY, COST, ONE, size)
    endless = studio(None, batch_max=4)
    for number in range(4):
        endless.add(picture(f"req-{number}"))
    assert begun(endless) == [[1, 2, 3, 4]]


def test_stopped_and_failed_rows_give_back_what_they_held() -> None:  # SPEC L-2
    painter = studio(1 << 20, batch_max=4)
    seqs = [painter.add(picture(f"req-{number}")) for number in range(3)]
    plan = painter.plan()
    assert plan is not None
    painter.stop(seqs[0])
    painter.stop(seqs[0])
    painter.done(plan.step, failed=[seqs[1]])
    assert device(painter) == HELD
    plan = painter.plan()
    assert plan is not None
    painter.fail(plan.step)
    painter.check_invariants()
    assert device(painter) == 0


def test_a_row_that_makes_room_leaves_the_device_and_its_checkpoint_is_counted() -> None:  # SPEC F6
    preempt = Preemption(resident_max=0, price_s=0.0)
    painter = studio(1 << 30, order=PolicyChoice("sjf"), preempt=preempt, batch_max=1)
    painter.add(picture("req-1", steps=100))
    plan = painter.plan()
    assert plan is not None
    painter.done(plan.step)
    painter.add(picture("req-2", steps=1))
    plan = painter.plan()  # one more step, whose checkpoint is asked for
    assert plan is not None
    assert plan.save == (1,)
    painter.done(plan.step, saved={1: b"x" * 77})
    plan = painter.plan()
    assert plan is not None
    assert [row.seq for row in plan.rows] == [2]
    assert (device(painter), used(painter)["replica/rep-a/checkpoint_bytes"]) == (HELD + WORKING, 77)
    painter.done(plan.step)
    plan = painter.plan()
    assert plan is not None
    assert [row.seq for row in plan.rows] == [1]  # it is in the engine again
    assert device(painter) == HELD + WORKING
    painter.done(plan.step)
    painter.stop(1)
    painter.check_invariants()
    assert used(painter) == dict.fromkeys(used(painter), 0)


def test_a_checkpoint_that_a_request_came_with_is_counted_until_it_is_over() -> None:
    painter = studio(1 << 20)
    seq = painter.add(picture("req-1", steps=8, begun=4, checkpoint=b"x" * 50))
    assert used(painter)["replica/rep-a/checkpoint_bytes"] == 50
    painter.stop(seq)
    assert used(painter)["replica/rep-a/checkpoint_bytes"] == 0


def test_the_cache_of_prompts_is_a_cache() -> None:  # its bytes stay when all is idle (CONTRACT, Ledger)
    painter = studio(1 << 20)
    for amount in (500, 500, 300):
        painter.holdings.caches(amount)
        (view,) = [view for view in painter.holdings.views() if view.cache]
        assert (view.name, view.used, view.capacity) == ("replica/rep-a/embedding_bytes", amount, 1 << 20)
    painter.check_invariants()


def test_what_nobody_predicts_is_not_told_as_zero() -> None:
    blind = Holdings("rep-a")
    blind.check(picture("req-1", size=1 << 14))
    assert blind.has_room(picture("req-1", size=1 << 14), 100)
    assert [view.name for view in blind.views()] == ["replica/rep-a/checkpoint_bytes", "replica/rep-a/embedding_bytes"]
