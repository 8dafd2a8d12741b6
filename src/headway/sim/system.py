"""A simulated system: the production front, control and worker nodes of every pool, their executors and their clients.

Nothing here decides: nodes are built as `headway serve` builds them, only engines, links and clients are models.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from headway.core.blockhash import block_hashes, cache_root
from headway.core.errors import ConfigError
from headway.core.ids import ModelId, NodeId, RequestId
from headway.core.ports import Node
from headway.core.request import LlmRequest, Slo
from headway.core.units import Ns
from headway.cost.llm import StepCost
from headway.sched.config import FrontConfig, Membership
from headway.sched.llm.machine import LlmMachine
from headway.sched.nodes import ControlNode, DiffusionNode, FrontNode, WorkerNode
from headway.sched.reporter import ReplicaNumbers
from headway.sched.router.machine import PdPools
from headway.sim.catalogue import Catalogue
from headway.sim.clients import Sink
from headway.sim.diffusion_pool import DiffusionPool
from headway.sim.door import Asked, Door
from headway.sim.driver import Machine, SimParams, Simulation
from headway.sim.faults import Faults, Slowed
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.model_truth import ModelTruth
from headway.sim.orchestrator import Orchestrator, Owned, start_ns
from headway.sim.pools import PoolParams
from headway.sim.replicas import LlmReplica, llm_replica
from headway.sim.scenario import Scenario
from headway.sim.scrape import ScrapedNode
from headway.sim.tokenless import TokenlessEngine
from headway.workload.offered import Source


def replica_ids(pool: PoolParams) -> list[NodeId]:
    """Return the ids of all replicas that a pool can have."""
    return [NodeId(f"rep-{pool.name}-{place}") for place in range(pool.places)]


def front_config(scenario: Scenario) -> FrontConfig:
    """Return the front's configuration with the roles of the pools in it."""
    prefill, decode = (
        tuple(node for pool in scenario.pools if pool.role == role for node in replica_ids(pool))
        for role in ("prefill", "decode")
    )
    pools = PdPools(prefill, decode, scenario.front.pools.prompt_tokens_min)
    return msgspec.structs.replace(scenario.front, pools=pools)


def pool_of(replica: NodeId) -> str:
    """Return the name of the pool that a replica belongs to."""
    return replica.removeprefix("rep-").rpartition("-")[0]


class World(msgspec.Struct, frozen=True):
    """What pools share: output tokens of what is in flight, and who hears reports."""

    lengths: Mapping[RequestId, int]
    listeners: tuple[NodeId, ...]


class Pool:
    """The replicas of one entry of `pools`."""

    def __init__(self, params: PoolParams, catalogue: Catalogue, seed: int, world: World) -> None:
        """Raises ConfigError for what fits nowhere."""
        self.params, self._world = params, world
        self.replicas = replica_ids(params)
        self.replica: LlmReplica = llm_replica(params, catalogue)
        self.kv_blocks = self.replica.limits.kv_blocks  # of a replica
        self.price_per_hour = self.replica.price_per_hour  # of one replica, in USD
        self.cold_start_ns = start_ns(params, self.replica.weight_bytes)
        self.truths = {node: ModelTruth(self.replica.step, params.truth, seed, node) for node in self.replicas}

    def build(self, place: int, incarnation: int) -> Node:
        """Build a replica's node as the simulation does, for a replay."""
        params, node, limits = self.params, self.replicas[place], self.replica.limits
        try:
            machine = LlmMachine(params.scheduler, limits, StepCost(self.replica.belief), node)
        except ConfigError as error:
            raise ConfigError(f"pool {params.name}: scheduler.{error}") from None
        member = Membership(node, incarnation, self._world.listeners, CONTROL)
        try:
            worker = WorkerNode(member, machine, limits, params.worker)
        except ConfigError as error:
            raise ConfigError(f"pool {params.name}: worker.{error}") from None
        if params.seen == "report":
            return worker
        return ScrapedNode(worker, params.scrape, place / len(self.replicas))

    def machine(self, place: int) -> Machine:
        """What the simulation needs to start a replica."""
        engine = partial(TokenlessEngine, self._world.lengths)
        return Machine(partial(self.build, place), engine, self.truths[self.replicas[place]])


AnyPool: TypeAlias = Pool | DiffusionPool


