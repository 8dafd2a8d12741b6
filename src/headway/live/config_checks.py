"""Refuses a configuration that cannot work, before a model is fetched; finds values that nobody would read."""

import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headway.adapters.gateway.pictures.routes import SLO_ROUTES
from headway.adapters.gateway.settings import AuthSettings, GatewaySettings
from headway.adapters.gateway.settings import check_settings as check_gateway_settings
from headway.adapters.models import DEFAULT_MODEL, ModelError, pull
from headway.adapters.models.hub import is_hub_id
from headway.core.errors import ConfigError
from headway.core.ids import NodeId
from headway.cost.llm import StepCost, StepCostParams
from headway.live.config_findings import Findings
from headway.live.config_layers import Faults, Sourced
from headway.live.config_models import Names
from headway.live.config_words import join
from headway.live.spec import EngineSettings, ExecutorSettings
from headway.sched.llm.params import LlmParams, check_watermark
from headway.sched.llm.params import check_settings as check_scheduler
from headway.sched.nodes import FrontConfig
from headway.sched.policies import admission_policy, pace_policy, routing_policy

_PATHS: Final = ("/", "./", "../", "~", ".\\")
OF_TORCH: Final = ("model.name", "engine.threads", "engine.dtype", "engine.kernels", "engine.kv_memory_mb")
OF_SYNTHETIC: Final = ("engine.synthetic.step_us", "engine.synthetic.token_us")


class ReplicaSettings(NamedTuple):
    """What every replica of a language model runs with."""

    scheduler: LlmParams
    engine: EngineSettings
    executor: ExecutorSettings
    cost: StepCostParams


def without_effect(sources: Sequence[Sourced], engine: EngineSettings) -> Iterator[tuple[Sourced, str]]:
    """Values that were given and that this engine does not read, with the reason."""
    unread = dict.fromkeys(OF_TORCH if engine.kind == "synthetic" else OF_SYNTHETIC, f"engine.kind = {engine.kind}")
    if engine.kv_blocks is not None:
        unread.setdefault("engine.kv_memory_mb", "engine.kv_blocks is given")
    for sourced in sources:
        if sourced.origin != "default" and sourced.key in unread:
            yield sourced, f"without effect: {unread[sourced.key]}"


def replica_id(number: int) -> NodeId:
    """The node id of replica `number`, as `front.pools` names it."""
    return NodeId(f"rep-{number}")


def check_model(name: str) -> None:
    """Raise ConfigError for a model that cannot be: no known name, no folder with a model in it, no hub id."""
    is_folder = Path(name).expanduser().is_dir()
    if name == DEFAULT_MODEL or (is_hub_id(name) and not is_folder and not name.startswith(_PATHS)):
        return  # to fetch it is not for a check
    if not is_folder and name.startswith(_PATHS):
        raise ConfigError(f"model.name = {name!r}: there is no such folder")
    try:
        pull(name, lambda _line: None)
    except ModelError as error:
        raise ConfigError(f"model.name: {error}") from error


def check_gateway(settings: GatewaySettings) -> None:
    """Raise ConfigError for tenants, keys and routes that do not fit."""
    for route in settings.slo:
        if route not in SLO_ROUTES:
            near = difflib.get_close_matches(route, SLO_ROUTES, n=1, cutoff=0.5)
            hint = f"; did you mean `[{join('slo', near[0])}]`?" if near else ";"
            known = ", ".join(SLO_ROUTES)
            raise ConfigError(f"key `{join('slo', route)}`: no route with an SLO{hint} known are {known}")
    check_gateway_settings(settings, SLO_ROUTES)


def check_front(front: FrontConfig, replicas: int) -> None:
    """Raise ConfigError for limits that fit no answer, and for pools of replicas that are not there."""
    found = Findings()
    found.of(_check_streams, front)
    found.of(_check_pools, front, replicas)
    found.end()


def _check_streams(front: FrontConfig) -> None:
    if front.stream_bytes_max < front.stream_bytes_per_token:
        raise ConfigError(
            f"front.stream_bytes_max = {front.stream_bytes_max} is below front.stream_bytes_per_token = "
            f"{front.stream_bytes_per_token}: no answer would fit"
        )


