"""Routing policies on the first rows of the Mooncake trace, small enough for every test run."""

from functools import lru_cache
from pathlib import Path

import pytest

from headway.bench.routing import RoutingSummary, Window, run
from headway.bench.routing_study import SLO
from headway.sim.routing_fleet import Choice, Setup
from headway.workload.mooncake import Slice, read_trace, requests

HEAD = Path(__file__).parent / "mooncake_head.jsonl"


@lru_cache
def summary(policy: str, seen: str = "exact", fleet: str = "uniform", rate: float = 19_000.0) -> RoutingSummary:
    """Two replicas past the knee of a policy that knows no prefixes."""
    part = Slice(count=110, prompt_tokens_per_s=2 * rate, seed=1, deadlines=SLO)
    offered = list(requests(read_trace(HEAD), part, "llama-3-70b"))
    setup = Setup(fleet, 2, Choice(policy), Choice("open"), seen)
    return run(setup.params(), offered, Window(warm=30, cool=6))


TIE = 3.5 / 74  # of 74 requests, three: what a small change of the load moves them by


@pytest.mark.parametrize("rival", ["round_robin", "least_tokens", "cache_aware"])
def test_cost_aware_keeps_as_many_promises_past_the_knee(rival: str) -> None:  # SPEC A1
    assert summary("cost_aware").attainment >= summary(rival).attainment - TIE


@pytest.mark.parametrize("rival", ["round_robin", "least_tokens"])
def test_a_scraped_fleet_is_no_reason_to_do_worse_than_balancing(rival: str) -> None:  # SPEC A5
    assert summary("cost_aware", "scrape").attainment >= summary(rival, "scrape").attainment - TIE


def test_a_slow_replica_gets_less() -> None:
    even, ours = (
        summary("round_robin", fleet="mixed", rate=10_000.0),
        summary("cost_aware", fleet="mixed", rate=10_000.0),
    )
    assert ours.imbalance > 1.2 > even.imbalance
    assert ours.attainment > even.attainment
