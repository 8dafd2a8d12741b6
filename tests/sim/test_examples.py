"""Every scenario in examples/ runs, and what docs/examples.md says of it comes out, on shortened workloads."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from headway.bench.run_summary import RunSummary
from headway.bench.simulated import simulate
from headway.cli.scenario import scenario_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(name: str, changes: Mapping[str, object]) -> RunSummary:
    """Run an example with changes."""
    return simulate(scenario_of(EXAMPLES / f"{name}.toml", changes)).summary


def first_ms(summary: RunSummary, workload: str) -> float:
    """Median time to a first token."""
    found = summary.workloads[workload].ttft_ms.p50
    assert found is not None
    return found


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.toml")))
def test_it_runs(name: str) -> None:
    assert ran(name, {"sim.until_s": 1.5}).virtual_s == pytest.approx(1.5)  # some begin in a silent night


def test_large_chunks_stutter_and_small_ones_keep_documents_waiting() -> None:  # chunk_ladder.toml
    short = {"workload[chat].count": 120, "workload[documents].count": 12}
    small, large = (ran("chunk_ladder", {**short, "pools.scheduler.chunk.params.tokens": size}) for size in (128, 8192))
    assert small.itl_max_ms.p50 is not None
    assert large.itl_max_ms.p50 is not None
    assert small.itl_max_ms.p50 < large.itl_max_ms.p50 / 4
    assert first_ms(small, "documents") > first_ms(large, "documents")


def test_wrong_splits_collapse_each_for_its_own_promise() -> None:  # pd_or_mixed.toml, pd_split.toml
    short = {"workload.count": 100}
    mixed = ran("pd_or_mixed", short)
    few, many = (
        ran("pd_split", {**short, "pools[p].replicas": prefill, "pools[d].replicas": 4 - prefill}) for prefill in (1, 3)
    )
    met = {kind: [one.workloads[kind].attainment for one in (mixed, few, many)] for kind in ("eager", "steady")}
    assert met["eager"][1] < 0.5 < 0.9 < met["eager"][2], met  # prefill too narrow: first tokens are late
    assert met["steady"][2] < 0.5 < 0.9 < met["steady"][1], met  # decode too narrow: every token is
    assert min(met["eager"][0], met["steady"][0]) > 0.85, met


def test_past_the_knee_predicting_beats_letting_all_in() -> None:  # overload.toml
    short = {"workload.count": 240}
    let_in, predicted = (ran("overload", {**short, "front.admission.type": kind}) for kind in ("open", "predictive"))
    assert (let_in.refused, predicted.refused > 20) == (0, True)
    assert predicted.attainment > 1.2 * let_in.attainment


def test_a_router_that_knows_time_leaves_the_weak_replica_alone() -> None:  # routers.toml
    short = {"workload.count": 20}
    timed, in_turn = (ran("routers", {**short, "front.router.type": kind}) for kind in ("cost_aware", "round_robin"))
    assert timed.attainment > in_turn.attainment
    assert timed.prefix_hit_rate > in_turn.prefix_hit_rate
    assert timed.pool_use["starved"].busy < in_turn.pool_use["starved"].busy


def test_scaling_saves_devices_and_misses_what_its_cold_starts_cost() -> None:  # autoscaling.toml
    short = {"workload.count": 800}
    scaled = ran("autoscaling", short)
    held = ran("autoscaling", {**short, "pools.replicas": 6, "front.scaling.replicas_min": 6})
    assert scaled.attainment < 0.95 * held.attainment
    assert scaled.pool_use["chat"].device_hours < 0.6 * held.pool_use["chat"].device_hours


def test_a_straggler_costs_more_than_a_death_and_most_when_served_in_turn() -> None:  # faults.toml
    short = {"workload.count": 300}
    death = {"kind": "kill", "replica": "rep-chat-1", "at_s": 10.0, "back_s": 15.0}
    straggler = {"kind": "straggle", "replica": "rep-chat-2", "from_s": 10.0, "until_s": 30.0, "factor": 3.0}
    dead = ran("faults", {**short, "faults": [death]})
    slow = ran("faults", {**short, "faults": [straggler]})
    in_turn = ran("faults", {**short, "faults": [straggler], "front.router.type": "round_robin"})
    assert dead.attainment == 1.0
    assert in_turn.attainment < slow.attainment < dead.attainment


def test_the_first_rungs_of_the_ladder_each_keep_more_promises() -> None:  # SPEC K2, ladder.toml
    load = {"workload.count": 75, "workload.arrivals.rate_per_s": 1.4}
    ahead = {"scheduler.async_depth": 2}
    batch = {"pools.scheduler.max_seqs": 64}
    chunk = {"pools.scheduler.step_tokens": 2048, "pools.scheduler.chunk.params.tokens": 512}
    rungs = [
        ran("ladder", {**load, **change}) for change in ({}, ahead, {**ahead, **batch}, {**ahead, **batch, **chunk})
    ]
    met = [rung.attainment for rung in rungs]
    assert met[0] < met[1], met
    assert met[0] < met[2] < met[3], met