def _check_pools(front: FrontConfig, replicas: int) -> None:
    both = [node for node in front.pools.prefill if node in front.pools.decode]
    if both:
        raise ConfigError(
            f"front.pools.prefill and front.pools.decode both name {both[0]}: a replica hands over to another one"
        )
    there = [replica_id(number) for number in range(replicas)]
    for key, pool in (("prefill", front.pools.prefill), ("decode", front.pools.decode)):
        for node in pool:
            if node not in there:
                given = f"gives {there[0]} to {there[-1]}" if there else "gives none"
                raise ConfigError(f"front.pools.{key} names {node}, model.replicas = {replicas} {given}")


def check_quotas(front: FrontConfig, auth: AuthSettings) -> None:
    """Raise ConfigError for the quota of a tenant that nobody can be."""
    known = sorted({key.tenant for key in auth.keys} | {auth.anonymous or "default"})
    said = f"has no key in auth.keys; known tenants: {', '.join(known)}"
    texts = tuple(f"front.quotas.{tenant} {said}" for tenant in front.quotas if tenant not in known)
    if texts:
        raise Faults(texts)


def check_processes(processes: int, names: Names) -> None:
    """Raise ConfigError for more processes than can share a port, or find anything to do."""
    if processes == 1:
        return
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"server.processes = {processes}: only Linux spreads connections over processes of one port; use 1"
        )
    if not names.has_upstreams:
        raise ConfigError(
            f"server.processes = {processes}: only requests to upstreams are spread, and none is given; use 1, or "
            "raise model.replicas for models of our own engines"
        )


def check_built(front: FrontConfig, replica: ReplicaSettings) -> None:
    """Raise ConfigError for policies that are there and cannot be built with what is around them."""
    found = Findings()
    found.of(routing_policy, front.router)
    found.of(admission_policy, front.admission)
    found.of(pace_policy, replica.executor.pace)
    found.of(_check_scheduler, replica.scheduler, replica.engine, replica.cost)
    found.end()


def check_replica(replica: ReplicaSettings) -> None:
    """Raise ConfigError for what no replica can run with."""
    found = Findings()
    found.of(_check_length, replica.engine)
    found.of(_check_steps, replica.scheduler, replica.engine, replica.executor)
    found.end()


def _check_scheduler(scheduler: LlmParams, engine: EngineSettings, cost: StepCostParams) -> None:
    try:
        check_scheduler(scheduler, engine.host_slots, StepCost(cost))
        if engine.kv_blocks is not None:
            check_watermark(scheduler, engine.kv_blocks)
    except ConfigError as error:
        raise ConfigError(f"in [scheduler]: {error}") from None


def _check_length(engine: EngineSettings) -> None:
    if engine.kv_blocks is not None and engine.max_model_len is not None:
        room = engine.kv_blocks * engine.block_size
        if room < engine.max_model_len:
            raise ConfigError(
                f"engine.max_model_len = {engine.max_model_len} is above the {room} tokens that engine.kv_blocks = "
                f"{engine.kv_blocks} of engine.block_size = {engine.block_size} hold; raise kv_blocks or lower it"
            )


def _check_steps(scheduler: LlmParams, engine: EngineSettings, executor: ExecutorSettings) -> None:
    if executor.pace.type == "just_in_time" and scheduler.async_depth == 1:
        raise ConfigError(
            "executor.pace.type = 'just_in_time' needs scheduler.async_depth >= 2: with one step in flight nothing "
            "overlaps"
        )
    rows, most = executor.buckets.rows, scheduler.step_tokens
    if isinstance(rows, tuple) and rows and rows[-1] > most:
        raise ConfigError(
            f"executor.buckets.rows = {list(rows)} has a size above scheduler.step_tokens = {most}: no step is as large"
        )
    if engine.kind == "torch" and scheduler.pool == "counting":
        raise ConfigError(
            "scheduler.pool = 'counting' gives no block tables, engine.kind = 'torch' needs them; use pool = 'blocks'"
        )
