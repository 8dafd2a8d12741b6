"""What a plan has to carry: rate and lengths of a scenario's load, as its clients draw them.

Lower bounds are made of these numbers, so all of it errs towards less work: prompts that a cache may hold count as
free, and of a load that admission may thin out only the lightest share counts.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.core.request import DiffusionRequest, Slo
from headway.core.units import NS_PER_S, Ns
from headway.sim.plan_params import PlanParams
from headway.sim.scenario import Scenario
from headway.sim.sources import source_of
from headway.workload.spec import Azure, BurstGpt, ClosedLoop, Diffusion, Language, Sessions, Synthetic

LOOKED_AT: Final = 20_000  # requests of a load that are drawn to know it
_COUNTED: Final = (Synthetic, ClosedLoop, Diffusion)  # kinds that send exactly `count` requests


class Ask(msgspec.Struct, frozen=True):
    """One request of an LLM load. `new`: prompt tokens that no cache can hold. None: no such promise."""

    prompt: int
    new: int
    output: int
    ttft_ns: Ns | None
    tpot_ns: Ns | None

    @property
    def has_target(self) -> bool:
        """Something was promised."""
        return self.ttft_ns is not None or self.tpot_ns is not None


class Load(msgspec.Struct, frozen=True):
    """`rate_per_s` 0: clients wait for answers, so that no rate is known before. `sent` None: nobody knows before."""

    rate_per_s: float
    sent: int | None
    asks: tuple[Ask, ...] = ()
    pictures: tuple[DiffusionRequest, ...] = ()

    def tokens_at(self, share: float) -> int:
        """Tokens, prompt and output, that all but 1 - `share` of the requests stay within."""
        ordered = sorted(ask.prompt + ask.output for ask in self.asks)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def load_of(scenario: Scenario) -> Load:
    """Draw the load of a scenario. Raises ConfigError for one that cannot be built, or that promises nothing."""
    cached = _cached(scenario)
    asks, pictures, arrived_ns = [], [], []
    has_target = False
    for item in islice(source_of(scenario).first(), LOOKED_AT):
        request = item.request
        slo = request.slo if request.slo != Slo() else scenario.targets_of(request.tenant).slo(request.arrived_ns)
        has_target |= slo != Slo()
        arrived_ns.append(request.arrived_ns)
        if isinstance(request, DiffusionRequest):
            pictures.append(request)
            continue
        prompt = len(request.prompt)
        new = 0 if cached is None else max(1, prompt - cached)
        ttft_ns = None if slo.ttft_deadline_ns is None else slo.ttft_deadline_ns - request.arrived_ns
        asks.append(Ask(prompt, new, min(item.output_tokens, request.max_tokens), ttft_ns, slo.tpot_ns))
    if not arrived_ns:
        raise ConfigError("the workload sends nothing; there is nothing to plan for")
    if not has_target:
        raise ConfigError("nothing is promised: set [targets] (ttft_ms, tpot_ms, e2e_ms) or the slo of a workload")
    return Load(_rate(scenario, arrived_ns), _sent(scenario), tuple(asks), tuple(pictures))


def _rate(scenario: Scenario, arrived_ns: Sequence[Ns]) -> float:
    if any(isinstance(spec, Sessions | ClosedLoop) for spec in scenario.workload):
        return 0.0
    span_ns = arrived_ns[-1] - arrived_ns[0]
    return (len(arrived_ns) - 1) / span_ns * NS_PER_S if span_ns > 0 else 0.0


def _sent(scenario: Scenario) -> int | None:
    counts = [spec.count for spec in scenario.workload if isinstance(spec, _COUNTED)]
    return sum(counts) if len(counts) == len(scenario.workload) else None


def _cached(scenario: Scenario) -> int | None:
    """Tokens of a prompt that a cache may hold; None: perhaps all of it."""
    if not any(pool.scheduler.prefix_cache for pool in scenario.pools if pool.kind == "llm"):
        return 0
    most = 0
    for spec in scenario.workload:
        if not isinstance(spec, Language) or not spec.is_cacheable or isinstance(spec, Azure | BurstGpt):
            continue
        if not isinstance(spec, Synthetic | ClosedLoop):
            return None
        most = max(most, spec.shared_tokens if spec.families else 0)
    return most


def lightest(values: Sequence[float], share: float) -> float:
    """Sum of the smallest `share` of some numbers, over how many there are: work per request that must be done."""
    ordered = sorted(values)
    kept = int(share * len(ordered) + 1e-9)
    return sum(ordered[:kept]) / len(ordered)


def kept_share(scenario: Scenario, plan: PlanParams) -> float:
    """Share of the load whose work cannot be avoided: admission may refuse the rest and still attain."""
    return 1.0 if scenario.front.admission.type == "open" else plan.attainment
