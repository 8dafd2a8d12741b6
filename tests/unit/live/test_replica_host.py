"""What a replica process does with its start order."""

import asyncio

import msgspec
import pytest
from tests.integration.live_world import diffusion_replica, llm_replica

from headway.core.ports import Node
from headway.live import assemble, replica_host
from headway.live.clock import Clock
from headway.live.replica_host import Replica
from headway.live.settling import Settled
from headway.live.spec import BucketSettings, ExecutorSettings, ReplicaSpec, Start
from headway.live.warmup import Warmed
from headway.live.wire import Frame
from headway.sched.nodes import WorkerConfig
from headway.sched.registry import PolicyChoice
from headway.sched.transfer.outgoing import TransferParams

OTHERS: dict[str, object] = {  # a value of each key that is not its default
    "pace": PolicyChoice("just_in_time"),
    "buckets": BucketSettings(rows=(8,)),
    "settle_passes_max": 9,
    "report_interval_ms": 35.0,
    "transfer": TransferParams(final_blocks=3),
    "orphan_grace_s": 3.0,
    "failures_max": 7,
}


class Enough(Exception):
    """The node would be built now."""


class Heard:
    """A link to nobody."""

    def send(self, frame: Frame) -> None:
        pass


def reached(spec: ReplicaSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """What the warm-up and the node of a process get that is started with that order."""
    seen: list[object] = []

    def warm_up(_engine: object, *how: object) -> Warmed:
        seen.extend(how)
        return Warmed((), Settled())

    def node(_member: object, _machine: object, _limits: object, config: WorkerConfig, _more: object) -> Node:
        seen.append(config)
        raise Enough

    monkeypatch.setattr(replica_host, "warm_up", warm_up)
    monkeypatch.setattr(assemble, "WorkerNode", node)
    monkeypatch.setattr(assemble, "DiffusionNode", node)

    async def main() -> None:
        start = msgspec.msgpack.decode(spec.order(1, "", 0), type=Start)
        with pytest.raises(Enough):
            await Replica(start, Heard(), Clock()).run()  # type: ignore[arg-type]  # of a Link, only `send`

    asyncio.run(main())
    return tuple(seen)


def with_executor(**change: object) -> ReplicaSpec:
    spec = llm_replica("rep-0")
    assert spec.llm is not None
    executor = msgspec.structs.replace(ExecutorSettings(), **change)
    return msgspec.structs.replace(spec, llm=msgspec.structs.replace(spec.llm, executor=executor))


@pytest.mark.parametrize("key", ExecutorSettings.__struct_fields__)
def test_every_key_of_the_executor_reaches_the_replica(key: str, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC E1
    assert OTHERS[key] != getattr(ExecutorSettings(), key)
    usual, other = (reached(with_executor(**change), monkeypatch) for change in ({}, {key: OTHERS[key]}))
    assert usual != other


def test_a_replica_of_pictures_reports_as_often_as_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = diffusion_replica("rep-1")
    assert spec.diffusion is not None
    told = msgspec.structs.replace(spec, diffusion=msgspec.structs.replace(spec.diffusion, report_interval_ms=35.0))
    (config,) = reached(told, monkeypatch)
    assert isinstance(config, WorkerConfig)
    assert config.report_interval_ms == 35.0
