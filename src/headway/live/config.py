"""The one configuration file: a strict tree, where each value came from, and every adjustment that was made."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from headway.adapters.gateway.prices import Price
from headway.adapters.gateway.settings import (
    AuthSettings,
    GatewaySettings,
    LimitSettings,
    SessionSettings,
    SloDefaults,
    StreamSettings,
)
from headway.adapters.storage.settings import StorageSettings
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.errors import ConfigError
from headway.cost.llm import StepCostParams
from headway.live.config_checks import (
    ReplicaSettings,
    check_built,
    check_front,
    check_gateway,
    check_model,
    check_processes,
    check_quotas,
    check_replica,
    without_effect,
)
from headway.live.config_diffusion import DiffusionSettings
from headway.live.config_diffusion_checks import check_diffusion, sizes_told
from headway.live.config_findings import Findings
from headway.live.config_graphs import capturable
from headway.live.config_layers import Layer, Sourced, build, env_layers, file_layer, nested
from headway.live.config_models import LEFT_OUT_REASON, DiscoverySettings, Names, check_models, is_left_out
from headway.live.config_models import ModelSettings as ModelSettings
from headway.live.config_policies import check_policies, check_routes
from headway.live.config_prices import all_prices, check_sheet
from headway.live.config_tiny import TINY_REASON, is_open, tiny_folder, tiny_models, tiny_routes
from headway.live.exports import check_exports
from headway.live.jobs_settings import JobSettings, check_jobs
from headway.live.spec import EngineSettings, ExecutorSettings, SupervisorSettings
from headway.live.stores import TelemetrySettings
from headway.sched.fleet.migration import MigrationParams
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig

_DRIVER: Final = Path("/proc/driver/nvidia/version")
ENV_PREFIX: Final = "HEADWAY"
ENV_FILE: Final = "HEADWAY_CONFIG"
SECRETS: Final = ("auth.keys", "jobs.url", "jobs.webhooks.secrets")
OF_OWN_MODELS: Final = ("engine.", "scheduler.", "executor.")
OF_PROCESSES: Final = "supervisor."


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the HTTP API listens, and what it tells."""

    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0: every one of this machine
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000  # 0: any free port, named in the ready line
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # that relay, on one port; limits and quotas are shared
    shutdown_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0  # after SIGTERM or SIGINT: open answers, saving of jobs
    metrics_aliases: Literal["none", "vllm"] = "none"  # also expose the metrics under vLLM's names
    price_per_device_hour_usd: Annotated[float, msgspec.Meta(ge=0)] = 2.5  # of models that `prices` does not name
    price_file: str | None = None  # TOML with more tables [[prices]]; a path from the working directory
    public_url: str | None = None  # where clients reach it, for addresses of pictures; unset: the host that they name


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the control node may do with running requests, and with replicas."""

    migration: MigrationParams | None = None  # unset: requests stay where they run
    shape_pools: ShapePoolParams | None = None  # unset: replicas keep their diffusion[].pools


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything. No component receives this tree; each gets its own section."""

    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    models: tuple[ModelSettings, ...] = ()  # several of them, in place of `model`
    diffusion: tuple[DiffusionSettings, ...] = ()  # models that make pictures and videos
    upstreams: tuple[UpstreamSettings, ...] = ()  # servers to which requests are relayed
    discovery: DiscoverySettings = DiscoverySettings()
    aliases: dict[str, str] = {}  # further name = model; clients see it in /v1/models
    engine: EngineSettings = EngineSettings()
    auth: AuthSettings = AuthSettings()
    limits: LimitSettings = LimitSettings()
    stream: StreamSettings = StreamSettings()
    sessions: SessionSettings = SessionSettings()
    slo: dict[str, SloDefaults] = {}  # by route
    scheduler: LlmParams = LlmParams()
    executor: ExecutorSettings = ExecutorSettings()
    cost: StepCostParams = StepCostParams()
    front: FrontConfig = FrontConfig()
    fleet: FleetSettings = FleetSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    jobs: JobSettings = JobSettings()
    storage: StorageSettings = StorageSettings()
    prices: tuple[Price, ...] = ()  # the price sheet; more in server.price_file


