"""The waiting line."""

from tests.unit.sched.diffusion.pictures import picture

from headway.core.request import DiffusionRequest
from headway.sched.diffusion.policies.fifo import Fifo
from headway.sched.diffusion.protocols import Item, batch_key
from headway.sched.diffusion.queue import WaitingLine


def item(seq: int, request: DiffusionRequest) -> Item:
    return Item(seq, request, batch_key(request), work_ns=10 * seq)


def test_keeps_the_order_over_all_and_within_each_key() -> None:
    line = WaitingLine(Fifo(Fifo.Params()))
    items = [item(seq, picture(f"req-{seq}", size=(32, 64)[seq % 2], arrived_ns=9 - seq)) for seq in range(1, 7)]
    for one in items:
        line.add(one)
    assert [one.seq for _rank, one in line.first(4)] == [6, 5, 4, 3]
    assert [one.seq for one in line.alike(items[0], 2)] == [5, 3]
    assert line.check()


def test_what_left_is_gone_from_both_views_and_its_work_too() -> None:
    line = WaitingLine(Fifo(Fifo.Params()))
    one, two = item(1, picture("req-1")), item(2, picture("req-2"))
    line.add(one)
    line.add(two)
    assert line.remove(one)
    assert not line.remove(one)
    assert (len(line), line.work_ns, [held.seq for held in line.alike(two, 9)]) == (1, 20, [2])
    assert line.remove(two)
    assert line.alike(two, 9) == []
    assert line.check()