class System:
    """One front, the control node and every pool, in one simulation."""

    def __init__(self, scenario: Scenario, source: Source, sink: Sink, *, log: bool = False) -> None:
        """`sink` hears of every request when it is over. `log`: keep every turn of every node."""
        self.scenario = scenario
        self._front_config = front_config(scenario)
        catalogue = Catalogue(scenario.catalogue)
        network = scenario.network.params(catalogue.link_named(scenario.network.kv_link))
        params = SimParams(network=network, check=scenario.sim.check, log=log, jumps=scenario.sim.jumps)
        self.sim = Simulation(params, sink)
        gateway = scenario.gateway
        self.sim.offers.door = Door(scenario.network.client_ns, gateway.request_ns, self._promised, gateway.processes)
        self.sim.offers.door.readdress = self._readdressed
        self._block_sizes = {pool.model: pool.engine.block_size for pool in scenario.pools}
        # Without migration the control node asks for nobody's load: a third of all messages would tell it in vain.
        is_told = scenario.migration is not None or scenario.shape_pools is not None
        listeners = (FRONT, CONTROL) if is_told else (FRONT,)
        world = World(self.sim.offers.lengths, listeners)
        self.pools: list[AnyPool] = [
            DiffusionPool(pool, catalogue, scenario.seed)
            if pool.kind == "diffusion"
            else Pool(pool, catalogue, scenario.seed, world)
            for pool in scenario.pools
        ]
        self.sim.add(FRONT, Machine(lambda _: self.build_front()))
        self.sim.add(CONTROL, Machine(lambda _: self.build_control()))
        self.owned = [Owned(pool, pool.params) for pool in self.pools]
        for pool in self.pools:
            for place, node in enumerate(pool.replicas[: pool.params.replicas]):
                self.sim.add(node, pool.machine(place))
        self._devices = {node: pool.params.devices for pool in self.pools for node in pool.replicas}
        self._kv_bytes_per_s = network.copy_bytes_per_s
        self.sim.network.copy_bytes_per_s = self._copy_bytes_per_s
        self.sim.offer(FRONT, source)
        truths: dict[NodeId, Slowed] = {}
        for pool in self.pools:
            truths.update(pool.truths)
        models = {node: ModelId(pool.params.model) for pool in self.pools for node in pool.replicas}
        Faults(self.sim, truths, models).arm(scenario.faults)
        if scenario.orchestrator is not None:
            Orchestrator(self.sim, scenario.orchestrator, self.owned, lambda: self.front)

    def _copy_bytes_per_s(self, src: NodeId, dst: NodeId) -> float:
        """Every device sends its part of the KV over a link of its own, to one that receives."""
        return self._kv_bytes_per_s * min(self._devices[src], self._devices[dst])

    def _readdressed(self, request: LlmRequest, to: ModelId) -> LlmRequest:
        """A model has its own cache, and its pools their own block size."""
        request = msgspec.structs.replace(request, model=to)
        if not request.block_hashes:
            return request
        size, root = self._block_sizes[to], cache_root(model=to)
        hashes = block_hashes(root, request.prompt, size)
        return msgspec.structs.replace(request, cache_root=root, block_hashes=hashes, block_tokens=size)

    def _promised(self, request: Asked, received_ns: Ns) -> Asked:
        """A request that brings no SLO of its own is promised its tenant's targets, as a gateway does."""
        if request.slo != Slo():
            return request
        targets = self.scenario.targets_of(request.tenant)
        slo = targets.slo(received_ns, is_text=isinstance(request, LlmRequest))
        return request if slo == Slo() else msgspec.structs.replace(request, slo=slo)

    def build_front(self) -> Node:
        """Build the front as the simulation does, for a replay."""
        try:
            return FrontNode(FRONT, self._front_config)
        except ConfigError as error:
            raise ConfigError(f"front.{error}") from None

    def build_control(self) -> Node:
        """Build the control node as the simulation does, for a replay."""
        return ControlNode(CONTROL, self.scenario.migration, shapes=self.scenario.shape_pools)

    @property
    def front(self) -> FrontNode:
        """The front as it lives now."""
        node = self.sim.lives[FRONT].node
        assert isinstance(node, FrontNode)
        return node

    def worker(self, replica: NodeId) -> WorkerNode:
        """A replica of an LLM pool as it lives now."""
        node = self.sim.lives[replica].node
        if isinstance(node, ScrapedNode):
            node = node.node
        assert isinstance(node, WorkerNode)
        return node

    def numbers(self, replica: NodeId) -> ReplicaNumbers:
        """What a replica of any pool reports, as of now."""
        node = self.sim.lives[replica].node
        return node.worker.numbers if isinstance(node, DiffusionNode) else self.worker(replica).worker.machine

    def counters(self, replica: NodeId) -> Mapping[str, int]:
        """What a replica's scheduler has counted since it started."""
        return self.numbers(replica).counters()

    @property
    def replicas(self) -> Sequence[NodeId]:
        """Every replica that there is or was, pool by pool."""
        return [node for pool in self.pools for node in pool.replicas if node in self.sim.lives]
