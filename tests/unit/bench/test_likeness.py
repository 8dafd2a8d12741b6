from collections.abc import Sequence

import pytest
from tests.sim.workloads import fleet, request, run
from tests.unit.bench.test_recorded import SMALL, recorded

from headway.bench.likeness import decisions, jitter_ns, margin_ns, times
from headway.bench.outcome import Outcome
from headway.bench.recorded import Recorded
from headway.core.ids import RequestId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS

ALONE_MS = (10, 4_000, 8_000)


def ran(arrivals_ms: Sequence[float], chunk: int = 64) -> Recorded:
    requests: list[LlmRequest] = [
        request(f"req-{n}", chunk, 5, int(ms * NS_PER_MS)) for n, ms in enumerate(arrivals_ms)
    ]
    return recorded(run(fleet(replicas=1, llm=SMALL), requests))


def test_equal_runs_decide_the_same() -> None:
    assert decisions(ran(ALONE_MS), ran(ALONE_MS), 0).equal == 3


def test_a_difference_without_a_cause_is_unexplained() -> None:
    found = decisions(ran(ALONE_MS, chunk=65), ran(ALONE_MS), 5 * NS_PER_MS)
    assert (found.equal, len(found.unexplained), found.count) == (0, 3, 3)


def test_a_difference_beside_another_arrival_is_close_and_what_it_delays_comes_after() -> None:
    # Two arrivals 1 ms apart share 64 tokens of a step, 32 each; a third one far from any other event waits for them.
    here = ran((10, 11, 17.5), chunk=60)
    found = decisions(ran((10, 30, 17.5), chunk=61), here, 2 * NS_PER_MS)
    assert found.equal == 0
    assert RequestId("req-1") in found.close
    assert not found.unexplained


def test_a_margin_is_the_distance_to_the_next_arrival_end_or_plan() -> None:
    here = ran((10, 12, 5_000))
    assert margin_ns(here, RequestId("req-0")) <= 2 * NS_PER_MS
    assert margin_ns(here, RequestId("req-2")) > NS_PER_MS


def test_jitter_ignores_what_all_arrivals_have_in_common() -> None:
    here = ran(ALONE_MS)
    plan = {name: int(arrived.at_ns) - 7_000_000 for name, arrived in here.front.arrivals.items()}
    assert jitter_ns(here, plan) == 0
    plan[RequestId("req-1")] += 300
    assert jitter_ns(here, plan) == 300


def outcome(ttft_ms: float, error: str | None = None) -> Outcome:
    first = int(ttft_ms * NS_PER_MS)
    return Outcome(0, first + 30 * NS_PER_MS, (first, first + 30 * NS_PER_MS), 4, error=error)


def test_errors_are_relative_to_live_and_failed_requests_are_left_out() -> None:
    live = {"a": outcome(100), "b": outcome(300), "c": outcome(1, error="boom")}
    found = times(live, {"a": outcome(110), "b": outcome(330), "c": outcome(900)})
    assert found["ttft"].error("mean") == pytest.approx(0.1)
    assert found["ttft"].error("p99") == pytest.approx(0.1)
    assert found["tpot"].error("mean") == 0
    assert found["e2e"].live.count == 2
