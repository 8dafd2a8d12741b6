"""From a resolved configuration to what `Live` starts, and the HTTP server in front of it."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import uvicorn

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.protocol import http_protocol
from headway.adapters.gateway.relay.connection import relay_protocol
from headway.adapters.gateway.relay.server import RelayServer
from headway.adapters.models import ModelError, ModelFiles, cache_folder, pull
from headway.adapters.tokenizer import Tokenizer
from headway.core.errors import ConfigError, EngineError
from headway.core.ids import ModelId, NodeId
from headway.live.byte_tokens import byte_tokenizer
from headway.live.clock import Clock
from headway.live.config import Config, gateway_settings, names_of
from headway.live.config_checks import replica_id
from headway.live.config_models import SYNTHETIC_MODEL, ModelSettings
from headway.live.run import CONTROL, FRONT, Live, Plan
from headway.live.spec import LlmSpec, ReplicaSpec

log = logging.getLogger(__name__)

BACKLOG: Final = 2048
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
    replicas = tuple(
        ReplicaSpec(
            node=replica_id(number),
            model=ModelId(model.name),
            listeners=(FRONT, CONTROL),
            control=CONTROL,
            llm=_llm_spec(config, model),
            event_logs=config.telemetry.event_logs,
            drain_s=config.supervisor.drain_s,
        )
        for number, model in enumerate(models)
    )
    return Plan(
        replicas,
        config.front,
        config.fleet.migration,
        config.cost,
        config.telemetry,
        config.supervisor,
        upstreams=config.upstreams,
        discovery=config.discovery,
        aliases=config.aliases,
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


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything is loaded, so that one in use is told at once. Raises EngineError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _listen(listener: socket.socket) -> None:
    """Two servers that start at the same time can both bind, and only one can listen. Raises EngineError."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> EngineError:
    reason = error.strerror or error
    return EngineError(f"server.host, server.port: cannot listen on {host} port {port}: {reason}", status=503)


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process has one place that decides how it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class Running:
    """One `headway serve`."""

    def __init__(self, config: Config, served: Sequence[Served], tell: Callable[[NodeId, str], None]) -> None:
        self._config, self._served = config, served
        self.live = Live(plan(config, served), Clock(), tell)
        self._stop = asyncio.Event()

    def models(self) -> list[str]:
        """The names that are served now."""
        return [*(model.name for model in self._served), *self.live.relaying.names.relayed]

    def stop(self) -> None:
        """Ask it to end."""
        self._stop.set()

    async def run(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Listen, load, serve until `stop`, drain. Raises EngineError when a replica cannot start or none is left."""
        server = self._http()
        _listen(listener)
        http = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(self._stop.wait())
        fleet = asyncio.create_task(self._fleet(server, ready))
        try:
            await asyncio.wait({http, fleet, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if fleet.done():
                fleet.result()
        finally:
            server.should_exit = True
            await asyncio.gather(http, return_exceptions=True)
            await self.live.stop()
            for task in (fleet, stopping):
                task.cancel()
            await asyncio.gather(fleet, stopping, return_exceptions=True)
        http.result()

    async def _fleet(self, server: HttpServer, ready: Callable[[], None]) -> None:
        """Load every replica, say that it is done, and watch them."""
        await self.live.start()
        await self.live.upstreams.heard(UPSTREAMS_WAIT_S)
        while not server.started:
            await asyncio.sleep(0.005)  # uvicorn has no event for it
        ready()
        await self.live.run()

    def _http(self) -> HttpServer:
        settings = self._config.server
        tokenizers = {model.name: model.tokenizer() for model in self._served}
        gateway = gateway_settings(self._config)
        app = build_app(self.live.serving, tokenizers, gateway)
        protocol: type[asyncio.Protocol] = http_protocol(gateway.limits)
        if self.live.relays:
            self.live.relaying.count = app.count
            relay = RelayServer(self.live.relaying, gateway, app, asyncio.get_running_loop())
            protocol = relay_protocol(relay)
        return HttpServer(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                lifespan="on",
                log_config=None,  # its lines go where ours go
                log_level="warning",
                access_log=False,
                timeout_keep_alive=self._config.limits.keep_alive_s,  # type: ignore[arg-type]  # any number works
                timeout_graceful_shutdown=settings.shutdown_s,  # type: ignore[arg-type]  # any number works
            )
        )
