from tests.unit.sched.router.views import llm

from headway.core.ids import NodeId, RequestId, TenantId
from headway.sched.router.presence import Flights

A, B = NodeId("rep-a"), NodeId("rep-b")
DEFAULT = TenantId("default")


def test_a_flight_is_counted_once_and_leaves_once() -> None:  # sglang-omni PR#931, vllm-router PR#197
    flights = Flights()
    flights.sent(llm("req-1"), A)
    flights.sent(llm("req-1"), B)  # again: the end at A was never told
    assert (len(flights), flights.by_tenant) == (1, {DEFAULT: 1})
    flights.ended(RequestId("req-1"), A, 5)  # too late, and not from where it is
    assert len(flights) == 1
    for _ in range(2):
        flights.ended(RequestId("req-1"), B, 6)
    assert (len(flights), flights.by_tenant) == (0, {})


def test_each_replica_knows_its_tenants() -> None:
    flights = Flights()
    flights.sent(llm("req-1", tenant="t1"), A)
    flights.sent(llm("req-2", tenant="t2"), B)
    at = flights.at(A)
    assert at is not None
    assert at.by_tenant == {"t1": 1}
    assert flights.by_tenant == {"t1": 1, "t2": 1}


def test_a_lost_replica_takes_its_flights_along() -> None:
    flights = Flights()
    flights.sent(llm("req-1"), A)
    flights.sent(llm("req-2"), B)
    flights.left(A)
    assert (len(flights), flights.at(A)) == (1, None)
    assert flights.began(RequestId("req-1"), A, 1) is None


def test_a_replica_was_heard_of_when_it_sent_something() -> None:
    flights = Flights()
    flights.sent(llm("req-1"), A)
    assert flights.heard_ns(A) == flights.heard_ns(B) == -1
    flights.began(RequestId("req-1"), A, 7)
    assert flights.heard_ns(A) == 7
