"""Small simulated diffusion systems for the tests beside this file."""

from collections.abc import Iterable

from msgspec.structs import replace

from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId
from headway.core.request import Request
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sched.nodes import ControlNode, DiffusionNode, FrontConfig, FrontNode
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room
from headway.sim.catalogue import Additions, Catalogue
from headway.sim.clients import Stream
from headway.sim.diffusion_pool import DiffusionPool
from headway.sim.driver import Machine, SimParams, Simulation
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.network import NetworkParams
from headway.sim.pools import PoolParams, TruthParams
from headway.workload.offered import Source

CATALOGUE = Catalogue(Additions())
EXACT = TruthParams(scale=1.0, jitter=0.0, spread=0.0)
# Whatever comes goes to a replica at once: their order is looked at, not the front's.
FRONT_CONFIG = FrontConfig(router=PolicyChoice("least_work"), room=Room(cold_requests=1_000_000))


class Studio:
    """One front and some pools of diffusion replicas."""

    def __init__(
        self,
        *pools: PoolParams,
        front: FrontConfig = FRONT_CONFIG,
        seed: int = 0,
        log: bool = False,
        checks: bool = False,
        shapes: ShapePoolParams | None = None,
    ) -> None:
        self.sim = Simulation(SimParams(network=NetworkParams(latency_ns=0), flush_ns=0, log=log, check=checks))
        self.pools = [DiffusionPool(replace(pool, kind="diffusion"), CATALOGUE, seed) for pool in pools]
        self.sim.add(FRONT, Machine(lambda _: FrontNode(FRONT, front)))
        self.sim.add(CONTROL, Machine(lambda _: ControlNode(CONTROL, None, shapes=shapes)))
        for pool in self.pools:
            for place, node in enumerate(pool.replicas):
                self.sim.add(node, pool.machine(place))

    def run(self, requests: Source | Iterable[Request]) -> "Studio":
        """Let all arrive and end."""
        if hasattr(requests, "first"):
            self.sim.offer(FRONT, requests)
        else:
            for request in requests:
                self.sim.arrive(FRONT, request, request.arrived_ns)
        self.sim.run()
        return self

    @property
    def front(self) -> FrontNode:
        """The front."""
        node = self.sim.lives[FRONT].node
        assert isinstance(node, FrontNode)
        return node

    @property
    def streams(self) -> dict[RequestId, Stream]:
        """By request."""
        return self.sim.clients.streams

    def evidence(self) -> list[EvidenceRecord]:
        """Of every request that is over."""
        return [stream.evidence for stream in self.streams.values() if stream.evidence is not None]

    def painter(self, name: str) -> DiffusionNode:
        """A replica as it lives now."""
        node = self.sim.lives[NodeId(name)].node
        assert isinstance(node, DiffusionNode)
        return node
