import pytest
from tests.unit.sched.router.views import llm

from headway.core.errors import InvariantError
from headway.sched.admission.queue import GlobalQueue, line_of

LINE = line_of(llm("req-1"))


def drained(queue: GlobalQueue) -> list[str]:
    names = []
    while (head := queue.head(LINE)) is not None:
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
