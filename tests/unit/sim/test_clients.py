import pytest

from headway.core.effects import Deliver, End
from headway.core.errors import InvariantError
from headway.core.ids import RequestId
from headway.core.request import FinishReason
from headway.sim.clients import Clients, Stream

REQ = RequestId("req-1")


def clients() -> Clients:
    made = Clients()
    made.start(REQ, Stream(100))
    return made


def test_a_stream_knows_its_times() -> None:
    made = clients()
    for index, at_ns in enumerate((150, 160, 190)):
        made.deliver(Deliver(REQ, index, (7,)), at_ns)
    stream = made.end(End(REQ, FinishReason.LENGTH), 200)
    assert (stream.ttft_ns, stream.tpot_ns, stream.tokens) == (50, 20.0, [7, 7, 7])
    assert made.open == 0


def test_gaps_repetitions_and_second_ends_are_noticed() -> None:  # SPEC C4
    for wrong in (Deliver(REQ, 1, (7,)), Deliver(REQ, 5, (7,))):
        made = clients()
        with pytest.raises(InvariantError, match="expected 0"):
            made.deliver(wrong, 0)
    made = clients()
    made.end(End(REQ, FinishReason.STOP), 0)
    with pytest.raises(InvariantError, match="after its end"):
        made.deliver(Deliver(REQ, 0, (7,)), 0)
    with pytest.raises(InvariantError, match="twice"):
        made.end(End(REQ, FinishReason.STOP), 0)
