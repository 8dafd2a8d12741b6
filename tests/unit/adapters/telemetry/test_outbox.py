import threading
from collections.abc import Sequence

from headway.adapters.telemetry.outbox import Outbox, OutboxLimits

NOW = OutboxLimits(waiting_max=4, batch_max=2, gather_s=0.0)
PATIENCE_S = 30.0


def test_everything_arrives_in_order_and_in_bounded_batches() -> None:
    got: list[list[int]] = []

    def deliver(batch: Sequence[int]) -> int:
        got.append(list(batch))
        return 0

    outbox = Outbox("test", deliver, OutboxLimits(100, 2, 0.0))
    for number in range(7):
        outbox.put(number)
    outbox.close(PATIENCE_S)
    assert [item for batch in got for item in batch] == list(range(7))
    assert max(map(len, got)) <= 2
    assert outbox.lost == 0


def test_a_place_that_is_stuck_costs_items_and_never_the_caller() -> None:
    # SPEC I4
    begun, go = threading.Event(), threading.Event()

    def deliver(batch: Sequence[int]) -> int:
        begun.set()
        go.wait(PATIENCE_S)
        return 0

    outbox = Outbox("test", deliver, NOW)
    outbox.put(0)
    assert begun.wait(PATIENCE_S)
    for number in range(10):
        outbox.put(number)
    assert outbox.lost == 10 - 4
    go.set()
    outbox.close(PATIENCE_S)
    assert outbox.lost == 6


def test_what_was_left_just_before_the_end_arrives() -> None:
    for _ in range(200):
        got: list[int] = []

        def deliver(batch: Sequence[int], got: list[int] = got) -> int:
            got.extend(batch)
            return 0

        outbox = Outbox("test", deliver, OutboxLimits(100, 2, 0.0))
        for number in range(5):
            outbox.put(number)
        outbox.close(PATIENCE_S)
        assert got == [0, 1, 2, 3, 4]


def test_what_a_place_refuses_is_counted_and_the_next_batch_is_tried() -> None:
    got: list[int] = []

    def deliver(batch: Sequence[int]) -> int:
        if 0 in batch:
            raise OSError("no space left")
        if 2 in batch:
            return 1
        got.extend(batch)
        return 0

    outbox = Outbox("test", deliver, OutboxLimits(100, 1, 0.0))
    for number in (0, 2, 3, 4):
        outbox.put(number)
    outbox.close(PATIENCE_S)
    assert (got, outbox.lost) == ([3, 4], 2)
