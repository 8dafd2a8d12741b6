import numpy as np
import torch
from tests.unit.engines.llm.late_device import LateDevice

from headway.engines.llm.leases import LeasePool
from headway.engines.llm.staging import Staging


def begun() -> Staging:
    device = LateDevice()
    staging = Staging(device)
    staging.begin(LeasePool(device, 1024).lease("step-1"))
    return staging


def test_a_buffer_stays_where_it_is_while_its_arrays_fit() -> None:
    # SPEC E1
    staging = begun()
    staging.reserve("tokens", 8)
    first = staging.place("tokens", np.arange(8, dtype=np.int32))
    staging.land()
    second = staging.place("tokens", np.array([7, 9], np.int32))
    staging.land()
    assert first.data_ptr() == second.data_ptr()
    assert (staging.view("tokens", 4).tolist(), staging.moves) == ([7, 9, 2, 3], 0)


def test_a_buffer_that_must_move_is_counted() -> None:
    staging = begun()
    staging.reserve("tables", 2, 3)
    placed = staging.place("tables", np.ones((4, 3), np.int32))
    staging.land()
    assert torch.equal(placed, torch.ones(4, 3, dtype=torch.int32))
    assert staging.moves == 1


def test_an_array_may_be_overwritten_as_soon_as_it_is_placed() -> None:
    # SPEC E2
    staging, array = begun(), np.array([1, 2], np.int32)
    placed, uploaded = staging.place("tokens", array), staging.upload(array)
    array[:] = 0
    staging.land()
    assert (placed.tolist(), uploaded.tolist()) == ([1, 2], [1, 2])


def test_of_an_array_that_is_placed_twice_the_second_lands() -> None:
    staging = begun()
    staging.place("tokens", np.array([1, 2, 3], np.int32))
    staging.place("tokens", np.array([7, 8, 9], np.int32))
    staging.land()
    assert staging.view("tokens", 3).tolist() == [7, 8, 9]
