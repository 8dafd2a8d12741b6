"""A fleet for routing studies: the real front and the real replicas, each with a truth, a size and a way to be seen."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from headway.core.ids import NodeId
from headway.core.ports import ModelLimits, Node
from headway.cost.llm import StepCost, StepCostParams, roofline
from headway.sched.config import FrontConfig, Membership, WorkerConfig
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontNode, WorkerNode
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room
from headway.sim.driver import Machine, SimParams, Simulation
from headway.sim.fleet import FRONT, replica_id
from headway.sim.hardware import A100, H100, LLAMA_70B, RooflineTruth
from headway.sim.network import NetworkParams
from headway.sim.scrape import ScrapedNode, ScrapeParams
from headway.sim.tokenless import TokenlessEngine
from headway.workload.mooncake import BLOCK_TOKENS
from headway.workload.offered import Offered

MODEL_LEN: Final = 131_072
UNBOUNDED_MS: Final = 1e9
REPORT_MS: Final = 50.0  # live reports every 20 ms; with as many requests to simulate that costs more than the steps
# vLLM's defaults for an online server on these devices: 2048 batched tokens with chunked prefill, 256 sequences.
ENGINE: Final = LlmParams(
    max_seqs=256, step_tokens=2048, chunk=PolicyChoice("constant", {"tokens": 2048}), decisions=False
)
OURS: Final = msgspec.structs.replace(
    ENGINE, chunk=PolicyChoice("tpot_budget", {"tokens": 2048}), order=PolicyChoice("least_slack")
)
ENGINES: Final = {"plain": ENGINE, "ours": OURS}


class ReplicaKind(msgspec.Struct, frozen=True):
    """What one replica is. Nobody but its executor knows `truth`."""

    truth: RooflineTruth = RooflineTruth()
    kv_tokens: int = 0  # 0: what fits in its memory

    @property
    def kv_blocks(self) -> int:
        """Blocks of `BLOCK_TOKENS`."""
        return (self.kv_tokens or self.truth.kv_tokens()) // BLOCK_TOKENS


FAST: Final = ReplicaKind()
SLOW: Final = ReplicaKind(RooflineTruth(device=A100))
# Holds one request of the longest kind, and nothing beside it.
STARVED: Final = ReplicaKind(kv_tokens=MODEL_LEN)


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy and its parameters, as a study names them."""

    type: str
    params: dict[str, object] = {}  # msgspec copies the default

    def policy(self) -> PolicyChoice:
        """As a node is configured with it."""
        return PolicyChoice(self.type, self.params)


class RoutingFleetParams(msgspec.Struct, frozen=True):
    """`room` unbounded: the front dispatches at once. `scrape`: replicas are upstreams, seen late and little."""

    kinds: tuple[ReplicaKind, ...]
    router: PolicyChoice
    admission: PolicyChoice
    late_binding: bool = False
    llm: LlmParams = ENGINE
    scrape: ScrapeParams | None = None
    check: bool = False
    log: bool = False

    @property
    def room(self) -> Room:
        """How much may wait in a replica's own queue."""
        return Room() if self.late_binding else Room(engine_queue_ms=UNBOUNDED_MS, cold_requests=1_000_000_000)


def kinds(name: str, count: int) -> tuple[ReplicaKind, ...]:
    """Return the replicas of a scenario: `uniform`, `starved` (the last has a tenth of the KV), `mixed` (two kinds)."""
    if name == "starved":
        return (*(FAST for _ in range(count - 1)), STARVED)
    if name == "mixed":
        return tuple(FAST if place % 2 == 0 else SLOW for place in range(count))
    if name == "uniform":
        return (FAST,) * count
    raise ValueError(f"no fleet is called {name!r}")


