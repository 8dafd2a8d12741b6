"""The rows of seed 000's table of first choices (3.6, REFERENCE 6) that apply to a plan; does its answer agree?"""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.cost.deployment import Deployment, kv_tokens_fit
from headway.cost.deployment import Layout as Split
from headway.cost.llm import StepShape
from headway.sim.catalogue import Catalogue
from headway.sim.plan_fluid import balance, prompt_ns
from headway.sim.plan_layouts import Layout
from headway.sim.plan_load import Load
from headway.sim.pools import PoolParams
from headway.sim.replicas import deployment_of, llm_replica
from headway.sim.scenario import Scenario

LONG_PROMPT: Final = 32_768  # tokens that nine of ten prompts stay below; longer ones are "very long"
APART: Final = 4.0  # times that one phase works longer than the other, per request: they differ much
MANY_EXPERTS: Final = 64
BATCH: Final = 32  # sequences that decode together


class Rule(msgspec.Struct, frozen=True):
    """One row of the table. `agrees` None: nothing was found to compare."""

    condition: str
    choice: str
    agrees: bool | None


ONE_DEVICE: Final = ("fits one device, throughput wanted", "many DP replicas, little or no TP")
ONE_HOST: Final = ("does not fit one device, fits a host", "TP inside the host")
MANY_HOSTS: Final = ("too large for a host", "TP inside the host, PP between hosts")
LONG: Final = ("very long prefill decides TTFT", "TP/PP and prefill CP with a dynamic chunk")
EXPERTS: Final = ("very large MoE", "DP attention and EP")
DIFFER: Final = ("prefill and decode differ much", "search P and D separately, force no common TP")


def rules(
    pool: PoolParams, scenario: Scenario, load: Load, layouts: Sequence[Layout], best: Layout | None
) -> list[Rule]:
    """Return the rows that apply to a pool's model and load. `layouts`: what was searched."""
    if pool.kind != "llm" or pool.cost == "linear":
        return []
    catalogue = Catalogue(scenario.catalogue)
    deployment = deployment_of(pool, catalogue)
    host = deployment.device.devices_per_host
    parts = [] if best is None else [part.pool.hardware for part in best.parts]
    known = None if not parts else True
    found = []
    experts = deployment.model.experts
    if experts is not None and experts.experts >= MANY_EXPERTS and not _fits(deployment, pool, 1):
        found.append(Rule(*EXPERTS, known and all(part.dp > 1 and part.ep > 1 for part in parts)))
    elif _fits(deployment, pool, 1):
        found.append(Rule(*ONE_DEVICE, known and all(part.tp <= 2 and part.pp == 1 for part in parts)))
    elif any(_fits(deployment, pool, tp) for tp in range(2, host + 1)):
        found.append(Rule(*ONE_HOST, known and all(1 < part.tp <= host and part.pp == 1 for part in parts)))
    else:
        found.append(Rule(*MANY_HOSTS, known and all(part.tp <= host and part.pp > 1 for part in parts)))
    prompts = sorted(ask.prompt for ask in load.asks)
    if prompts and prompts[int(0.9 * (len(prompts) - 1))] > LONG_PROMPT:
        found.append(Rule(*LONG, known and any(part.cp > 1 for part in parts)))
    ratio = max((phases(layout, catalogue, load) for layout in layouts[:1]), default=1.0)
    if max(ratio, 1 / ratio) > APART:
        is_searched = best is not None and any(layout.mode == "pd" for layout in layouts)
        is_apart = best is not None and best.mode == "pd" and parts[0] != parts[-1]
        found.append(Rule(*DIFFER, is_apart if is_searched else None))
    return found


def phases(layout: Layout, catalogue: Catalogue, load: Load) -> float:
    """Time of prefill over time of decode, per request, in batches of BATCH: N_p/N_d of REFERENCE 2."""
    first, last = (llm_replica(part.pool, catalogue).step for part in (layout.parts[0], layout.parts[-1]))
    count = len(load.asks)
    prompt = sum(ask.prompt for ask in load.asks) / count
    output = sum(ask.output for ask in load.asks) / count
    decode_ns = last.step_ns(StepShape(BATCH, round(BATCH * (prompt + output / 2))))
    return balance(prompt_ns(first, round(prompt), round(prompt)), decode_ns, BATCH, output)


def _fits(deployment: Deployment, pool: PoolParams, tp: int) -> bool:
    try:
        return kv_tokens_fit(msgspec.structs.replace(deployment, layout=Split(tp=tp)), pool.engine.memory_share) > 0
    except ConfigError:
        return False
