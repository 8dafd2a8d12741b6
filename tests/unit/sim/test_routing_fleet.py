from pathlib import Path

import pytest
from tests.sim.test_belief_and_truth import reachable

from headway.sched.registry import PolicyChoice
from headway.sim.driver import Simulation
from headway.sim.executor import SimExecutor
from headway.sim.fleet import FRONT
from headway.sim.hardware import RooflineTruth
from headway.sim.routing_fleet import FAST, RoutingFleet, RoutingFleetParams, kinds
from headway.sim.scrape import ScrapeParams
from headway.workload.mooncake import Slice, read_trace, requests
from headway.workload.offered import Offered

HEAD = Path(__file__).parents[2] / "sim/mooncake_head.jsonl"
OPEN = PolicyChoice("bounded", {"queue_max": 1_000_000, "confidence_min": 1e9})


def offered(count: int = 16, rate: float = 30_000.0) -> list[Offered]:
    return list(requests(read_trace(HEAD), Slice(count=count, prompt_tokens_per_s=rate), "llama-3-70b"))


def ran(scrape: ScrapeParams | None = None, fleet: str = "uniform", *, log: bool = False) -> RoutingFleet:
    params = RoutingFleetParams(kinds(fleet, 2), PolicyChoice("least_tokens"), OPEN, scrape=scrape, log=log)
    items = offered()
    simulated = RoutingFleet(params, items)
    clients = simulated.sim.clients
    simulated.sim.run(is_done=lambda: len(clients.streams) == len(items) and not clients.open)
    return simulated


def test_every_answer_is_as_long_as_the_trace_says() -> None:  # SPEC J1
    fleet = ran()
    assert {item.request.id: item.output_tokens for item in offered()} == {
        name: len(stream.tokens) for name, stream in fleet.sim.clients.streams.items()
    }


def test_the_same_study_gives_the_same_log() -> None:  # SPEC J6
    assert ran(log=True).sim.log.digest() == ran(log=True).sim.log.digest()


def test_no_node_reaches_the_truth_or_the_lengths() -> None:  # SPEC J1, J3
    for scrape in (None, ScrapeParams()):
        fleet = ran(scrape)
        for node in (FRONT, *fleet.replicas):
            found = [
                item
                for item in reachable(fleet.sim.lives[node].node)
                if isinstance(item, Simulation | SimExecutor | RooflineTruth) or item is fleet._lengths
            ]
            assert found == []


def test_a_scraped_fleet_is_known_only_from_its_pages() -> None:
    fleet = ran(ScrapeParams(interval_s=0.5, delay_s=0.1))
    for replica in fleet.front.router.replicas.values():
        assert replica.source == "scrape"
        assert replica.report is not None
        assert replica.report.prefill_tokens_per_s == 0  # what the front believes, it has measured itself
        assert replica.report.step_cost is None


def test_the_fleets_differ_as_they_are_named() -> None:
    assert kinds("uniform", 8) == (FAST,) * 8
    starved, mixed = kinds("starved", 8), kinds("mixed", 8)
    assert [kind.kv_blocks * 8 < FAST.kv_blocks for kind in starved] == [False] * 7 + [True]
    assert sum(kind.truth.device.name.startswith("A100") for kind in mixed) == 4
    with pytest.raises(ValueError, match="'odd'"):
        kinds("odd", 8)


def test_even_the_starved_replica_can_hold_the_longest_request() -> None:
    fleet = ran(fleet="starved")
    assert all(stream.end is not None and stream.end.error is None for stream in fleet.sim.clients.streams.values())
