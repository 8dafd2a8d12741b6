"""Makes the requests of one workload: ids, tenants, limits, SLO, predictions, block hashes of the replica's size."""

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Final, Literal

import msgspec

from headway.core.blockhash import cache_root
from headway.core.draw import draw_below, draw_unit
from headway.core.errors import ConfigError
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_S, Ns, ns_from_s
from headway.workload.arrivals import Arrivals, gamma_variate, times
from headway.workload.offered import Offered
from headway.workload.prompts import Prompt
from headway.workload.spec import Common, Diffusion, Language, Think

_NORMAL: Final = NormalDist()


class Served(msgspec.Struct, frozen=True):
    """A model that the system under load serves, and the block size that its replicas hash with."""

    model: str
    block_tokens: int = 16
    kind: Literal["llm", "diffusion"] = "llm"


class Asked(msgspec.Struct, frozen=True):
    """One request before it has an id: `key` tells it from the others of its workload. `root`, `tenant`: in place of
    the workload's."""

    key: str
    at_ns: Ns
    prompt: Prompt
    output_tokens: int
    session: str | None = None
    root: bytes | None = None
    tenant: str | None = None


class Mint:
    """Makes the requests of one workload for one model."""

    def __init__(self, spec: Language, name: str, seed: int, served: Sequence[Served]) -> None:
        """`seed`: the scenario's. Raises ConfigError for a model that nothing serves."""
        self.spec, self.name, self.seed = spec, name, seed + spec.seed
        self._scenario_seed, self._served = seed, served
        chosen = served_model(spec, name, served)
        self.model = ModelId(chosen.model)
        self.block_tokens = chosen.block_tokens if spec.is_cacheable else 0
        self.root = cache_root(model=chosen.model)

    def for_model(self, model: str) -> "Mint":
        """The same workload for another model. Raises ConfigError when nothing serves it."""
        spec = msgspec.structs.replace(self.spec, model=model)
        return Mint(spec, self.name, self._scenario_seed, self._served)

    def request_id(self, key: str) -> RequestId:
        """The id of a request; the name in it leads back to its workload."""
        return RequestId(f"req-{self.name}-{key}")

    def draw_key(self, what: str) -> str:
        """What draws of this workload are keyed by."""
        return f"{self.name}/{what}"

    def offer(self, asked: Asked) -> Offered:
        """Make the request."""
        spec, key, prompt = self.spec, asked.key, asked.prompt
        output = min(asked.output_tokens, spec.max_tokens)
        limit = output if spec.tells_length else spec.max_tokens
        request = LlmRequest(
            id=self.request_id(key),
            tenant=self._tenant(asked),
            model=self.model,
            prompt=prompt.tokens,
            sampling=SamplingParams(max_tokens=limit, temperature=0, ignore_eos=spec.tells_length),
            arrived_ns=asked.at_ns,
            slo=spec.slo.at(asked.at_ns, len(prompt.tokens)),
            urgency=spec.urgency,
            block_hashes=prompt.hashes,
            cache_root=self._root(asked),
            output_tokens_predicted=self._predicted(key, output),
            tenant_weight=spec.tenant_weight,
            block_tokens=self.block_tokens,
            session=asked.session,
        )
        return Offered(request, output)

    def _root(self, asked: Asked) -> bytes:
        if not self.spec.is_cacheable:
            return b""
        return self.root if asked.root is None else asked.root

    def _tenant(self, asked: Asked) -> TenantId:
        if asked.tenant is not None:
            return TenantId(asked.tenant)
        return tenant(self.spec, self.seed, self.draw_key(asked.session or asked.key))

    def _predicted(self, key: str, output: int) -> int | None:
        predicted = self.spec.predicted
        if predicted is None:
            return None
        u = draw_unit(self.seed, self.draw_key(f"predicted/{key}"), 0, 0)
        z = _NORMAL.inv_cdf(max(u, 1e-16)) if predicted.error else 0.0
        return max(1, round(output * predicted.bias * math.exp(predicted.error * z)))


def served_model(spec: Common, name: str, served: Sequence[Served]) -> Served:
    """The model that a workload asks for. Raises ConfigError when nothing serves it."""
    if not served:
        raise ConfigError("workload: nothing is served that it could ask for")
    kind = "diffusion" if isinstance(spec, Diffusion) else "llm"
    alike = [one for one in served if one.kind == kind]
    found = [one for one in alike if not spec.model or one.model == spec.model]
    if not found:
        known = ", ".join(one.model for one in alike) or "none"
        asked = f"model {spec.model!r} is" if spec.model else f"it needs a model of kind {kind}, which is"
        raise ConfigError(f"workload {name!r}: {asked} served by no pool; served are: {known}")
    return found[0]


def tenant(spec: Common, seed: int, key: str) -> TenantId:
    """Draw the tenant of a request or session."""
    if spec.tenants == 1:
        return TenantId(spec.tenant)
    return TenantId(f"{spec.tenant}-{draw_below(seed, f'{key}/tenant', 0, 0, spec.tenants)}")


def scaled_times(spec: Common, arrivals: Arrivals, seed: int, key: str) -> Iterator[Ns]:
    """Arrival times of a process from the start of a workload, its gaps `time_scale` times as long."""
    start_ns, scale = ns_from_s(spec.start_s), spec.time_scale
    if scale == 1:
        return times(arrivals, seed, key, start_ns)
    return (start_ns + round(at_ns * scale) for at_ns in times(arrivals, seed, key))


def faster(arrivals: Arrivals, rate_scale: float) -> Arrivals:
    """The same process at another rate: bursts and periods keep their lengths."""
    return msgspec.structs.replace(arrivals, rate_per_s=arrivals.rate_per_s * rate_scale)


def think_ns(think: Think, time_scale: float, seed: int, key: str) -> Ns:
    """Draw a think time."""
    share = 1.0
    if think.cv and think.mean_s:
        shape = 1.0 / think.cv**2
        share = gamma_variate(shape, seed, key, 0) / shape
    return round(think.mean_s * share * time_scale * NS_PER_S)
