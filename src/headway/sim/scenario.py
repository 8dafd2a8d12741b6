"""A scenario: pools, what clients send them, the gateway between, and how long to look. What `simulate` is given."""

from typing import Annotated

import msgspec

from headway.core.errors import ConfigError
from headway.core.slo import Targets as Targets
from headway.core.units import Ns, ns_from_ms, ns_from_s
from headway.cost.links import Link
from headway.sched.config import FrontConfig
from headway.sched.fleet.migration import MigrationParams
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sim.catalogue import Additions
from headway.sim.faults import Fault
from headway.sim.network import NetworkParams
from headway.sim.orchestrator import OrchestratorParams
from headway.sim.plan_params import PlanParams
from headway.sim.pools import PoolParams
from headway.workload.spec import Synthetic, WorkloadParams

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class NetworkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What lies between clients, gateway and replicas."""

    client_ms: NotNegative = 0.0  # one way, between a client and the gateway
    node_us: NotNegative = 50.0  # a message between gateway and replicas
    kv_link: str = "ib-ndr"  # of the catalogue of links: what carries KV between two replicas
    detect_ms: NotNegative = 5.0  # how long a death goes unnoticed

    def params(self, kv_link: Link) -> NetworkParams:
        """Return them as the driver takes them."""
        return NetworkParams(
            latency_ns=round(self.node_us * 1000),
            copy_bytes_per_s=kv_link.bytes_per_s,
            detect_ns=ns_from_ms(self.detect_ms),
        )

    @property
    def client_ns(self) -> Ns:
        """One way between a client and the gateway."""
        return ns_from_ms(self.client_ms)


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processes in front: each takes requests one after the other."""

    # Measured, one process, `cost_aware`, JSON of 1 KB: 661 us at 32 connections, 554 at 128 (benchmarks/RESULTS.md).
    request_us: NotNegative = 600.0  # CPU to receive, check and tokenise one request
    # Measured there: streams of 64 chunks take 2,516 us a request at 128 connections, 31 us a chunk more than JSON.
    chunk_us: NotNegative = 31.0  # CPU to stream one token; it delays nothing here, and `gateway_busy` tells of it
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # that share the port

    @property
    def request_ns(self) -> Ns:
        """CPU of one request."""
        return round(self.request_us * 1000)

    def busy(self, requests: int, tokens: int, span_s: float) -> float:
        """Return the share of its processes' CPU that so many requests and streamed tokens take in a time."""
        used_s = (self.request_us * requests + self.chunk_us * tokens) / 1e6
        return used_s / (span_s * self.processes) if span_s > 0 else 0.0


class RunSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long is simulated, what of it counts, and what is kept."""

    until_s: Annotated[float, msgspec.Meta(gt=0)] | None = None  # end there; unset: when every client has its answer
    warmup_s: NotNegative = 0.0  # requests sent before count in no figure
    sample_ms: Positive = 1000.0  # between two looks at queues, KV and load
    check: bool = False  # every node's invariants after each of its events
    jumps: bool = True  # rows that decode on are counted, not visited: decisions, records and times are the same

    def __post_init__(self) -> None:
        if self.until_s is not None and self.warmup_s >= self.until_s:
            raise ConfigError(
                f"sim.warmup_s = {self.warmup_s} leaves nothing of sim.until_s = {self.until_s} to measure"
            )

    @property
    def warmup_ns(self) -> Ns:
        """Requests sent before count in no figure."""
        return ns_from_s(self.warmup_s)


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that one simulation depends on."""

    seed: int = 0  # of arrivals, lengths and noise: the same seed, the same log
    pools: tuple[PoolParams, ...] = (PoolParams(replicas=2),)  # what serves
    workload: tuple[WorkloadParams, ...] = (Synthetic(),)  # what clients send
    targets: Targets = Targets()  # promised to every request, and what goodput counts
    tenants: dict[str, Targets] = {}  # in place of `targets`, by tenant
    front: FrontConfig = FrontConfig()
    migration: MigrationParams | None = None  # unset: requests stay where they run
    shape_pools: ShapePoolParams | None = None  # unset: diffusion replicas keep the sizes that they begin with
    network: NetworkSettings = NetworkSettings()
    gateway: GatewaySettings = GatewaySettings()
    faults: tuple[Fault, ...] = ()  # what goes wrong, and when
    orchestrator: OrchestratorParams | None = (
        None  # starts and stops replicas as front.scaling asks; unset: nobody does
    )
    sim: RunSettings = RunSettings()
    catalogue: Additions = Additions()
    plan: PlanParams | None = None  # what `headway plan` searches; nothing else reads it

    def __post_init__(self) -> None:
        if not self.pools or not self.workload:
            raise ConfigError("a scenario needs at least one entry of `pools` and of `workload`")
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"pools: the name {twice[0]!r} is given twice; every pool needs its own")
        if self.front.pools.prefill or self.front.pools.decode:
            raise ConfigError("front.pools: a scenario says it by `role` of its pools; leave front.pools out")
        check_roles(self.pools)
        painters = [(pool.model, pool.diffusion.pixels_min) for pool in self.pools if pool.kind == "diffusion"]
        if self.shape_pools is not None and len(dict(painters)) == len(dict.fromkeys(painters)):
            raise ConfigError(
                "shape_pools moves replicas between pools by size, and no model has two of them: give one model two "
                "entries of pools with diffusion.pixels_min and pixels_max, or leave shape_pools out"
            )
        self._check_orchestrator()
        models = dict.fromkeys(pool.model for pool in self.pools)
        for model, route in self.front.routes.items():
            if route.fallbacks:
                raise ConfigError(
                    f"front.routes.{model}: clients of a simulation ask for no fallback; leave fallbacks out, or name "
                    "the models in transfers_to"
                )
            unknown = [to for to in route.transfers_to if to not in models]
            if unknown:
                raise ConfigError(
                    f"front.routes.{model}: transfers_to names {unknown[0]!r}, which no pool serves; served are: "
                    f"{', '.join(models)}"
                )

    def _check_orchestrator(self) -> None:
        growing = [pool.name for pool in self.pools if pool.replicas_max is not None]
        if growing and self.orchestrator is None:
            raise ConfigError(f"pool {growing[0]}: replicas_max needs [orchestrator]: nobody would start its replicas")
        if self.orchestrator is not None and self.front.scaling is None:
            raise ConfigError("orchestrator needs [front.scaling]: without it no pool is told to grow or shrink")

    def targets_of(self, tenant: str) -> Targets:
        """What the requests of a tenant are promised."""
        return self.tenants.get(tenant, self.targets)


def check_roles(pools: tuple[PoolParams, ...]) -> None:
    """Raise ConfigError unless every model is served whole, or in two halves that fit together."""
    for model in dict.fromkeys(pool.model for pool in pools):
        mine = [pool for pool in pools if pool.model == model]
        roles = {pool.role for pool in mine}
        if "mixed" in roles and len(roles) > 1:
            raise ConfigError(
                f"pools of {model}: roles {', '.join(sorted(roles))}; a model is served by mixed pools, "
                "or by prefill and decode pools: nothing would reach the mixed ones"
            )
        if len(roles) == 1 and "mixed" not in roles:
            raise ConfigError(f"pools of {model}: all are {roles.pop()}; it needs a prefill and a decode pool")
        sizes = {pool.engine.block_size for pool in mine}
        if len(sizes) > 1:
            raise ConfigError(
                f"pools of {model}: engine.block_size is {', '.join(map(str, sorted(sizes)))}; prompts are hashed "
                "once, so all pools of a model need the same"
            )
