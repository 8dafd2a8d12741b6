"""Shortest job first with aging."""

from tests.unit.sched.diffusion.pictures import COST, begun, machine, picture

from headway.cost.diffusion import left_ns
from headway.sched.registry import PolicyChoice


def order(stretch: float) -> list[list[int]]:
    """A long request, and short ones that come half and one and a half times its work later."""
    long = picture("req-1", steps=100)
    work = left_ns(COST, long)
    painter = machine(order=PolicyChoice("sjf_aging", {"stretch": stretch}), batch_max=1)
    painter.add(long)
    painter.add(picture("req-2", steps=1, arrived_ns=work // 2))
    painter.add(picture("req-3", steps=1, arrived_ns=work * 3 // 2))
    return begun(painter)


def test_is_overtaken_only_by_what_comes_within_its_stretched_work() -> None:  # SPEC F5
    assert order(1.0) == [[2], [1], [3]]


def test_without_stretch_it_is_first_come_first_served_and_with_much_of_it_shortest_first() -> None:
    assert order(0.0) == [[1], [2], [3]]
    assert order(50.0) == [[2], [3], [1]]