def belief() -> StepCostParams:
    """Where a replica's own estimate starts: the catalogue's peak numbers, a third too good, learned from there."""
    return roofline(
        weight_bytes=2 * LLAMA_70B.parameters,
        parameters=LLAMA_70B.parameters,
        kv_bytes_per_token=LLAMA_70B.kv_bytes_per_token,
        flops=8 * H100.flops * 0.5,
        bytes_per_s=8 * H100.bytes_per_s * 0.8,
        overhead_ns=1_000_000,
    )


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet by names: what the rows of a study differ in."""

    fleet: str  # uniform, starved, mixed
    replicas: int
    router: Choice
    admission: Choice
    seen: str = "exact"  # exact: the replicas' own reports every 20 ms; scrape: their metrics pages
    late_binding: bool = False
    engine: str = "plain"  # plain: vLLM's defaults; ours: this project's order and chunks

    def params(self) -> RoutingFleetParams:
        """Return what to simulate. Raises ValueError for an unknown name."""
        if self.seen not in ("exact", "scrape") or self.engine not in ENGINES:
            raise ValueError(f"no replicas are seen by {self.seen!r}, or no engine is called {self.engine!r}")
        return RoutingFleetParams(
            kinds(self.fleet, self.replicas),
            self.router.policy(),
            self.admission.policy(),
            self.late_binding,
            ENGINES[self.engine],
            ScrapeParams() if self.seen == "scrape" else None,
        )


class RoutingFleet:
    """One front and its replicas in a simulation without content: lengths come from the workload."""

    def __init__(self, params: RoutingFleetParams, offered: Sequence[Offered]) -> None:
        self.params = params
        self._lengths = {item.request.id: item.output_tokens for item in offered}
        network = NetworkParams(latency_ns=100_000)
        self.sim = Simulation(SimParams(network=network, check=params.check, log=params.log))
        self.replicas = [replica_id(place) for place in range(len(params.kinds))]
        self.sim.add(FRONT, Machine(lambda _: self.build_front()))
        for place, kind in enumerate(params.kinds):
            seed = msgspec.structs.replace(kind.truth, seed=place)
            engine = partial(TokenlessEngine, self._lengths)
            self.sim.add(self.replicas[place], Machine(partial(self.build_worker, place), engine, seed))
        for item in offered:
            self.sim.arrive(FRONT, item.request, item.request.arrived_ns)

    def build_front(self) -> FrontNode:
        """The gateway. Its own limits are out of the way: what is refused is refused by the policy under test."""
        config = FrontConfig(
            router=self.params.router,
            admission=self.params.admission,
            room=self.params.room,
            in_flight_max=1_000_000,
            stream_bytes_max=1 << 50,
        )
        return FrontNode(FRONT, config)

    def build_worker(self, place: int, incarnation: int) -> Node:
        """One replica."""
        params, kind, replica = self.params, self.params.kinds[place], self.replicas[place]
        limits = ModelLimits(
            model=LLAMA_70B.name,
            vocab_size=1 << 20,
            max_model_len=MODEL_LEN,
            block_size=BLOCK_TOKENS,
            kv_blocks=kind.kv_blocks,
            kv_bytes_per_block=round(BLOCK_TOKENS * LLAMA_70B.kv_bytes_per_token),
            host_slots=0,
            layers=LLAMA_70B.layers,
            eos_token_ids=(),
            dtype="bfloat16",
            device="none",
        )
        machine = LlmMachine(params.llm, limits, StepCost(belief()), replica)
        node = WorkerNode(
            Membership(replica, incarnation, (FRONT,)), machine, limits, WorkerConfig(report_interval_ms=REPORT_MS)
        )
        if params.scrape is None:
            return node
        return ScrapedNode(node, params.scrape, place / len(params.kinds))

    @property
    def front(self) -> FrontNode:
        """The front as it lives now."""
        node = self.sim.lives[FRONT].node
        assert isinstance(node, FrontNode)
        return node

    def worker(self, replica: NodeId) -> WorkerNode:
        """A replica as it lives now."""
        node = self.sim.lives[replica].node
        if isinstance(node, ScrapedNode):
            node = node.node
        assert isinstance(node, WorkerNode)
        return node