class Adjustment(msgspec.Struct, frozen=True):
    """A value that was left to Headway, what it became, and why."""

    key: str
    value: object
    reason: str


class Host(msgspec.Struct, frozen=True):
    """What adjustments depend on."""

    cores: int
    has_cuda: bool = False
    tiny: Path | None = None  # folder of the models that this repository trains

    @staticmethod
    def here() -> "Host":
        """This machine. torch is not imported for it, which takes seconds: a driver and a torch with CUDA count."""
        has_cuda = _DRIVER.exists() and _is_torch_with_cuda()
        return Host(os.cpu_count() or 1, has_cuda=has_cuda, tiny=tiny_folder())


class Resolved(msgspec.Struct, frozen=True):
    """The configuration that runs, the origin of each value as it was given, and the adjustments."""

    config: Config
    sources: tuple[Sourced, ...]
    adjustments: tuple[Adjustment, ...]


def layers(file: Path | None, environment: Mapping[str, str], flags: Sequence[Layer]) -> list[Layer]:
    """Later wins: file, secrets of the environment, flags. The file may also be named by HEADWAY_CONFIG."""
    named = environment.get(ENV_FILE)
    path = file if file is not None else (Path(named) if named else None)
    return [
        *([file_layer(path)] if path is not None else []),
        *(_parsed(layer) for layer in env_layers(environment, ENV_PREFIX, SECRETS)),
        *flags,
    ]


def flag_layer(flag: str, key: str, value: object) -> Layer:
    """A value from the command line."""
    return Layer(f"flag {flag}", nested(key, value))


def set_layer(assignment: str) -> Layer:
    """`a.b=value` with a TOML value; a bare word is a text. Raises ConfigError."""
    key, sign, text = assignment.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {assignment}: write key=value, e.g. --set scheduler.max_seqs=32")
    return flag_layer("--set", key.strip(), _toml_value(text.strip()))


def _toml_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _parsed(layer: Layer) -> Layer:
    def parse(value: object) -> object:
        if isinstance(value, Mapping):
            return {name: parse(inner) for name, inner in value.items()}
        return _toml_value(str(value))

    return Layer(layer.origin, {name: parse(value) for name, value in layer.values.items()})


def resolve(given: Sequence[Layer], host: Host) -> Resolved:
    """Build, check and complete the configuration. Raises ConfigError naming keys and origins of
    everything that is wrong: what is no key or value first, then what does not fit together."""
    raw, sources = build(Config, given)
    tiny = tiny_models(host.tiny) if host.tiny is not None and is_open(sources) else ()
    found = Findings(sources)
    front = msgspec.structs.replace(raw.front, routes=tiny_routes(tiny, raw.front.routes))
    raw = msgspec.structs.replace(raw, diffusion=(*raw.diffusion, *tiny), front=front)
    left_out = is_left_out(names_of(raw), sources)
    if left_out:
        raw = msgspec.structs.replace(raw, model=msgspec.structs.replace(raw.model, replicas=0))
    _check(raw, sources, found)
    config, adjustments = found.of(_complete, raw, sources, host) or (raw, [])
    found.end()
    if left_out:
        adjustments.insert(0, Adjustment("model.replicas", 0, LEFT_OUT_REASON))
    if tiny:
        adjustments.append(Adjustment("diffusion", ", ".join(model.name for model in tiny), TINY_REASON))
    adjustments += [Adjustment(*told) for told in sizes_told(raw.diffusion)]
    return Resolved(config, tuple(sources), tuple(adjustments))


def names_of(config: Config) -> Names:
    """What names models."""
    return Names(
        config.model,
        config.models,
        config.upstreams,
        config.discovery,
        config.aliases,
        config.front,
        config.engine.kind == "synthetic",
        tuple(model.name for model in config.diffusion),
    )


