"""First come, first served."""

from tests.unit.sched.diffusion.pictures import begun, machine, picture


def test_begins_in_order_of_arrival_whatever_the_work() -> None:
    painter = machine(batch_max=1)
    painter.add(picture("req-1", steps=90, arrived_ns=5))
    painter.add(picture("req-2", steps=1, arrived_ns=5))
    painter.add(picture("req-3", steps=1, arrived_ns=3))
    assert begun(painter) == [[3], [1], [2]]
