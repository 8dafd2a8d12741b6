"""What a replica process is told at its start, and how its supervisor treats it."""

from typing import Annotated, Literal

import msgspec

from headway.core.ids import ModelId, NodeId
from headway.core.units import Ns

EngineKind = Literal["torch", "synthetic"]
Role = Literal["llm", "diffusion"]


class SupervisorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[supervisor]"""

    heartbeat_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0  # a silent replica is killed and started again
    restarts_max: Annotated[int, msgspec.Meta(ge=0)] = 5  # within the window; more, and the replica stays down
    restart_window_s: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    restart_backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 0.5  # before the first restart; doubles with each
    restart_backoff_s_max: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # how long running requests may go on after SIGTERM


class ReplicaSpec(msgspec.Struct, frozen=True):
    """One replica."""

    node: NodeId
    role: Role
    model: ModelId


class Start(msgspec.Struct, frozen=True):
    """The start order on the replica's stdin."""

    spec: ReplicaSpec
    incarnation: int
    socket: str
    run_start_ns: Ns
