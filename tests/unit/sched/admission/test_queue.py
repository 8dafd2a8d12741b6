import pytest
from tests.unit.sched.router.views import llm

from headway.core.errors import InvariantError
from headway.core.ids import TenantId
from headway.core.units import NS_PER_S
from headway.sched.admission.queue import GlobalQueue, QueueParams, line_of

LINE = line_of(llm("req-1"))


def drained(queue: GlobalQueue) -> list[str]:
    names = []
    while (head := queue.head(LINE, 0)) is not None:
        names.append(head)
        queue.remove(head)
    return names


def test_most_urgent_first_then_by_arrival_then_by_id() -> None:
    queue = GlobalQueue()
    queue.push(llm("req-c", arrived_ns=5))
    queue.push(llm("req-b", arrived_ns=5))
    queue.push(llm("req-a", arrived_ns=9, urgency=1))
    queue.push(llm("req-d", arrived_ns=1))
    assert drained(queue) == ["req-a", "req-d", "req-b", "req-c"]


def test_a_request_that_comes_back_keeps_its_place() -> None:
    queue = GlobalQueue()
    for name, arrived in (("req-a", 1), ("req-b", 2)):
        queue.push(llm(name, arrived_ns=arrived))
    queue.remove(llm("req-a").id)
    queue.push(llm("req-a", arrived_ns=1))
    assert drained(queue) == ["req-a", "req-b"]


def test_a_request_cannot_wait_twice() -> None:
    queue = GlobalQueue()
    queue.push(llm("req-a"))
    with pytest.raises(InvariantError, match="waits twice"):
        queue.push(llm("req-a"))


def test_a_removed_request_leaves_no_trace() -> None:
    queue = GlobalQueue()
    for name in ("req-a", "req-b", "req-c"):
        queue.push(llm(name))
    assert queue.remove(llm("req-b").id)
    assert not queue.remove(llm("req-b").id)
    assert len(queue) == queue.length(LINE) == 2
    assert queue.tokens(LINE) == 20
    assert drained(queue) == ["req-a", "req-c"]
    assert queue.lines() == []


# SPEC A9
def test_waiting_adds_steps_of_urgency_up_to_the_cap_and_the_class_stays() -> None:
    queue = GlobalQueue(QueueParams(aging_s=1.0, aging_steps_max=2, low_share=0))
    queue.push(llm("req-old", arrived_ns=0))
    queue.push(llm("req-two", arrived_ns=9 * NS_PER_S, urgency=2))
    queue.push(llm("req-three", arrived_ns=9 * NS_PER_S, urgency=3))
    assert queue.head(LINE, 9 * NS_PER_S) == "req-three"  # 9 steps would be more than 3; the cap says 2
    queue.remove(llm("req-three").id)
    assert queue.head(LINE, 9 * NS_PER_S) == "req-old"  # as urgent as the other by age, and earlier


# SPEC A9  (teradata-labs/loom#376: aging that rewrites the class degenerates to FIFO)
def test_under_lasting_overload_the_urgent_still_go_first() -> None:
    queue = GlobalQueue(QueueParams(aging_s=1.0, aging_steps_max=3, low_share=0))
    for number in range(20):
        queue.push(llm(f"req-low-{number:02}", arrived_ns=number))
    queue.push(llm("req-high", arrived_ns=100 * NS_PER_S, urgency=4))
    assert queue.head(LINE, 100 * NS_PER_S) == "req-high"


# SPEC A9
def test_the_least_urgent_get_their_share_of_dispatches() -> None:
    queue = GlobalQueue(QueueParams(aging_steps_max=0, low_share=0.1))
    for number in range(40):
        queue.push(llm(f"req-high-{number:02}", urgency=9))
        queue.push(llm(f"req-low-{number:02}"))
    low = 0
    for _ in range(30):
        head = queue.head(LINE, 0)
        assert head is not None
        low += "low" in head
        queue.dispatch(llm(head, urgency=0 if "low" in head else 9), 1, 0)
    assert low == 3


# SPEC A10
def test_between_tenants_the_least_served_goes_first_whatever_it_floods() -> None:
    queue = GlobalQueue()
    flood, calm = TenantId("flood"), TenantId("calm")
    for number in range(50):
        queue.push(llm(f"req-f{number:02}", arrived_ns=number, tenant=flood))
    queue.push(llm("req-c0", arrived_ns=60, tenant=calm))
    queue.push(llm("req-c1", arrived_ns=61, tenant=calm))
    order = []
    for _ in range(4):
        head = queue.head(LINE, 100)
        assert head is not None
        order.append(head)
        queue.dispatch(llm(head, tenant=calm if "-c" in head else flood), 5, 0)
    assert order == ["req-f00", "req-c0", "req-f01", "req-c1"]


def test_without_fairness_arrival_decides() -> None:
    queue = GlobalQueue(QueueParams(is_fair=False))
    for number in range(3):
        queue.push(llm(f"req-f{number}", arrived_ns=number, tenant=TenantId("flood")))
    queue.dispatch(llm("req-f0", tenant=TenantId("flood")), 5, 0)
    queue.push(llm("req-c", arrived_ns=9, tenant=TenantId("calm")))
    assert queue.head(LINE, 9) == "req-f1"


# SPEC A9, A10
def test_a_class_that_is_served_does_not_age_so_a_long_queue_wins_nothing() -> None:
    queue = GlobalQueue(QueueParams(aging_s=1.0, low_share=0))
    flood, calm = TenantId("flood"), TenantId("calm")
    for number in range(9):
        queue.push(llm(f"req-f{number}", arrived_ns=number, tenant=flood))
    queue.dispatch(llm("req-f0", tenant=flood), 5, 100 * NS_PER_S)
    queue.push(llm("req-c", arrived_ns=100 * NS_PER_S, tenant=calm))
    queue.dispatch(llm("req-f1", tenant=flood), 5, 100 * NS_PER_S)
    assert queue.head(LINE, 100 * NS_PER_S) == "req-c"  # though the others have waited a hundred steps
