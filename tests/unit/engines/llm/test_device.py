import numpy as np
from tests.unit.engines.llm.late_device import LateDevice

from headway.engines.llm.device import Staging


def test_a_buffer_stays_where_it_is_while_its_arrays_fit() -> None:
    # SPEC E1
    staging = Staging(LateDevice())
    staging.reserve("tokens", 8)
    first = staging.place("tokens", np.arange(8, dtype=np.int32))
    second = staging.place("tokens", np.array([7, 9], np.int32))
    assert first.data_ptr() == second.data_ptr()
    assert (staging.view("tokens", 4).tolist(), staging.moves) == ([7, 9, 2, 3], 0)


def test_a_buffer_that_must_move_is_counted() -> None:
    staging = Staging(LateDevice())
    staging.reserve("tables", 2, 3)
    assert staging.place("tables", np.ones((4, 3), np.int32)).shape == (4, 3)
    assert staging.moves == 1


def test_an_array_may_be_overwritten_as_soon_as_it_is_placed() -> None:
    # SPEC E2
    staging, array = Staging(LateDevice()), np.array([1, 2], np.int32)
    placed = staging.place("tokens", array)
    array[:] = 0
    assert placed.tolist() == [1, 2]
