"""A simulated fleet from one struct: a front, LLM replicas with their own truth, and the workload that hits them."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from headway.core.ids import ModelId, NodeId
from headway.core.ports import Node
from headway.core.reports import DenoiseCoefficients
from headway.core.request import Request
from headway.core.units import Ns
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.llm import MeasuredStep, StepCost, StepCostParams
from headway.engines.synthetic.engine import SyntheticEngine, SyntheticParams
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.fleet.migration import MigrationParams
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import ControlNode, DiffusionNode, FrontConfig, FrontNode, Membership, WorkerConfig, WorkerNode
from headway.sched.runtime.group import GroupParams
from headway.sim.clients import Sink
from headway.sim.driver import Machine, SimParams, Simulation
from headway.sim.truth import LinearTruth

# As live names them (`live.run`), so that a log of either replays through the nodes of the other.
FRONT: Final = NodeId("node-front-0")
CONTROL: Final = NodeId("node-control")
DIFFUSION_MODEL: Final = ModelId("synthetic-diffusion")


class FleetParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`truth` is what steps take; `belief` is where the replicas' own estimate starts."""

    replicas: int = 1
    engine: SyntheticParams = SyntheticParams()
    llm: LlmParams = LlmParams()
    front: FrontConfig = FrontConfig()
    worker: WorkerConfig = WorkerConfig()
    migration: MigrationParams | None = None
    group: GroupParams | None = None  # the replicas run their steps in lockstep
    diffusion_replicas: int = 0
    diffusion: DiffusionParams = DiffusionParams()
    denoise: DenoiseCoefficients | None = None  # what they believe of their work at first; unset: nothing, ever
    belief: StepCostParams = StepCostParams()
    warm_up: Mapping[NodeId, tuple[MeasuredStep, ...]] = msgspec.field(default_factory=dict)  # what each has measured
    listeners: tuple[NodeId, ...] = (FRONT, CONTROL)  # of the LLM replicas' reports
    report_slack_ns: Ns = 0  # of `Membership`; jumps count reports by the interval alone
    truth: LinearTruth = LinearTruth()
    sim: SimParams = SimParams()


def replica_id(place: int) -> NodeId:
    """Return the id of the replica at a place of the fleet."""
    return NodeId(f"rep-{place}")


class Fleet:
    """One front and its replicas in a simulation."""

    def __init__(self, params: FleetParams, sink: Sink | None = None) -> None:
        """`sink`: takes what is over, as `Simulation` says."""
        self.params = params
        self.sim = Simulation(params.sim, sink)
        self.replicas = [replica_id(place) for place in range(params.replicas)]
        self.sim.add(FRONT, Machine(lambda _: self.build_front()))
        self.sim.add(CONTROL, Machine(lambda _: self.build_control()))
        for replica in self.replicas:
            self.sim.add(replica, self.machine(replica))
        if params.group is not None:
            self.sim.groups.join(params.group.group, params.group.members)
        for place in range(params.diffusion_replicas):
            painter = NodeId(f"rep-diffusion-{place}")
            self.sim.add(painter, Machine(partial(self.build_painter, painter), truth=params.truth))

    def build_front(self) -> Node:
        """Build a front as the simulation does, for a replay."""
        return FrontNode(FRONT, self.params.front)

    def build_control(self) -> Node:
        """Build the control node as the simulation does, for a replay."""
        return ControlNode(CONTROL, self.params.migration)

    def build_worker(self, replica: NodeId, incarnation: int) -> WorkerNode:
        """Build a replica's node as the simulation does, for a replay."""
        params = self.params
        limits = SyntheticEngine(params.engine).limits
        belief = params.belief
        if not belief.kv_bytes_per_block:  # a size of the engine, known after load; not something to believe
            belief = msgspec.structs.replace(belief, kv_bytes_per_block=limits.kv_bytes_per_block)
        cost, measured = StepCost(belief), params.warm_up.get(replica, ())
        cost.begin(measured)
        machine = LlmMachine(params.llm, limits, cost, replica)
        member = Membership(replica, incarnation, params.listeners, CONTROL, params.report_slack_ns)
        node = WorkerNode(member, machine, limits, params.worker, params.group)
        node.worker.rates.begin(measured)
        return node

    def build_painter(self, replica: NodeId, incarnation: int) -> DiffusionNode:
        """Build a diffusion replica's node as the simulation does, for a replay."""
        member = Membership(replica, incarnation, (FRONT, CONTROL))
        params = self.params
        belief = None if params.denoise is None else DenoiseCost(params.denoise)
        machine = DiffusionMachine(params.diffusion, belief, Holdings(replica))
        return DiffusionNode(member, machine, DIFFUSION_MODEL, self.params.worker)

    def machine(self, replica: NodeId) -> Machine:
        """What the simulation needs to start a replica."""
        params = self.params
        return Machine(
            lambda incarnation: self.build_worker(replica, incarnation),
            lambda: SyntheticEngine(params.engine),
            params.truth,
        )

    def offer(self, requests: Iterable[Request]) -> None:
        """Let each request arrive at its own time."""
        for request in requests:
            self.sim.arrive(FRONT, request, request.arrived_ns)

    @property
    def front(self) -> FrontNode:
        """The front as it lives now."""
        node = self.sim.lives[FRONT].node
        assert isinstance(node, FrontNode)
        return node

    def worker(self, place: int) -> WorkerNode:
        """A replica as it lives now."""
        node = self.sim.lives[self.replicas[place]].node
        assert isinstance(node, WorkerNode)
        return node
