"""DistServe's answer (OSDI'24, its simulator's README; REFERENCE 4): OPT-13B on A100 within 0.2 s and 0.1 s at 90 %.

ShareGPT's lengths are not in this repository: a lognormal fit to the means that the paper states. The layout is held,
the rate is not (`benchmarks/plan.py distserve`, benchmarks/RESULTS.md).
"""

from tests.unit.bench.plans import OPEN

from headway.bench.plan_run import Trials, Tried, run
from headway.bench.planning import base_of
from headway.bench.sweep import Store, Sweep
from headway.core.slo import Targets
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sim.plan_layouts import Space
from headway.sim.plan_load import load_of
from headway.sim.plan_params import LayoutCost, PlanParams
from headway.sim.pools import EngineSize, Hardware, PoolParams, TruthParams
from headway.sim.scenario import Scenario
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Synthetic

COSTS = tuple(LayoutCost(tp=tp, cost=f"published:distserve-opt-13b-a100-tp{tp}") for tp in (1, 2))
PLAN = PlanParams(modes=("pd",), tp=(1, 2), devices_max=4, costs=COSTS, seeds=(1, 2))


def opt_13b(rate: float) -> Scenario:
    pool = PoolParams(
        model="opt-13b",
        dtype="float16",
        hardware=Hardware(device="A100-80G"),
        cost=COSTS[0].cost,
        engine=EngineSize(memory_share=0.951),
        scheduler=LlmParams(
            max_seqs=512, step_tokens=2048, chunk=PolicyChoice("constant", {"tokens": 2048}), prefix_cache=False
        ),
        truth=TruthParams(scale=1.0, jitter=0.0, spread=0.0),
    )
    load = Synthetic(
        count=150,
        arrivals=Poisson(rate_per_s=rate),
        prompt=Lengths(mean=755.5, cv=0.64, longest=1900),
        output=Lengths(mean=200.3, cv=0.9, longest=1024),
        is_cacheable=False,
    )
    targets = Targets(ttft_ms=200.0, tpot_ms=100.0)
    return Scenario(pools=(pool,), workload=(load,), targets=targets, front=OPEN, plan=PLAN)


def holds_at(per_device: float, only: str = "") -> dict[str, bool]:
    """Whether one prefill and one decode replica of each layout hold so many requests per second and device."""
    base = opt_13b(1.0)
    found = {}
    for layout in Space(base, PLAN, load_of(base), base.pools).layouts():
        if not layout.name.endswith(only):
            continue
        scenario = opt_13b(per_device * layout.devices((1, 1)))
        trials = Trials(
            base_of(scenario, PLAN, scenario.pools), PLAN, load_of(scenario), Sweep(Store(None), 1, run=run)
        )
        found[layout.name.removeprefix("A100-80G ")] = trials.judge([Tried(layout, (1, 1))])[0].holds
    return found


def test_prefill_on_two_devices_and_decode_on_one_carry_the_most_per_device() -> None:
    # SPEC J5, D5
    assert [name for name, holds in holds_at(2.15).items() if holds] == ["P TP2 + D TP1"]


def test_it_carries_the_published_rate() -> None:
    """1.56 req/s per device."""
    assert holds_at(1.56, "P TP2 + D TP1")["P TP2 + D TP1"]
