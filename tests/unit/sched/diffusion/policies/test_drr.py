"""Turns between batch keys by measured device time."""

import pytest
from tests.unit.sched.diffusion.pictures import MS, machine, picture

from headway.core.errors import ConfigError
from headway.core.request import DiffusionRequest
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.registry import PolicyChoice


def drr(quantum_s: float) -> PolicyChoice:
    return PolicyChoice("drr", {"quantum_s": quantum_s})


def of(size: int, number: int, **more: object) -> DiffusionRequest:
    return picture(f"req-{size}-{number}", size=size, arrived_ns=number, **more)


def served(painter: DiffusionMachine, requests: list[DiffusionRequest]) -> list[int]:
    """Add all, run to the end with 1 ms per step and 16 pixels of a side; return the sides in order."""
    sizes = {painter.add(request): request.height for request in requests}
    order = []
    while (plan := painter.plan()) is not None:
        if plan.rows[0].start == 0:
            order.append(sizes[plan.rows[0].seq])
        painter.done(plan.step, plan.height // 16 * MS * plan.rows[0].count)
        painter.check_invariants()
    return order


def test_a_crowd_of_large_pictures_does_not_hold_up_small_ones() -> None:  # SPEC F5; vllm-omni#3831, PR#3860
    crowd = [of(128, number) for number in range(4)]
    small = [of(64, number) for number in range(10, 14)]
    order = served(machine(order=drr(0.012), batch_max=1), crowd + small)
    assert order == [128, 64, 64, 128, 64, 64, 128, 128]  # 24 ms each, and 12: as much time for both


def test_a_crowd_of_small_pictures_does_not_starve_large_ones() -> None:
    crowd = [of(64, number) for number in range(20)]
    order = served(machine(order=drr(0.012), batch_max=1), [*crowd, of(128, 90), of(128, 91)])
    assert order.index(128) == 1
    assert [place for place, size in enumerate(order) if size == 128] == [1, 4]


def test_within_a_quantum_arrival_decides() -> None:
    mixed = [of(64, 0), of(64, 1), of(128, 2), of(64, 3)]
    assert served(machine(order=drr(1.0), batch_max=1), mixed) == [64, 64, 128, 64]


def test_a_key_that_comes_back_saves_nothing_up() -> None:
    painter = machine(order=drr(0.012), batch_max=1)
    served(painter, [of(64, number) for number in range(6)])  # 128 was not there
    later = [of(128, number) for number in range(20, 23)] + [of(64, number) for number in range(30, 34)]
    assert served(painter, later) == [128, 64, 64, 128, 64, 64, 128]


def test_a_turn_serves_as_many_of_its_key_as_share_a_batch() -> None:
    painter = machine(order=drr(0.012), batch_max=2)
    mixed = [of(128, 0), of(64, 1), of(128, 2), of(64, 3)]
    assert served(painter, mixed) == [128, 64]


def test_tenants_are_all_the_same() -> None:
    crowd = [of(64, number, tenant="a") for number in range(3)] + [of(64, 10, tenant="b")]
    painter = machine(order=drr(0.012), batch_max=1)
    names = {painter.add(request): request.tenant for request in crowd}
    order = []
    while (plan := painter.plan()) is not None:
        order.append(names[plan.rows[0].seq])
        painter.done(plan.step, MS)
    assert order[-3:] == ["b"] * 3  # three steps of it


def test_a_quantum_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantum_s"):
        machine(order=drr(0.0))


def test_keys_that_are_long_gone_are_forgotten() -> None:
    painter = machine(order=drr(0.012), batch_max=1)
    for number in range(1030):
        painter.add(of(64, number, guidance_scale=float(number)))
        while (plan := painter.plan()) is not None:
            painter.done(plan.step, MS // 100)
    policy = painter._turns
    assert policy is not None
    assert len(policy._served) <= 1025  # type: ignore[attr-defined]  # what it remembers
