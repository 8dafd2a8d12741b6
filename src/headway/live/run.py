"""One host on the wall clock: the front, the control node, the hub between them and the replicas, and `Serving`."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headway.adapters.gateway.ports import ModelCard, Starting
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.effects import End, ErrorOut
from headway.core.errors import EngineError
from headway.core.events import ClientGone, DrainAsked, Event, RequestArrived, TextStopped
from headway.core.ids import GroupId, NodeId, RequestId
from headway.core.ports import ModelLimits, Node
from headway.core.request import FinishReason
from headway.core.units import Ns
from headway.live.board import Board, Tell
from headway.live.clock import Clock, unix_s
from headway.live.config_models import DiscoverySettings
from headway.live.driver import Driver, Outlet, Ports
from headway.live.eventlog import open_log
from headway.live.front_spec import Address, FrontSpec, Relays
from headway.live.fronts import Fronts
from headway.live.hub import Hub
from headway.live.listening import HttpTimes
from headway.live.model_names import ModelNames
from headway.live.relaying import Relaying
from headway.live.replica_desk import ReplicaDesk
from headway.live.serving import LiveServing, Wiring
from headway.live.spec import ReplicaSpec, SupervisorSettings
from headway.live.stores import TelemetrySettings, Timeline
from headway.live.supervisor import Supervisor
from headway.live.upstream_fleet import UpstreamFleet
from headway.live.upstream_ports import Surroundings
from headway.sched.fleet.migration import MigrationParams
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sched.nodes import ControlNode, FrontConfig, FrontNode, wholes

log = logging.getLogger(__name__)

FRONT: Final = NodeId("node-front-0")
CONTROL: Final = NodeId("node-control")


class Plan(msgspec.Struct, frozen=True):
    """What is started."""

    replicas: tuple[ReplicaSpec, ...]
    front: FrontConfig
    migration: MigrationParams | None
    telemetry: TelemetrySettings
    supervisor: SupervisorSettings
    groups: Mapping[GroupId, Sequence[NodeId]] = {}  # msgspec copies the default
    upstreams: tuple[UpstreamSettings, ...] = ()
    discovery: DiscoverySettings = DiscoverySettings()
    aliases: Mapping[str, str] = {}
    processes: int = 1  # that relay, this one included
    pictures: tuple[ModelCard, ...] = ()  # of diffusion models
    shape_pools: ShapePoolParams | None = None  # None: their replicas keep the sizes that they begin with

    @property
    def relays(self) -> bool:
        """Some requests are answered by upstreams."""
        return bool(self.upstreams) or self.discovery.file is not None


class Live:
    """Everything but HTTP."""

    def __init__(self, plan: Plan, clock: Clock, tell: Tell) -> None:
        telemetry = plan.telemetry
        if telemetry.event_logs is not None:
            Path(telemetry.event_logs).mkdir(parents=True, exist_ok=True)
        timeline = Timeline(telemetry)
        self.board = Board({spec.node: spec.model for spec in plan.replicas}, timeline, tell)
        self.serving = LiveServing(clock, self.board, timeline, telemetry)
        self.hub = Hub(clock, plan.groups, self._silent, self.board.heard)
        self.hub.models = {spec.node: spec.model for spec in plan.replicas}
        self._plan, self.clock, self._clock = plan, clock, clock
        self._is_shared = plan.processes > 1
        self.front = FrontNode(FRONT, plan.front, CONTROL if self._is_shared else None, plan.processes)
        shared = wholes(plan.front, plan.processes) if self._is_shared else None
        self.control = ControlNode(CONTROL, plan.migration, shared, plan.shape_pools)
        self.fronts = Fronts(self.hub, self._feed_control, self.serving.records)
        self.fronts.tell = tell
        self.serving.fronts = self.fronts.view
        self._drivers = [self._driver(self.front, self.hub), self._driver(self.control, self.fronts)]
        self.supervisor = Supervisor(plan.replicas, self.hub, self.board, plan.supervisor, clock)
        self._front_processes: Supervisor | None = None
        self._wiring = Wiring(
            front=self.front,
            feed=self._drivers[0].feed,
            send=self.hub.send,
            waiting=lambda: len(self.front.dispatch.queue),
            in_flight=lambda: len(self.front.book.requests),
            rate_limits=self.front.book.quotas.limits,
            predictions=self.front.dispatch.gate.figures,
            shape_moves=lambda: () if self.control.shapes is None else self.control.shapes.figures,
            desk=ReplicaDesk(self.front.replica_figures, self._drivers[1].feed, lambda: self.control.control.drained),
        )
        self.warm_again = self._wiring.desk.warm_again
        self._relays = _relays(plan)
        self.relaying, self.upstreams = self._relay(plan, tell)
        self.serving.attach(self._wiring, ())  # HTTP answers while models load, for those that are ready
        self.serving.starting = self._starting
        self.board.on_ready = lambda: self.serving.attach(self._wiring, self._cards())

    def _feed_control(self, make: Callable[[Ns], Event]) -> None:
        self._drivers[1].feed(make)

    def _driver(self, node: Node, outlet: Outlet) -> Driver:
        event_log = open_log(self._plan.telemetry.event_logs, node.id)
        ports = Ports(outlet, edge=self.serving.edge)
        driver = Driver(node, self._clock, ports, event_log=event_log, fault=self._broke)
        self.hub.add_local(node.id, driver.feed)
        return driver

    def _relay(self, plan: Plan, tell: Tell) -> tuple[Relaying, UpstreamFleet]:
        """What answers by upstreams, and under which names; aliases and fallbacks serve own models too."""
        relays = self._relays
        names = ModelNames(relays.own, relays.aliases, relays.fallbacks, relays.transfers)
        now_ns, front = self._clock.now_ns, self.front
        relaying = Relaying(
            names,
            now_ns,
            self._wiring.feed,
            lambda model: front.router.can_serve(model, now_ns()),
            self.serving.records.requests,
            relays.created,
        )
        around = Surroundings(
            self.hub, FRONT, now_ns, relaying.exchange, relaying.is_renamed, relaying.answered, self._forget
        )
        self.serving.directory = relaying
        relaying.limits = lambda tenant: self.front.book.quotas.limits(tenant, now_ns())
        self.serving.edge.on_relayed_end = relaying.end
        return relaying, UpstreamFleet(plan.upstreams, plan.discovery, names, around, tell)

    def _forget(self, node: NodeId) -> None:
        """An upstream was taken out for good: another one may get its id, and begins without its drain."""
        self.board.forget(node)
        self._drivers[1].feed(lambda at_ns: DrainAsked(at_ns, "it was taken out", node, False))

    async def start(self) -> None:
        """Start the replicas, which serve as soon as each is ready, and wait for all. Raises EngineError with the
        reason when one cannot."""
        if self._plan.relays:
            await self.upstreams.start()
        await self.supervisor.start()

    async def start_fronts(self, address: Address, gateway: GatewaySettings, times: HttpTimes) -> None:
        """Start the further gateway processes, and wait for them. Raises EngineError when one cannot start."""
        plan = self._plan
        logs, relays, fronts = plan.telemetry.event_logs, self._relays, plan.processes
        specs = [
            FrontSpec(
                NodeId(f"node-front-{number}"), CONTROL, fronts, plan.front, gateway, address, relays, times, logs
            )
            for number in range(1, fronts)
        ]
        self._front_processes = Supervisor(specs, self.fronts, self.fronts, plan.supervisor, self._clock)
        await self._front_processes.start()

    async def stop_fronts(self, grace_s: float) -> None:
        """Let them finish what runs, at most `grace_s`."""
        if self._front_processes is not None:
            await self._front_processes.stop(grace_s)

    @property
    def front_pids(self) -> Mapping[NodeId, int]:
        """The further gateway processes that run."""
        return {} if self._front_processes is None else self._front_processes.pids()

    async def run(self) -> None:
        """Return never; raises EngineError when no replica is left, unless there are upstreams."""
        if self._plan.replicas:
            try:
                await self.supervisor.run()
            except EngineError as error:
                if not self._plan.relays:
                    raise
                log.error("%s; requests are relayed to upstreams only", error)
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """End the replicas, and leave the upstreams."""
        await self.supervisor.stop(self._plan.supervisor.drain_s)
        await self.upstreams.stop()
        for driver in self._drivers:
            driver.close()
        await asyncio.to_thread(self.serving.records.exports.close)

    @property
    def relays(self) -> bool:
        """Some requests are answered by upstreams."""
        return self._plan.relays

    def check(self) -> None:
        """Raise InvariantError unless the nodes of this process agree with themselves."""
        for driver in self._drivers:
            driver.check()

    def _broke(self, event: Event, error: Exception) -> None:
        """A bug in a node of this process: told with its event. Its client gets an error, the others go on."""
        request: RequestId | None = None
        if isinstance(event, RequestArrived | ClientGone | TextStopped):
            request = event.request.id if isinstance(event, RequestArrived) else event.request
        log.error("event %s broke a node", type(event).__name__, exc_info=error, extra={"request": request})
        if request is not None:
            message = f"request {request}: {type(error).__name__} inside Headway; the log has the story"
            self.serving.edge.end(End(request, FinishReason.LOST, ErrorOut(500, "internal_error", message)))

    def _silent(self, node: NodeId, reason: str) -> None:
        self.supervisor.kill(node, reason)

    def _cards(self) -> list[ModelCard]:
        limits: dict[str, ModelLimits] = {}
        for known in self.board.replicas.values():
            if known.limits is not None:
                limits.setdefault(known.model, known.limits)
        created = self._relays.created
        return [
            ModelCard(
                id=model,
                modalities=("text",),
                max_model_len=found.max_model_len,
                created=created,
                block_size=found.block_size,
                vocab_size=found.vocab_size,
                eos_token_ids=found.eos_token_ids,
                root=model,
            )
            for model, found in limits.items()
        ] + [card for card in self._plan.pictures if self.board.has_been_ready(card.id)]

    def _starting(self) -> list[Starting]:
        made = {card.id: card.modalities for card in self._plan.pictures}
        models = dict.fromkeys(known.model for known in self.board.replicas.values())
        return [
            Starting(model, made.get(model, ("text",)), self.board.why_not(model, self._clock.now_ns()))
            for model in models
            if not self.board.has_been_ready(model)
        ]


def _relays(plan: Plan) -> Relays:
    """What every process of this gateway knows of names."""
    routes = plan.front.routes
    return Relays(
        plan.upstreams,
        plan.discovery,
        tuple(dict.fromkeys(str(spec.model) for spec in plan.replicas)),
        plan.aliases,
        {model: route.fallbacks for model, route in routes.items() if route.fallbacks},
        tuple(name for route in routes.values() for name in route.transfers_to),
        unix_s(),
    )
