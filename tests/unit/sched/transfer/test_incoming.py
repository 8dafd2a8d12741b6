from tests.unit.sched.router.views import llm

from headway.core.effects import Effect, Send, WakeAt
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, TransferId
from headway.core.messages import Abort, SequenceState, StageAck, TakeOver
from headway.core.request import Slo
from headway.sched.transfer.incoming import Incoming, Origin, Patience, Stage

SOURCE, FRONT = NodeId("rep-b"), NodeId("front-0")
REQUEST = llm("req-1", prompt=30)
STATE = SequenceState(REQUEST.id, REQUEST.prompt, (7, 8, 9), REQUEST.sampling, Slo(), 0, 0)
MARKS = WorkerMarks(SOURCE, 0)


def incoming() -> tuple[Incoming, list[Effect]]:
    return Incoming(Origin(TransferId("x"), REQUEST, 4, SOURCE, FRONT), Patience(1000, 50)), []


def sent(out: list[Effect]) -> list[tuple[str, object]]:
    return [(effect.dst, effect.message) for effect in out if isinstance(effect, Send)]


def test_acknowledges_stages_in_order_once_sent_and_arrived() -> None:  # SPEC C4
    transfer, out = incoming()
    transfer.arrived(1, out)
    transfer.sent(1, 32, out)
    transfer.sent(0, 16, out)
    assert out == []
    transfer.arrived(0, out)
    assert sent(out) == [(SOURCE, StageAck(TransferId("x"), 0)), (SOURCE, StageAck(TransferId("x"), 1))]
    assert transfer.computed == 32


def test_asks_the_front_once_state_and_kv_are_complete() -> None:  # SPEC C4
    transfer, out = incoming()
    transfer.handed(STATE, MARKS)
    transfer.ask(0, out)
    transfer.arrived(0, out)
    transfer.sent(0, 31, out)
    transfer.ask(0, out)
    assert transfer.stage is Stage.FILLING
    transfer.arrived(1, out)
    transfer.sent(1, 32, out)
    out.clear()
    transfer.ask(5, out)
    assert sent(out) == [(FRONT, TakeOver(REQUEST.id, 5, TransferId("x"), 3))]
    assert [effect.at_ns for effect in out if isinstance(effect, WakeAt)] == [55]
    transfer.ask(6, out)
    assert len(sent(out)) == 1


def test_asks_again_when_the_front_is_silent() -> None:
    transfer, out = incoming()
    transfer.handed(STATE, MARKS)
    transfer.arrived(0, out)
    transfer.sent(0, 32, out)
    transfer.ask(0, out)
    out.clear()
    transfer.woke(60, out)
    assert [message for _, message in sent(out)] == [TakeOver(REQUEST.id, 5, TransferId("x"), 3)]


def test_room_that_nobody_fills_is_asked_back_from_the_source() -> None:  # SPEC B8
    transfer, out = incoming()
    transfer.begin(0, out)
    assert [effect.at_ns for effect in out if isinstance(effect, WakeAt)] == [1000]
    transfer.woke(1000, out)
    assert transfer.stage is Stage.LEAVING
    assert isinstance(sent(out)[-1][1], Abort)
