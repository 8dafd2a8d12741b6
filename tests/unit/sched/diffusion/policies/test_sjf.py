"""Shortest job first."""

import pytest
from tests.unit.sched.diffusion.pictures import begun, machine, picture

from headway.core.errors import ConfigError
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.registry import PolicyChoice

SJF = PolicyChoice("sjf")


def test_begins_the_least_work_first_and_equal_work_by_arrival() -> None:  # SPEC F5
    painter = machine(order=SJF, batch_max=1)
    painter.add(picture("req-1", steps=9))
    painter.add(picture("req-2", steps=2, arrived_ns=7))
    painter.add(picture("req-3", steps=2, arrived_ns=3))
    painter.add(picture("req-4", steps=2, size=256))  # more work in fewer steps
    assert begun(painter) == [[3], [2], [1], [4]]


def test_needs_to_know_the_work() -> None:
    with pytest.raises(ConfigError, match="'sjf' needs belief"):
        DiffusionMachine(DiffusionParams(order=SJF))
