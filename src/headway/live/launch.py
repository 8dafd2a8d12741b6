"""From a resolved configuration to what `Live` starts, and the HTTP server in front of it."""

import asyncio
import contextlib
import logging
import resource
import socket
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.job_ports import Durable, Meters
from headway.adapters.gateway.protocol import http_protocol
from headway.adapters.gateway.relay.connection import relay_protocol
from headway.adapters.gateway.relay.server import RelayServer
from headway.adapters.models import ModelError, ModelFiles, cache_folder, pull
from headway.adapters.tokenizer import Tokenizer
from headway.core.errors import ConfigError
from headway.core.ids import ModelId, NodeId
from headway.live.byte_tokens import byte_tokenizer
from headway.live.clock import Clock, unix_s
from headway.live.config import Config, gateway_settings, names_of
from headway.live.config_checks import replica_id
from headway.live.config_diffusion import diffusion_spec, picture_card
from headway.live.config_models import SYNTHETIC_MODEL, ModelSettings
from headway.live.front_spec import Address
from headway.live.jobs_settings import state_folder
from headway.live.listening import HttpServer, HttpTimes, http_server, listen
from headway.live.long_steps import tell_long_steps
from headway.live.meters import MemoryMeters
from headway.live.run import CONTROL, FRONT, Live, Plan
from headway.live.spec import DiffusionSpec, LlmSpec, ReplicaSpec
from headway.live.warm_memory import WarmMemory

if TYPE_CHECKING:
    from headway.live.jobs import JobDesk

log = logging.getLogger(__name__)

FRONTS_GRACE_S: Final = 2.0  # beyond their own limit: further processes end by themselves
UPSTREAMS_WAIT_S: Final = 5.0  # the ready line names their models, if they answer so soon
Progress = Callable[[str], None]


class Served(msgspec.Struct, frozen=True):
    """A model of our own engines: its name for clients, its folder (none is needed for the synthetic engine)."""

    name: str
    files: ModelFiles | None
    replicas: int = 1

    def tokenizer(self) -> Tokenizer:
        """Reads its files."""
        return byte_tokenizer() if self.files is None else Tokenizer.from_folder(self.files.folder)


def find_models(config: Config, progress: Progress) -> tuple[Served, ...]:
    """Resolve the models of our own engines, fetching what is needed; none of them may exist. Raises ConfigError."""
    found: dict[str, Served] = {}
    for model in names_of(config).own:
        served = _find(model, config.engine.kind == "synthetic", progress)
        if served.name in found:
            raise ConfigError(f"two of models are called {served.name!r}; give one of them a served_name")
        found[served.name] = served
    return tuple(found.values())


def _find(model: ModelSettings, is_synthetic: bool, progress: Progress) -> Served:
    if is_synthetic:
        return Served(model.served_name or SYNTHETIC_MODEL, None, model.replicas)
    try:
        files = pull(model.name, progress)
    except ModelError as error:
        raise ConfigError(f"model.name: {error}") from error
    return Served(model.served_name or files.name, files, model.replicas)


def plan(config: Config, served: Sequence[Served]) -> Plan:
    """What to start. Replicas are numbered over all models, in their order."""
    models = [model for model in served for _ in range(model.replicas)]
    painters = [(model, place) for model in config.diffusion for place in range(model.replicas)]
    replicas = tuple(
        ReplicaSpec(
            node=replica_id(number),
            model=ModelId(model.name),
            listeners=listeners(config),
            control=CONTROL,
            llm=_llm_spec(config, model),
            event_logs=config.telemetry.event_logs,
            drain_s=config.supervisor.drain_s,
        )
        for number, model in enumerate(models)
    )
    sharers = len(models) + len(painters)
    replicas += tuple(
        _painter(config, replica_id(number), diffusion_spec(*painter, sharers), painter[0].name)
        for number, painter in enumerate(painters, start=len(models))
    )
    return Plan(
        replicas,
        config.front,
        config.fleet.migration,
        config.telemetry,
        config.supervisor,
        upstreams=config.upstreams,
        discovery=config.discovery,
        aliases=config.aliases,
        processes=config.server.processes,
        pictures=tuple(picture_card(model, unix_s()) for model in config.diffusion),
        shape_pools=config.fleet.shape_pools,
    )


def listeners(config: Config) -> tuple[NodeId, ...]:
    """Who hears reports. The control node reads them where it may move requests or replicas; a message that nobody
    reads is encoded, decoded and folded in all the same, every 20 ms."""
    fleet = config.fleet
    return (FRONT,) if fleet.migration is None and fleet.shape_pools is None else (FRONT, CONTROL)


def _painter(config: Config, node: NodeId, spec: DiffusionSpec, model: str) -> ReplicaSpec:
    return ReplicaSpec(
        node=node,
        model=ModelId(model),
        listeners=listeners(config),
        control=CONTROL,
        diffusion=msgspec.structs.replace(spec, report_interval_ms=config.executor.report_interval_ms),
        event_logs=config.telemetry.event_logs,
        drain_s=config.supervisor.drain_s,
    )


def _llm_spec(config: Config, model: Served) -> LlmSpec:
    return LlmSpec(
        folder=None if model.files is None else str(model.files.folder),
        cache=str(cache_folder()),
        engine=config.engine,
        scheduler=config.scheduler,
        cost=config.cost,
        executor=config.executor,
    )


