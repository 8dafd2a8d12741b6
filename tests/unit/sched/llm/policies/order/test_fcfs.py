"""First come, first served."""

from tests.property.rig import Rig


# SPEC B3
def test_admits_in_order_of_arrival() -> None:
    rig = Rig(max_seqs=1, async_depth=1)
    late, early = rig.new(4, 2, arrived_ns=9), rig.new(4, 2, arrived_ns=3)
    rig.drain()
    assert rig.admitted() == [early, late]


def test_breaks_ties_by_sequence_number() -> None:
    rig = Rig(max_seqs=1, async_depth=1)
    order = [rig.new(4, 2, arrived_ns=5) for _ in range(4)]
    rig.drain()
    assert rig.admitted() == order


def test_urgency_changes_nothing() -> None:
    rig = Rig(max_seqs=1, async_depth=1)
    first, second = rig.new(4, 2), rig.new(4, 2, urgency=9)
    rig.drain()
    assert rig.admitted() == [first, second]


def test_records_no_order_decision_since_it_prefers_nobody() -> None:
    rig = Rig(max_seqs=1)
    rig.new(4, 2)
    rig.new(4, 2)
    rig.drain()
    assert not rig.decisions("order")
