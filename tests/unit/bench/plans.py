"""Scenarios that a plan is made of in a moment."""

from headway.core.slo import Targets
from headway.sched.config import FrontConfig
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sim.linear import LinearParams
from headway.sim.plan_params import PlanParams
from headway.sim.pools import Hardware, PoolParams, TruthParams
from headway.sim.scenario import Scenario
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Synthetic

OPEN = FrontConfig(admission=PolicyChoice("open"))
SCHEDULER = LlmParams(max_seqs=64, prefix_cache=False)


def load(rate: float = 20.0, count: int = 60, prompt: float = 400.0, output: float = 40.0) -> Synthetic:
    return Synthetic(
        count=count,
        arrivals=Poisson(rate_per_s=rate),
        prompt=Lengths(mean=prompt, cv=0.5, longest=8192),
        output=Lengths(mean=output, cv=0.5),
        is_cacheable=False,
    )


def linear(
    rate: float = 20.0, *, targets: Targets | None = None, plan: PlanParams | None = None, count: int = 60
) -> Scenario:
    """One type of replica whose steps take 10 ms and 50 us per token: about 20 requests per second each."""
    pool = PoolParams(
        cost="linear",
        linear=LinearParams(step_us=10_000.0, token_us=50.0, kv_ns=0.0),
        scheduler=SCHEDULER,
        truth=TruthParams(scale=1.0, jitter=0.0, spread=0.0),
    )
    return Scenario(
        pools=(pool,),
        workload=(load(rate, count),),
        targets=targets or Targets(ttft_ms=400.0, tpot_ms=40.0),
        front=OPEN,
        plan=plan or PlanParams(tp=(1,), confirm=2.0, devices_max=16),
    )


def catalogued(plan: PlanParams, *, model: str = "llama-3.1-8b", rate: float = 20.0, count: int = 60) -> Scenario:
    """A model and devices of the catalogues."""
    pool = PoolParams(model=model, hardware=Hardware(device="A100-80G"), scheduler=SCHEDULER)
    return Scenario(
        pools=(pool,),
        workload=(load(rate, count),),
        targets=Targets(ttft_ms=500.0, tpot_ms=50.0),
        front=OPEN,
        plan=plan,
    )
