import msgspec
import pytest
from tests.unit.sched.router.views import llm, report

from headway.core.events import RequestArrived
from headway.core.ids import NodeId
from headway.core.reports import ReplicaReport, StepCoefficients
from headway.core.units import NS_PER_MS, NS_PER_S
from headway.sched.admission.protocol import Outlook
from headway.sched.book import Tracked
from headway.sched.flights import Flights, Moment

A = NodeId("rep-a")
STEP = 10 * NS_PER_MS


def flight(name: str, *, prompt: int = 100, output: int = 50, due_ms: int = 0, emitted: int | None = None) -> Tracked:
    """One that will have its first token at `due_ms`, or that has streamed `emitted` tokens by 0 ms."""
    request = llm(name, prompt=prompt, max_tokens=output, output_tokens_predicted=output)
    tracked = Tracked(RequestArrived(0, "t", request, 0, 0))
    tracked.prefill_due_ns = due_ms * NS_PER_MS
    if emitted is not None:
        tracked.first_token_ns, tracked.told = 0, [0] * emitted
    return tracked


def look(flights: Flights, until_ms: int, at: ReplicaReport | None = None, rows: float = 0.0) -> Outlook:
    told = at or report("rep-a", 1, step_ns=STEP, running=max(1, len(flights)), kv_blocks_total=100, block_size=16)
    flights.heard(told, 0)
    told = at or msgspec.structs.replace(told, running=len(flights))
    return flights.foresee(llm("req-new", prompt=160), told, Moment(0, until_ms * NS_PER_MS, rows, rows * 100))


def test_counts_prefills_that_end_before_then_and_drops_what_is_done_by_then() -> None:  # SPEC A7b
    flights = Flights()
    flights.begun(flight("req-1", due_ms=200), A)  # decodes from 200 ms to 700 ms
    flights.begun(flight("req-2", emitted=10), A)  # 40 tokens to go: until 400 ms
    flights.begun(flight("req-3", due_ms=900), A)
    assert [look(flights, ms).rows for ms in (100, 300, 500, 800, 1000)] == [1, 2, 1, 0, 1]


def test_what_waits_at_the_front_before_it_counts_too() -> None:  # SPEC A7b
    flights = Flights()
    assert (look(flights, 100).rows, look(flights, 100, rows=3).rows) == (0, 3)


def test_waits_until_enough_of_the_others_have_ended_for_its_kv() -> None:  # SPEC A7
    flights = Flights()
    for number in range(4):
        flights.begun(flight(f"req-{number}", prompt=380, emitted=10 * number), A)
    found = look(flights, 10)
    assert found.kv_usage > 1.0
    assert found.room_seconds == pytest.approx(0.19)  # the one with 20 tokens to go, 10 ms from now
    assert look(Flights(), 10).room_seconds == 0.0


def test_rows_of_other_fronts_stay() -> None:
    told = report("rep-a", 1, step_ns=STEP, running=7)
    assert look(Flights(), 10_000, told).rows == 7


def test_a_relayed_answer_is_taken_to_advance_by_the_step_time() -> None:
    flights = Flights()
    tracked = flight("req-1", emitted=0)
    flights.begun(tracked, A)
    told = report("rep-a", 1, step_ns=STEP, running=1)
    flights.heard(told, 0)
    request = llm("req-new")
    later = Moment(300 * NS_PER_MS, 301 * NS_PER_MS)
    assert flights.foresee(request, told, later).rows == 1
    assert flights.foresee(request, told, Moment(300 * NS_PER_MS, 600 * NS_PER_MS)).rows == 0


def test_what_ended_or_went_elsewhere_is_gone() -> None:
    flights = Flights()
    tracked = flight("req-1")
    flights.begun(tracked, A)
    flights.begun(tracked, NodeId("rep-b"))
    assert look(flights, 10, report("rep-a", 1, step_ns=STEP)).rows == 0
    flights.ended(tracked.request.id)
    flights.ended(tracked.request.id)
    assert len(flights) == 0


def test_a_step_of_another_batch_is_the_measured_one_as_the_belief_says_it_changes() -> None:  # SPEC A7
    """Measured 20 ms with prompts of others inside, where the belief knows 10 ms: twice as long with any batch."""
    cost = StepCoefficients(base_ns=5.0 * NS_PER_MS, row_ns=NS_PER_MS, kv_ns=0.0, token_ns=0.0, pair_ns=0.0)
    told = report("rep-a", 1, step_ns=20 * NS_PER_MS, running=5, step_cost=cost)
    flights = Flights()
    assert look(flights, 10, msgspec.structs.replace(told, step_ns=0)).step_seconds == pytest.approx(0.011)
    for _ in range(200):
        flights.heard(told, 0)
    assert look(flights, 10, told).step_seconds == pytest.approx(0.022, rel=1e-3)  # 5 rows of other fronts, and it


def test_one_long_step_is_no_pace() -> None:
    flights = Flights()
    steady = report("rep-a", 1, step_ns=STEP, running=1)
    for _ in range(100):
        flights.heard(steady, 0)
    found = look(flights, 10, msgspec.structs.replace(steady, step_ns=10 * STEP)).step_seconds
    assert 0.01 < found < 0.015
    flights.left(A)
    assert look(flights, 10, msgspec.structs.replace(steady, step_ns=10 * STEP)).step_seconds == pytest.approx(0.1)


def test_an_idle_replica_is_not_judged_by_the_crowd_it_had() -> None:  # SPEC A7
    cost = StepCoefficients(base_ns=10.0 * NS_PER_MS, row_ns=0.0, kv_ns=0.0, token_ns=0.0, pair_ns=0.0)
    told = report("rep-a", 1, step_ns=100 * NS_PER_MS, running=5, step_cost=cost)  # prompts make it ten times as long
    flights, request = Flights(), llm("req-new")
    for _ in range(200):
        flights.heard(told, 0)
    idle = msgspec.structs.replace(told, running=0)

    def after(seconds: int) -> float:
        return flights.foresee(request, idle, Moment(seconds * NS_PER_S, seconds * NS_PER_S)).step_seconds

    assert after(0) == pytest.approx(0.1, rel=1e-3)
    assert after(1) == pytest.approx(0.055, rel=1e-3)
    assert after(20) == pytest.approx(0.01, rel=1e-3)
