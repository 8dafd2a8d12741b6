"""Least slack first."""

from tests.unit.sched.diffusion.pictures import COST, begun, machine, picture

from headway.core.request import Slo
from headway.cost.diffusion import left_ns
from headway.sched.registry import PolicyChoice


def test_begins_what_must_begin_first_to_be_in_time() -> None:  # SPEC F5
    painter = machine(order=PolicyChoice("least_slack", {"default_s": 1.0}), batch_max=1)
    due = left_ns(COST, picture("req-0", steps=50))
    painter.add(picture("req-1", steps=1, slo=Slo(e2e_deadline_ns=due)))
    painter.add(picture("req-2", steps=49, slo=Slo(e2e_deadline_ns=due + 1)))  # later, but with more to do
    painter.add(picture("req-3", steps=1))  # due after a second
    assert begun(painter) == [[2], [1], [3]]


def test_a_chunk_goes_by_when_it_is_played_or_by_its_deadline_if_that_is_sooner() -> None:  # SPEC H5, F5
    painter = machine(order=PolicyChoice("least_slack", {"default_s": 1.0}), batch_max=1)
    due = 2 * left_ns(COST, picture("req-0", steps=50))
    painter.add(picture("req-1", steps=1, slo=Slo(e2e_deadline_ns=due)))
    painter.add(picture("req-2", steps=1, played_ns=due - 1))
    painter.add(picture("req-3", steps=1, played_ns=due + 1, slo=Slo(e2e_deadline_ns=due - 2)))
    painter.add(picture("req-4", steps=1, played_ns=0))  # it is late, and is made all the same
    assert begun(painter) == [[4], [3], [2], [1]]