def allow_open_files() -> None:
    """Every client holds a file open; what shells allow by default is fewer than `front.in_flight_max`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems name a limit that they do not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    log.info("open files allowed: %d", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class Running:
    """One `headway serve`."""

    def __init__(self, config: Config, served: Sequence[Served], tell: Callable[[NodeId, str], None]) -> None:
        self._config, self._served, self._tell = config, served, tell
        self.live = Live(plan(config, served), Clock(), tell)
        self._times = HttpTimes(config.limits.keep_alive_s, config.server.shutdown_s)
        self._stop = asyncio.Event()
        self._port = config.server.port
        self._folder = tempfile.TemporaryDirectory(prefix="headway-")  # mode 0700: nobody else connects
        self._jobs: JobDesk | None = None  # where diffusion models are served

    def models(self) -> list[str]:
        """The names that are served now."""
        painters = (model.name for model in self._config.diffusion)
        return [*(model.name for model in self._served), *painters, *self.live.relaying.names.relayed]

    def painters(self) -> dict[str, str]:
        """What models that are no language models make."""
        return {model.name: model.makes for model in self._config.diffusion}

    def stop(self) -> None:
        """Ask it to end."""
        self._stop.set()

    async def run(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Listen, load, serve until `stop`, drain. Raises EngineError when a replica cannot start or none is left,
        ConfigError for a job table or an object store that cannot be used."""
        self._jobs = await self._open_jobs()
        server = self._http()
        listen(listener)
        self._port = listener.getsockname()[1]
        http = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(self._stop.wait())
        fleet = asyncio.create_task(self._fleet(server, ready))
        try:
            await asyncio.wait({http, fleet, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if fleet.done():
                fleet.result()
        finally:
            server.should_exit = True
            jobs = asyncio.create_task(self._stop_jobs())
            fronts = self.live.stop_fronts(self._config.server.shutdown_s + FRONTS_GRACE_S)
            await asyncio.gather(http, fronts, jobs, return_exceptions=True)
            self._said(f"{server.cut} answer(s) did not end in time: cut off as shutting_down" if server.cut else "")
            await self.live.stop()
            if self._jobs is not None:
                await self._jobs.close()  # after what the end of the replicas has ended is metered
            for task in (fleet, stopping):
                task.cancel()
            await asyncio.gather(fleet, stopping, return_exceptions=True)
            self._folder.cleanup()
        http.result()
        jobs.result()

    async def _stop_jobs(self) -> None:
        """Save and hand back what runs, while clients get the rest of their answers."""
        if self._jobs is not None:
            self._said(await self._jobs.stop(self._config.server.shutdown_s))

    def _said(self, words: str) -> None:
        if words:
            self._tell(NodeId("serve"), words)

    async def _fleet(self, server: HttpServer, ready: Callable[[], None]) -> None:
        """Load every replica, say that it is done, and watch them."""
        if self._jobs is not None:
            self._jobs.begin()
        await self.live.start()
        await self.live.upstreams.heard(UPSTREAMS_WAIT_S)
        await server.until_started()
        if self._config.server.processes > 1:
            door = Path(self._folder.name) / "http.sock"
            await server.open_door(door)
            address = Address(self._config.server.host, self._port, str(door))
            await self.live.start_fronts(address, gateway_settings(self._config), self._times)
        ready()
        models = self._config.diffusion
        memory = WarmMemory(models, self.live.board, state_folder(), self.live.warm_again, self._tell)
        beside = [asyncio.create_task(self._tell_long_steps()), asyncio.create_task(memory.run())]
        try:
            await self.live.run()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _tell_long_steps(self) -> None:
        models, shutdown_s = self._config.diffusion, self._config.server.shutdown_s
        if models:
            told = partial(self._tell, NodeId("serve"))
            await tell_long_steps(models, self.live.board, shutdown_s, state_folder(), told)

    async def _open_jobs(self) -> "JobDesk | None":
        """The job table and the object store. Raises ConfigError."""
        if not self._config.diffusion and not self._config.jobs.url:
            return None
        from headway.live.jobs import JobDesk  # SQLAlchemy and Alembic take half a second to import

        config, live = self._config, self.live
        jobs = JobDesk(config.jobs, config.storage, live.serving, live.clock, config.server.shutdown_s)
        jobs.replicas = lambda model: live.serving.able(model)  # its front comes later
        jobs.starting = lambda: [model.id for model in live.serving.starting()]
        await jobs.open()
        live.serving.jobs, live.serving.held, live.serving.webhooks = jobs.states, jobs.held, jobs.webhooks
        live.serving.degraded = jobs.degraded
        self.live.serving.on_record(jobs.observe)
        return jobs

    def _kept(self) -> Durable | Meters:
        """The durable side; without it usage is counted in memory."""
        if self._jobs is not None:
            return self._jobs.durable()
        clock, epoch_ns = self.live.clock, self.live.clock.epoch_ns()
        meters = MemoryMeters(lambda: epoch_ns + clock.now_ns())
        self.live.serving.on_record(meters.observe)
        return meters

    def _http(self) -> HttpServer:
        tokenizers = {model.name: model.tokenizer() for model in self._served}
        gateway = gateway_settings(self._config)
        app = build_app(self.live.serving, tokenizers, gateway, self._kept())
        self.live.fronts.edge = app
        protocol: type[asyncio.Protocol] = http_protocol(gateway)
        if self.live.relays:
            self.live.relaying.count = app.count
            relay = RelayServer(self.live.relaying, gateway, app, asyncio.get_running_loop())
            protocol = relay_protocol(relay)
        return http_server(app, protocol, self._times, "on")
