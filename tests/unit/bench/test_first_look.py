import msgspec
import pytest

from headway.bench.first_look import first_look
from headway.bench.results import Tally
from headway.bench.run_summary import Closing, GroupSummary, PoolUse, RunSummary
from headway.bench.series import Point, PoolPoint
from headway.bench.summary import Quantiles

NONE = Quantiles(0)
CALM = msgspec.structs.replace(
    Tally().summary(Closing(10.0)),
    sent=100,
    completed=100,
    attainment=0.97,
    ttft_ms=Quantiles(100, 10.0, 10.0, 20.0, 30.0, 40.0),
    queue_ms=Quantiles(100, 1.0, 1.0, 2.0, 3.0, 4.0),
    itl_ms=Quantiles(100, 10.0, 10.0, 20.0, 30.0, 40.0),
    attained={"ttft": 0.97, "tpot": 1.0, "e2e": None, "deadlines": 0.9},
)


def changed(**fields: object) -> RunSummary:
    return msgspec.structs.replace(CALM, **fields)


def pool(busy: float, kv: float, p95: float) -> dict[str, object]:
    group = GroupSummary(100, 100, 1.0, 1.0, 1, 0, 1, NONE, NONE, NONE, Quantiles(100, 1.0, 1.0, p95, p95, p95))
    return {"pool_use": {"chat": PoolUse(1, 1, busy, kv, {"preemptions": 7})}, "pools": {"chat": group}}


def points(*waiting: float) -> list[Point]:
    return [
        Point(place, place + 1, 1, 1, 0, 1, 1, count + 1, count, {"chat": PoolPoint(0.0, 1.0)}, {})
        for place, count in enumerate(waiting)
    ]


def test_a_calm_run_says_so_with_its_numbers() -> None:
    found = first_look(changed(**pool(0.5, 0.5, 1.0)), points(1, 1, 1, 1))
    assert found == ["97.0% of 100 requests kept every promise; the busiest pool, chat, was busy 50%."]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"complete": False, "unfinished": 5, "virtual_s": 3.0}, "interrupted after 3.0 virtual s; 5 requests"),
        ({"unfinished": 5, "oldest_unfinished_s": 2.0}, "5 requests had not ended when the run was over"),
        ({"errors": {"queue_full": 9}}, "9 of 100 requests failed or were refused (9 queue_full)"),
        ({"attainment": 0.5, "attained": {"ttft": 0.5, "tpot": 1.0}}, "look at queues, prefill and routing"),
        ({"attainment": 0.5, "attained": {"ttft": 1.0, "tpot": 0.5}}, "chunks that interrupt decodes"),
        ({"attainment": 0.5, "completed": 55}, "90.9% of those that completed: what was refused or lost is most"),
        ({"queue_ms": Quantiles(100, 9.0, 9.0, 20.0, 29.0, 30.0)}, "p99 of all queues 29 ms, p99 of TTFT 30 ms"),
        ({"jain_tenants": 0.5}, "Jain's index 0.50"),
        ({"itl_ms": Quantiles(100, 10.0, 10.0, 20.0, 90.0, 99.0)}, "10 ms (p50) but 90 ms (p99)"),
        (pool(0.99, 0.5, 500.0), "Pool chat was busy 99% of the time while requests waited 500 ms"),
        (pool(0.2, 0.5, 500.0), "Pool chat was busy 20% only, yet requests waited 500 ms"),
        (pool(0.5, 0.99, 1.0), "KV of pool chat was 99% full at its peak, with 7 preemptions"),
    ],
)  # fmt: skip
def test_each_symptom_is_told_with_the_numbers_that_show_it(fields: dict[str, object], words: str) -> None:
    (line,) = first_look(changed(**fields), points(1, 1, 1, 1))
    assert words in line


def test_a_batching_device_that_is_busy_with_nobody_waiting_is_no_symptom() -> None:
    (line,) = first_look(changed(**pool(0.99, 0.5, 1.0)), points(1, 1, 1, 1))
    assert "kept every promise" in line


def test_queues_that_grow_to_the_end_are_told() -> None:
    (line,) = first_look(CALM, points(1, 2, 6, 40))
    assert "Queues grew until the end (mean 2.0 waiting in the second quarter, 40.0 in the last)" in line


def test_queues_that_came_and_went_are_not() -> None:
    (line,) = first_look(CALM, points(1, 40, 20, 2))
    assert "grew" not in line
