"""Whole plans over small scenarios. SPEC J5."""

from collections.abc import Callable
from html import escape
from itertools import product
from pathlib import Path

import msgspec
import pytest
from tests.unit.bench.plans import OPEN, catalogued, linear, load

from headway.bench.plan_report import plan_page
from headway.bench.plan_run import Tried, run
from headway.bench.plan_text import text
from headway.bench.planning import Planner, PlanResult
from headway.bench.sweep import Cell, Result, Store, Sweep
from headway.core.errors import ConfigError, InvariantError
from headway.core.slo import Targets
from headway.sched.fleet.scaling import ScalingParams
from headway.sim.orchestrator import OrchestratorParams
from headway.sim.plan_layouts import Layout
from headway.sim.plan_params import PlanParams
from headway.sim.pools import Hardware, PoolParams
from headway.sim.scenario import Scenario
from headway.workload.arrivals import Poisson
from headway.workload.spec import Diffusion, PictureShape, SloParams

Runs = Callable[[Cell], Result | InvariantError]


def planned(scenario: Scenario, store: Path | None = None, runs: Runs = run) -> tuple[Planner, PlanResult]:
    planner = Planner(scenario, Sweep(Store(store), 1, run=runs))
    planner.run()
    return planner, planner.answer()


def holds(planner: Planner, layout: Layout, sizes: tuple[int, ...]) -> bool:
    return planner.trials.judge([Tried(layout, sizes)])[0].holds


