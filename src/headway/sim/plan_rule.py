"""The rows of seed 000's table of first choices (3.6, REFERENCE 6) that apply to a plan; does its answer agree?"""

from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.cost.deployment import Deployment, kv_tokens_fit
from headway.cost.deployment import Layout as Split
from headway.sim.catalogue import Catalogue
from headway.sim.plan_layouts import Layout
from headway.sim.plan_load import Load
from headway.sim.pools import PoolParams
from headway.sim.replicas import deployment_of

LONG_PROMPT: Final = 32_768  # tokens that nine of ten prompts stay below; longer ones are "very long"
APART: Final = 4.0  # times that one phase works longer than the other, per request: they differ much
MANY_EXPERTS: Final = 64


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
    pool: PoolParams, catalogue: Catalogue, load: Load, work: tuple[float, float], best: Layout | None
) -> list[Rule]:
    """Return the rows that apply to a pool's model and load. `work`: seconds of prefill and of decode per request."""
    if pool.kind != "llm" or pool.cost == "linear":
        return []
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
    if min(work) > 0 and max(work) / min(work) > APART:
        is_apart = best is not None and best.mode == "pd" and parts[0] != parts[-1]
        found.append(Rule(*DIFFER, None if best is None else is_apart))
    return found


def _fits(deployment: Deployment, pool: PoolParams, tp: int) -> bool:
    try:
        return kv_tokens_fit(msgspec.structs.replace(deployment, layout=Split(tp=tp)), pool.engine.memory_share) > 0
    except ConfigError:
        return False
