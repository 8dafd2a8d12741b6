import pytest

from headway.core.effects import Beat, Deliver, End
from headway.core.errors import InvariantError
from headway.core.ids import NodeId, RequestId
from headway.core.request import FinishReason
from headway.sim.clients import TIMES_MAX, Clients, Stream

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


def test_a_stream_that_follows_gets_a_token_with_every_beat() -> None:
    made, replica = clients(), NodeId("rep-0")
    stream = made.deliver(Deliver(REQ, 0, (1,), follows=replica), 150)
    for at_ns in (160, 190):
        made.beat(Beat(replica, 1), at_ns)
    made.beat(Beat(NodeId("rep-1"), 1), 195)
    assert (stream.tokens, stream.times_ns) == ([1, 1, 1], [150, 160, 190])
    made.end(End(REQ, FinishReason.LENGTH), 200)
    made.beat(Beat(replica, 1), 210)
    assert stream.times_ns == [150, 160, 190]


def test_times_of_beats_are_kept_only_while_a_stream_has_to_read_them() -> None:
    made, replica = clients(), NodeId("rep-0")
    stream = made.deliver(Deliver(REQ, 0, (1,), follows=replica), 0)
    for at_ns in range(1, 3 * TIMES_MAX):
        made.beat(Beat(replica, 1), at_ns)
        if at_ns == TIMES_MAX:
            made.start(RequestId("req-2"), Stream(at_ns))
            made.deliver(Deliver(RequestId("req-2"), 0, (1,), follows=replica), at_ns)
    assert len(next(iter(made._pulses.values()))._times) < TIMES_MAX + 200
    assert stream.times_ns == list(range(3 * TIMES_MAX))
    assert made.streams[RequestId("req-2")].times_ns == list(range(TIMES_MAX, 3 * TIMES_MAX))


def test_beats_of_one_replica_through_two_fronts_are_two_rhythms() -> None:
    made, replica, other = clients(), NodeId("rep-0"), NodeId("front-1")
    made.start(RequestId("req-2"), Stream(100))
    made.deliver(Deliver(REQ, 0, (1,), follows=replica), 150)
    made.deliver(Deliver(RequestId("req-2"), 0, (1,), follows=replica), 150, other)
    made.beat(Beat(replica, 1), 160)
    made.beat(Beat(replica, 1), 161, other)
    assert [stream.times_ns for stream in made.streams.values()] == [[150, 160], [150, 161]]