def test_the_answer_is_the_brute_force_optimum_of_a_small_grid() -> None:
    """Every layout and every number of replicas, without bounds, pruning or bisection."""  # SPEC D5
    plan = PlanParams(tp=(1, 2), chunk=(256, 1024), modes=("mixed",), devices_max=4, confirm=1.0)
    planner, result = planned(catalogued(plan, rate=30.0, count=40))
    assert result.best is not None
    found = [
        layout.devices((size,))
        for layout in planner.layouts
        for size in range(1, 4 // layout.parts[0].devices + 1)
        if holds(planner, layout, (size,))
    ]
    assert result.best.devices == min(found)
    assert result.best.devices > 1  # else nothing was searched


def test_prefill_and_decode_apart_find_the_best_of_all_pairs() -> None:
    plan = PlanParams(tp=(1,), modes=("pd",), devices_max=4, confirm=1.0)
    planner, result = planned(catalogued(plan, rate=30.0, count=40))
    assert result.best is not None
    (layout,) = planner.layouts
    pairs = [(p, d) for p, d in product(range(1, 4), range(1, 4)) if p + d <= 4 and holds(planner, layout, (p, d))]
    assert result.best.devices == min(p + d for p, d in pairs)


def test_more_load_or_a_tighter_slo_never_needs_fewer_devices() -> None:
    def devices(rate: float, ttft_ms: float, tpot_ms: float) -> int:
        best = planned(linear(rate, targets=Targets(ttft_ms=ttft_ms, tpot_ms=tpot_ms)))[1].best
        assert best is not None
        return best.devices

    by_rate = [devices(rate, 400.0, 40.0) for rate in (10.0, 40.0, 80.0)]
    assert by_rate == sorted(by_rate)
    assert by_rate[0] < by_rate[-1]
    by_tpot = [devices(40.0, 400.0, tpot) for tpot in (60.0, 18.0)]
    assert by_tpot == sorted(by_tpot)
    assert by_tpot[0] < by_tpot[-1]
    by_ttft = [devices(40.0, ttft, 60.0) for ttft in (800.0, 200.0)]
    assert by_ttft == sorted(by_ttft)


def test_the_tpot_limit_bounds_the_search() -> None:
    # aiconfigurator#725
    _, result = planned(linear(40.0, targets=Targets(ttft_ms=2000.0, tpot_ms=18.0)))
    assert result.best is not None
    assert result.best.tpot_p99_ms is not None
    loose = planned(linear(40.0, targets=Targets(ttft_ms=2000.0)))[1].best
    assert loose is not None
    assert result.best.devices > loose.devices


def test_the_host_gap_counts() -> None:
    # aiconfigurator#102: ignores enforce-eager. Host time between steps is part of every simulated step.
    base = linear(40.0)
    pool = base.pools[0]
    slow = msgspec.structs.replace(
        pool,
        linear=msgspec.structs.replace(pool.linear, host_us=15_000.0),
        scheduler=msgspec.structs.replace(pool.scheduler, async_depth=1),
        worker=msgspec.structs.replace(pool.worker, credits=1),
    )
    fast_best = planned(base)[1].best
    slow_best = planned(msgspec.structs.replace(base, pools=(slow,)))[1].best
    assert fast_best is not None
    assert slow_best is not None
    assert slow_best.devices > fast_best.devices


def test_the_number_of_replicas_in_the_file_changes_nothing() -> None:
    # dynamo#4420: could not scale down after a manual change
    base = linear(30.0)
    many = msgspec.structs.replace(base, pools=(msgspec.structs.replace(base.pools[0], replicas=12),))
    assert planned(many)[1] == planned(base)[1]


def test_what_cannot_be_reached_is_said_and_why() -> None:
    # dynamo PR#12774: documentation wrong on an unreachable SLA
    _, result = planned(linear(20.0, targets=Targets(ttft_ms=400.0, tpot_ms=5.0)))
    assert result.best is None
    assert "TPOT" in result.refused[0].reason
    assert "none: nothing that was tried holds" in text(result)


def test_targets_are_milliseconds() -> None:
    # dynamo PR#2505: unit bug of TTFT
    _, result = planned(linear(20.0, targets=Targets(ttft_ms=0.4, tpot_ms=40.0)))
    assert result.best is None
    assert "TTFT" in result.refused[0].reason


def test_a_queue_that_grows_is_no_answer_even_if_the_load_ends_in_time() -> None:
    """One replica serves fewer than arrive; 30 requests are over before the queue is long."""
    scenario = linear(60.0, count=30, targets=Targets(ttft_ms=600.0))
    plan = PlanParams(tp=(1,), devices_max=16, confirm=8.0)
    planner, result = planned(msgspec.structs.replace(scenario, plan=plan))
    assert result.best is not None
    assert planner.trials.lasting([Tried(planner.layouts[0], result.best.sizes)])[0].attainment >= 0.9
    # With one replica less the short load is over before anything is late; the long one is not.
    less = Tried(planner.layouts[0], (result.best.sizes[0] - 1,))
    assert planner.trials.judge([less])[0].attainment >= 0.9
    assert planner.trials.lasting([less])[0].attainment < 0.9


def test_a_winner_is_proven_over_the_seeds() -> None:
    _, result = planned(linear(40.0))
    assert result.best is not None
    assert result.best.low is not None
    assert result.best.low >= 0.9


def test_an_answer_is_confirmed_over_several_seeds_of_the_longer_load() -> None:
    planner, result = planned(linear(40.0))
    best = result.best
    assert best is not None
    assert best.lasting_seeds == 5
    assert best.lasting is not None
    assert best.lasting_low is not None
    assert best.lasting_high is not None
    assert 0.9 <= best.lasting_low <= best.lasting <= best.lasting_high
    assert "with 95 % over 5 seeds" in text(result)
    seeds = {one.changes["seed"] for one in planner.trials._sweep.store.results.values()}
    assert seeds == {1, 2, 3, 4, 5}


def test_one_seed_of_the_longer_load_can_be_asked_for() -> None:
    scenario = linear(40.0)
    assert scenario.plan is not None
    plan = msgspec.structs.replace(scenario.plan, confirm_runs=1)
    _, result = planned(msgspec.structs.replace(scenario, plan=plan))
    assert result.best is not None
    assert (result.best.lasting_seeds, result.best.lasting_low) == (1, None)
    assert "one seed" in text(result)


def test_the_same_scenario_gives_the_same_plan_with_any_number_of_processes() -> None:
    plan = PlanParams(tp=(1, 2), modes=("mixed",), devices_max=4, confirm=1.0)
    scenario = catalogued(plan, count=30)
    one = planned(scenario)[1]
    planner = Planner(scenario, Sweep(Store(None), 2, run=run))
    planner.run()
    assert planner.answer() == one


def test_an_interruption_leaves_the_ranking_so_far() -> None:
    count = 0

    def stops(cell: Cell) -> Result | InvariantError:
        nonlocal count
        count += 1
        if count > 9:
            raise KeyboardInterrupt
        return run(cell)

    plan = PlanParams(tp=(1, 2), modes=("mixed", "pd"), devices_max=8, confirm=1.0)
    planner = Planner(catalogued(plan, rate=10.0, count=30), Sweep(Store(None), 1, run=stops))
    with pytest.raises(KeyboardInterrupt):
        planner.run()
    result = planner.answer()
    assert not result.complete
    assert result.rows


def test_runs_are_kept_and_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = planned(linear(30.0), path)[1]

    def never(cell: Cell) -> Result | InvariantError:
        raise AssertionError(f"run again: {cell.changes}")

    assert planned(linear(30.0), path, never)[1] == first


def test_losers_say_what_they_attain_with_the_winners_devices() -> None:
    plan = PlanParams(tp=(1, 2), modes=("mixed",), devices_max=8, confirm=1.0)
    _, result = planned(catalogued(plan, rate=40.0))
    assert result.best is not None
    fewer, *others = result.losses
    assert (fewer.name, fewer.sizes) == (result.best.name, (result.best.sizes[0] - 1,))
    assert fewer.attainment is not None
    assert fewer.attainment < 0.9
    assert fewer.limit == "TTFT (queue), below what the load needs at least"
    assert [loss.name for loss in others] == ["A100-80G TP2"]


def test_what_promises_nothing_cannot_be_planned() -> None:
    with pytest.raises(ConfigError, match="nothing is promised"):
        planned(linear(targets=Targets()))


def test_a_plan_is_of_the_pools_of_one_model() -> None:
    base = linear(20.0)
    other = msgspec.structs.replace(base.pools[0], name="other", model="other")
    both = msgspec.structs.replace(base, pools=(*base.pools, other))
    planner = Planner(both, Sweep(Store(None), 1, run=run))
    assert [pool.model for pool in planner.base.pools] == [base.pools[0].model]
    with pytest.raises(ConfigError, match=r"plan\.pool = 'x'"):
        Planner(msgspec.structs.replace(both, plan=PlanParams(pool="x")), Sweep(Store(None), 1, run=run))
    with pytest.raises(ConfigError, match="nobody asks for other"):
        Planner(msgspec.structs.replace(both, plan=PlanParams(pool="other")), Sweep(Store(None), 1, run=run))


def test_a_fleet_that_grows_and_shrinks_is_not_planned() -> None:
    front = msgspec.structs.replace(OPEN, scaling=ScalingParams())
    scaled = msgspec.structs.replace(linear(20.0), orchestrator=OrchestratorParams(), front=front)
    with pytest.raises(ConfigError, match="orchestrator"):
        Planner(scaled, Sweep(Store(None), 1, run=run))


def test_the_requests_of_a_run_can_be_set() -> None:
    base = linear(20.0, plan=PlanParams(tp=(1,), count=45))
    planner = Planner(base, Sweep(Store(None), 1, run=run))
    assert planner.load.sent == 45
    assert load().count != 45


def test_two_types_together_are_cheaper_where_one_more_of_the_large_is_too_much() -> None:
    """One A100 is too few and two are too many; the second may be an A10."""
    plan = PlanParams(
        tp=(1,),
        devices=("A100-80G", "A10"),
        objective="cost",
        prices={"A100-80G": 10.0, "A10": 4.0},
        mix=True,
        devices_max=4,
        confirm=1.0,
    )
    _, result = planned(catalogued(plan, rate=18.0, count=40))
    assert result.best is not None
    assert (result.best.mode, result.best.sizes, result.best.usd_per_h) == ("mix", (1, 1), 14.0)
    alone = [row for row in result.rows if row.mode == "mixed" and row.state == "proven"]
    assert min(row.usd_per_h for row in alone) == 20.0


def test_a_diffusion_pool_is_planned_too() -> None:
    """GPU-seconds bound it from below; queues need more. SPEC F3"""
    pool = PoolParams(kind="diffusion", model="FLUX.1-dev", hardware=Hardware(device="H100-SXM"))
    pictures = Diffusion(
        count=60,
        arrivals=Poisson(rate_per_s=1.0),
        shapes=(PictureShape(height=1024, width=1024, steps=28),),
        slo=SloParams(e2e_ms=9000.0),
    )
    plan = PlanParams(devices_max=16, confirm=1.0)
    _, result = planned(Scenario(pools=(pool,), workload=(pictures,), front=OPEN, plan=plan))
    assert result.best is not None
    assert 4 <= result.best.devices <= 8
    assert "devices at load 1" in text(result)


# SPEC G1: the three rules of seed 003 5, from what `headway plan` prints
@pytest.mark.parametrize(
    ("model", "shape", "models", "split"),
    [
        ("FLUX.1-dev", PictureShape(height=1024, width=1024, steps=28), 1, {"text_encode": False, "vae_decode": False}),
        ("Wan2.1-14B", PictureShape(height=720, width=1280, frames=81), 1, {"text_encode": False, "vae_decode": True}),
        ("FLUX.1-dev", PictureShape(height=1024, width=1024, steps=28), 2, {"text_encode": True, "vae_decode": True}),
    ],
)
def test_the_stages_are_placed_with_a_reason(
    model: str, shape: PictureShape, models: int, split: dict[str, bool]
) -> None:
    pool = PoolParams(kind="diffusion", model=model, hardware=Hardware(device="H100-SXM"))
    small = PictureShape(height=256, width=256)
    asks = Diffusion(count=20, arrivals=Poisson(rate_per_s=0.1), shapes=(small, shape), slo=SloParams(e2e_ms=9e6))
    plan = PlanParams(devices_max=16, models=models, devices=("H100-SXM",))
    result = Planner(Scenario(pools=(pool,), workload=(asks,), front=OPEN, plan=plan), Sweep(Store(None), 1)).answer()
    (stages,) = result.stages
    assert {one.stage: one.is_split for one in stages.stages} == split
    assert (stages.shape.height, stages.shape.width, stages.shape.frames) == (shape.height, shape.width, shape.frames)
    words, page = text(result), plan_page("x", result)
    frames = ", 81 frames" if shape.frames > 1 else ""
    assert f"\nstages of {model} on H100-SXM, {shape.width}x{shape.height}{frames}\n" in words
    for one in stages.stages:
        where = "split: processes of its own on other devices" if one.is_split else "monolith: with the denoiser"
        assert f"  {one.stage}: {where} ({one.reason})\n" in words
        assert where in page
        assert escape(one.reason) in page


def test_stages_are_of_the_answers_device_alone() -> None:  # SPEC G1
    pool = PoolParams(kind="diffusion", model="SD3.5-large", hardware=Hardware(device="RTX-4090"))
    pictures = Diffusion(
        count=20,
        arrivals=Poisson(rate_per_s=0.1),
        shapes=(PictureShape(height=512, width=512),),
        slo=SloParams(e2e_ms=60_000.0),
    )
    plan = PlanParams(devices=("RTX-4090", "H100-SXM"), seeds=(1, 2), confirm=1.0, confirm_runs=2)
    _, result = planned(Scenario(pools=(pool,), workload=(pictures,), front=OPEN, plan=plan))
    assert result.best is not None
    assert [stages.device for stages in result.stages] == [result.best.name.partition(" ")[0]]
    assert planned(linear())[1].stages == ()


def test_a_language_model_passes_no_others() -> None:  # SPEC G1, rule 8
    with pytest.raises(ConfigError, match=r"plan\.models = 2 is of diffusion models"):
        planned(linear(plan=PlanParams(tp=(1,), models=2)))