def _check(config: Config, sources: Sequence[Sourced], found: Findings) -> None:
    """What needs no model and no machine: the same for `headway config validate` and `headway serve`."""
    names, settings = names_of(config), found.of(gateway_settings, config)
    replica = ReplicaSettings(config.scheduler, config.engine, config.executor, config.cost)
    if found.of(check_policies, config):
        found.of(check_built, config.front, replica)
    found.of(check_routes, config.front)
    found.of(check_diffusion, config.diffusion, moves=config.fleet.shape_pools is not None)
    found.of(check_quotas, config.front, config.auth)
    found.of(check_processes, config.server.processes, names)
    found.of(check_front, config.front, sum(model.replicas for model in names.own))
    found.of(check_replica, replica)
    for model in names.own if config.engine.kind == "torch" else ():
        found.of(check_model, model.name)
    found.of(check_exports, config.telemetry)
    found.of(check_jobs, config.jobs, config.storage)
    if settings is not None:
        found.of(check_gateway, settings)
        found.of(lambda sheet: check_sheet(sheet, check_models(names, sources)), settings.prices)


def _complete(raw: Config, sources: Sequence[Sourced], host: Host) -> tuple[Config, list[Adjustment]]:
    """Fill in what was left to Headway. Raises ConfigError for what cannot work on this machine."""
    engine = raw.engine
    adjustments = [Adjustment(s.key, s.value, reason) for s, reason in without_effect(sources, engine)]
    replicas = sum(model.replicas for model in names_of(raw).own)
    if not replicas:
        has_processes = raw.server.processes > 1 or raw.diffusion
        kinds = OF_OWN_MODELS if has_processes else (*OF_OWN_MODELS, OF_PROCESSES)
        unread = [s for s in sources if s.origin != "default" and s.key.startswith(kinds)]
        return raw, [Adjustment(s.key, s.value, "without effect: no model of our own is served") for s in unread]
    if engine.threads is None and engine.kind == "torch":
        threads = max(1, host.cores // replicas)
        adjustments.append(Adjustment("engine.threads", threads, f"{host.cores} cores for {replicas} replica(s)"))
        engine = msgspec.structs.replace(engine, threads=threads)
    if engine.device == "auto" and engine.kind == "torch":
        device: Literal["cpu", "cuda"] = "cuda" if host.has_cuda else "cpu"
        reason = "a driver and a torch with CUDA are here" if host.has_cuda else "no driver, or a torch without CUDA"
        adjustments.append(Adjustment("engine.device", device, reason))
        engine = msgspec.structs.replace(engine, device=device)
    _refuse_unusable(engine)
    buckets, downgraded = capturable(raw.executor.buckets, engine)
    if downgraded is not None:
        adjustments.append(Adjustment("executor.buckets.graph_mode", buckets.graph_mode, downgraded))
    if engine.kind == "torch" and engine.device == "cpu" and (engine.threads or 0) > host.cores:
        raise ConfigError(
            f"engine.threads = {engine.threads} is above the {host.cores} core(s) of this machine; lower it, or leave "
            "it out for cores / model.replicas"
        )
    executor = msgspec.structs.replace(raw.executor, buckets=buckets)
    return msgspec.structs.replace(raw, engine=engine, executor=executor), adjustments


def _refuse_unusable(engine: EngineSettings) -> None:
    """What no engine here can do. Raises ConfigError naming both keys."""
    if engine.kind == "synthetic":
        if engine.device == "cuda":
            raise ConfigError("engine.device = cuda with engine.kind = synthetic: it has no device; use kind = torch")
        return
    if engine.device == "cuda" and engine.kernels == "native":
        raise ConfigError("engine.kernels = native with engine.device = cuda: these are kernels of a CPU; use auto")


def _is_torch_with_cuda() -> bool:
    try:
        return "+cpu" not in version("torch")
    except PackageNotFoundError:
        return False


def gateway_settings(config: Config) -> GatewaySettings:
    """What the gateway is given."""
    return GatewaySettings(
        auth=config.auth,
        limits=config.limits,
        stream=config.stream,
        sessions=config.sessions,
        slo=config.slo,
        metrics_aliases=config.server.metrics_aliases,
        price_per_device_hour_usd=config.server.price_per_device_hour_usd,
        prices=all_prices(config.prices, config.server.price_file),
        public_url=config.server.public_url,
    )
