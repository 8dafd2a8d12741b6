"""Refuses a configuration that cannot work, before a model is fetched; finds values that nobody would read."""

from collections.abc import Iterator, Sequence
from typing import Final

from headway.adapters.gateway.prepare import GENERATION_ROUTES
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.gateway.settings import check_settings as check_gateway_settings
from headway.core.errors import ConfigError
from headway.core.ids import NodeId
from headway.cost.llm import StepCost, StepCostParams
from headway.live.config_layers import Sourced
from headway.live.spec import EngineSettings, ExecutorSettings
from headway.sched.llm.params import LlmParams
from headway.sched.llm.params import check_settings as check_scheduler
from headway.sched.nodes import FrontConfig, WorkerConfig
from headway.sched.policies import admission_policy, pace_policy, routing_policy

OF_TORCH: Final = ("model.name", "engine.threads", "engine.dtype", "engine.kernels", "engine.kv_memory_mb")
OF_SYNTHETIC: Final = ("engine.synthetic.step_us", "engine.synthetic.token_us")


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


def check_gateway(settings: GatewaySettings) -> None:
    """Raise ConfigError for tenants, keys and routes that do not fit."""
    check_gateway_settings(settings, GENERATION_ROUTES)


def check_front(front: FrontConfig, replicas: int) -> None:
    """Raise ConfigError for unknown policies, and for pools of replicas that are not there."""
    routing_policy(front.router)
    admission_policy(front.admission)
    there = [replica_id(number) for number in range(replicas)]
    for key, pool in (("prefill", front.pools.prefill), ("decode", front.pools.decode)):
        for node in pool:
            if node not in there:
                raise ConfigError(
                    f"front.pools.{key} names {node}, model.replicas = {replicas} gives {there[0]} to {there[-1]}"
                )


def check_replica(
    scheduler: LlmParams, engine: EngineSettings, executor: ExecutorSettings, cost: StepCostParams
) -> None:
    """Raise ConfigError for what no replica can run with."""
    check_scheduler(scheduler, engine.host_slots, StepCost(cost))
    pace_policy(executor.pace)
    WorkerConfig(credits=scheduler.async_depth, pace=executor.pace)
    if engine.kind == "torch" and scheduler.pool == "counting":
        raise ConfigError(
            "scheduler.pool = 'counting' gives no block tables, engine.kind = 'torch' needs them; use pool = 'blocks'"
        )
    buckets = executor.buckets
    for key, mode in (("decode_graph", buckets.decode_graph), ("mixed_graph", buckets.mixed_graph)):
        if engine.kind == "synthetic" and mode != "none":
            raise ConfigError(f"executor.buckets.{key} = {mode} with engine.kind = synthetic: it captures no graphs")
