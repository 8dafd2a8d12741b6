"""What a step borrows returns however the step ends (SPEC E2)."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.unit.engines.llm.stream_device import StreamDevice

from headway.core.errors import EngineError, InvariantError
from headway.engines.llm.device import Lane
from headway.engines.llm.leases import LeasePool

ONES, TWOS = np.full(8, 1, np.int32), np.full(8, 2, np.int32)


@pytest.fixture
def device() -> Iterator[StreamDevice]:
    """Nothing runs before it must."""
    device = StreamDevice(0)
    device.eager = dict.fromkeys(device.eager, 0.0)
    with device.mode():
        yield device


@pytest.fixture
def pool(device: StreamDevice) -> LeasePool:
    return LeasePool(device, 1024)


def on_device(device: StreamDevice) -> torch.Tensor:
    return torch.zeros(8, dtype=torch.int32, device=device.where)


def seen(device: StreamDevice, tensor: torch.Tensor) -> list[int]:
    found = tensor.cpu().tolist()
    assert isinstance(found, list)
    return found


# SPEC E2
def test_memory_goes_back_when_no_lane_works_on_it(device: StreamDevice, pool: LeasePool) -> None:
    kept, first = on_device(device), pool.lease("step-1")
    there = first.put(ONES)
    first.arrive()
    kept.copy_(there)
    first.end()
    second = pool.lease("step-2")
    second.put(TWOS)
    second.arrive()
    device.reach("copy_in", device.given["copy_in"])
    assert pool.all == 1
    assert seen(device, kept) == [1] * 8


# SPEC E2
def test_a_lease_ends_once(pool: LeasePool) -> None:
    lease = pool.lease("step-1")
    lease.end()
    lease.end()
    pool.end("step-1")
    pool.end_all()
    assert (pool.free, pool.all, pool.names) == (1, 1, ())


# SPEC E2
def test_a_lease_whose_results_came_ends_without_waiting(device: StreamDevice, pool: LeasePool) -> None:
    lease, later = pool.lease("step-1"), pool.lease("step-2")
    wait = lease.fetch(on_device(device))
    later.put(ONES)
    later.arrive()
    assert wait().tolist() == [0] * 8
    behind = {lane: device.given[lane] for lane in device.given}
    lease.end()
    later.end()
    assert device.given == behind
    assert pool.free == pool.all == 2


# SPEC E2
def test_results_stay_what_they_were_when_the_memory_has_another_lease(device: StreamDevice, pool: LeasePool) -> None:
    first = pool.lease("step-1")
    wait = first.fetch(on_device(device))
    found = wait()
    first.end()
    second = pool.lease("step-2")
    again = second.fetch(fives(device))
    assert (again().tolist(), found.tolist(), wait().tolist()) == ([5] * 8, [0] * 8, [0] * 8)


def fives(device: StreamDevice) -> torch.Tensor:
    return torch.full((8,), 5, dtype=torch.int32, device=device.where)


# SPEC E2
def test_results_of_a_lease_that_ended_before_are_refused(device: StreamDevice, pool: LeasePool) -> None:
    lease = pool.lease("step-1")
    wait = lease.fetch(on_device(device))
    pool.end_all()
    with pytest.raises(EngineError, match="step-1 ended before it was done"):
        wait()
    with pytest.raises(EngineError, match="step-1 ended before it was done"):
        lease.put(ONES)


# SPEC E2
def test_a_device_that_fails_keeps_no_memory(
    device: StreamDevice, pool: LeasePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = pool.lease("step-1")
    lease.put(ONES)
    lease.arrive()

    def lost() -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(device, "drain", lost)
    lease.end()
    assert pool.free == pool.all == 1


def test_nothing_is_brought_after_the_results_were_asked_for(device: StreamDevice, pool: LeasePool) -> None:
    lease = pool.lease("step-1")
    lease.fetch(on_device(device))
    with pytest.raises(InvariantError, match="step-1 brings more after its results"):
        lease.put(ONES)


def test_a_name_holds_one_lease_at_a_time(pool: LeasePool) -> None:
    pool.lease("step-1")
    with pytest.raises(InvariantError, match="step-1 holds a lease already"):
        pool.lease("step-1")


def test_a_slot_grows_once_for_a_step_that_brings_more(
    device: StreamDevice, pool: LeasePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    pinned = device.pinned
    monkeypatch.setattr(device, "pinned", lambda size: made.append(size) or pinned(size))
    large = np.arange(1000, dtype=np.int64)
    for step in range(3):
        lease = pool.lease(f"step-{step}")
        small, there = lease.put(ONES), lease.put(large)
        lease.arrive()
        assert seen(device, small) == [1] * 8
        assert seen(device, there) == large.tolist()
        lease.end()
    assert made == [1024, 4096, 8448]


@pytest.mark.parametrize("lane", ["copy_in", "copy_out"])
def test_a_capture_that_uses_a_copy_lane_is_refused(device: StreamDevice, pool: LeasePool, lane: Lane) -> None:
    # SPEC E1: a replay would not repeat it.
    lease = pool.lease("step-1")

    def computed() -> torch.Tensor:
        if lane == "copy_in":
            lease.put(ONES)
            lease.arrive()
        else:
            lease.fetch(on_device(device))
        return on_device(device)

    with pytest.raises(InvariantError, match="within a capture"):
        device.capture(computed)
