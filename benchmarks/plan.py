"""Published answers, searched again by `headway plan`.

    python benchmarks/plan.py distserve     OPT-13B on four A100: layout and rate per device (minutes)
    python benchmarks/plan.py flux          FLUX.1-dev: seed 003's table of devices, without and with queues

DistServe's lengths are not in this repository. `SHAREGPT` is a lognormal fit by mean and deviation, so that the rate is
held loosely and the layout strictly.
"""

import argparse
import os
import time
from collections.abc import Sequence

import msgspec

from headway.bench.metrics import condition
from headway.bench.plan_run import run
from headway.bench.plan_text import text
from headway.bench.planning import Planner
from headway.bench.sweep import Store, Sweep
from headway.bench.sweep_search import Search, find
from headway.core.slo import Targets
from headway.cost.diffusion_devices import Execution
from headway.sched.config import FrontConfig
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sim.plan_layouts import Layout
from headway.sim.plan_params import LayoutCost, PlanParams
from headway.sim.pools import EngineSize, Hardware, PoolParams, TruthParams
from headway.sim.scenario import Scenario
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Diffusion, PictureShape, SloParams, Synthetic

OPEN = FrontConfig(admission=PolicyChoice("open"))
EXACT = TruthParams(scale=1.0, jitter=0.0, spread=0.0)
# DistServe's figure of its data sets: 755.5 tokens in and 200.3 out on average; OPT's context of 2048 cuts. Deviation
# over mean of prompts as in the 300 ShareGPT prompts of LLMServingSim's vLLM log (0.64); of outputs assumed.
SHAREGPT = (Lengths(mean=755.5, cv=0.64, longest=1900), Lengths(mean=200.3, cv=0.9, longest=1024))


def distserve(rate: float, count: int, plan: PlanParams) -> Scenario:
    """OPT-13B with DistServe's fitted steps; FCFS prefill of whole prompts, together up to 2048 tokens."""
    scheduler = LlmParams(
        max_seqs=512,
        step_tokens=2048,
        chunk=PolicyChoice("constant", {"tokens": 2048}),
        prefix_cache=False,
    )
    pool = PoolParams(
        model="opt-13b",
        dtype="float16",
        hardware=Hardware(device="A100-80G"),
        cost="published:distserve-opt-13b-a100-tp1",
        engine=EngineSize(memory_share=0.951),  # KV tokens as published: TP1 66,144, TP2 163,008
        scheduler=scheduler,
        truth=EXACT,
    )
    prompt, output = SHAREGPT
    load = Synthetic(count=count, arrivals=Poisson(rate_per_s=rate), prompt=prompt, output=output, is_cacheable=False)
    # 0.2 s and 0.1 s at 90 %.
    targets = Targets(ttft_ms=200.0, tpot_ms=100.0)
    return Scenario(pools=(pool,), workload=(load,), targets=targets, front=OPEN, plan=plan)


def rate_per_device(options: argparse.Namespace) -> None:
    """DistServe's question: per layout of at most four devices the largest rate that nine of ten requests survive."""
    costs = tuple(LayoutCost(tp=tp, cost=f"published:distserve-opt-13b-a100-tp{tp}") for tp in (1, 2, 4))
    plan = PlanParams(modes=("pd",), tp=(1, 2), devices_max=4, costs=costs)  # TP4 leaves no device for the other
    planner = Planner(distserve(1.0, 50, plan), sweep_of(options))
    found = []
    for layout in planner.layouts:  # one instance of each, as simdistserve searches
        rate, per_device = limit(layout, (1, 1), options)
        found.append((per_device, layout.name))
        print(f"{layout.name}: {rate:.2f} req/s, {per_device:.2f} per device", flush=True)
    per_device, name = max(found)
    print(f"best: {name}, {per_device:.2f} req/s per device; DistServe: P TP2 + D TP1, 1.56\n", flush=True)
    planner = Planner(distserve(options.rate, options.count, plan), sweep_of(options))
    planner.run()
    print(text(planner.answer()))


def limit(layout: Layout, size: Sequence[int], options: argparse.Namespace) -> tuple[float, float]:
    """The largest rate with 90 % attainment, and that per device."""

    def make(changes: object) -> Scenario:
        assert isinstance(changes, dict)
        scenario = layout.scenario(distserve(changes["rate"], options.count, PlanParams()), size)
        return msgspec.structs.replace(scenario, seed=changes["seed"])

    search = Search("rate", "max", condition("attainment>=0.9"), 0.5, 12.0, 0.05)
    (one,) = find(sweep_of(options), search, [{}], options.seeds, make, options.processes)
    rate = one.value or 0.0
    return rate, rate / layout.devices(size)


def flux(options: argparse.Namespace) -> None:
    """Seed 003's table (F3): devices without queues, and with an SLO of twice the time of a picture."""
    for name, run_of, published in (
        ("compiled, FlashAttention 3", Execution(), 390),
        ("and fp8", Execution(fp8=True), 290),
        ("and a step cache", Execution(fp8=True, step_cache=1.8), 170),
    ):
        pool = PoolParams(
            kind="diffusion", model="FLUX.1-dev", hardware=Hardware(device="H100-SXM"), execution=run_of, truth=EXACT
        )
        load = Diffusion(
            count=options.count,
            arrivals=Poisson(rate_per_s=10.0),
            shapes=(PictureShape(height=1024, width=1024, steps=28),),
            slo=SloParams(e2e_ms=10_000.0),
        )
        plan = PlanParams(devices_max=100, confirm=2.0)
        planner = Planner(Scenario(pools=(pool,), workload=(load,), front=OPEN, plan=plan), sweep_of(options))
        planner.run()
        print(f"== {name}: published {published} at 100/s\n{text(planner.answer())}\n", flush=True)


def sweep_of(options: argparse.Namespace) -> Sweep:
    """Runs on the cores."""
    return Sweep(Store(None), options.processes, run=run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("distserve", "flux"))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rate", type=float, default=6.0, help="of the plan that follows DistServe's rates")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began_s = time.monotonic()
    {"distserve": rate_per_device, "flux": flux}[options.what](options)
    print(f"{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
