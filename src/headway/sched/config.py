"""What nodes can be told. LIVE builds these structs from its configuration file, the simulator from its parameters."""

from typing import Annotated

import msgspec

from headway.core.errors import ConfigError
from headway.core.ids import NodeId
from headway.core.units import Ns
from headway.cost.output_length import LengthParams
from headway.sched.admission.queue import QueueParams
from headway.sched.admission.quota import Quota
from headway.sched.admission.shares import Wholes
from headway.sched.dispatch import Patience
from headway.sched.executor.buckets import Buckets
from headway.sched.fleet.breaker import BreakerParams
from headway.sched.fleet.health import HealthParams
from headway.sched.fleet.hedge import HedgeParams
from headway.sched.fleet.retry import RetryParams
from headway.sched.fleet.scaling import ScalingParams
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import PdPools, Room
from headway.sched.router.prefix_index import IndexParams
from headway.sched.transfer.outgoing import TransferParams

Positive = Annotated[int, msgspec.Meta(ge=1)]


class RouteConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one model has of its own."""

    router: PolicyChoice | None = None  # unset: front.router
    admission: PolicyChoice | None = None  # unset: front.admission
    transfers_to: tuple[str, ...] = ()  # models, such as a pool of its own, that take what admission refuses here
    fallbacks: tuple[str, ...] = ()  # models that answer in its place while none of its replicas can, in this order


class FrontConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Admission, routing and the global queue of the gateway."""

    router: PolicyChoice = PolicyChoice("cost_aware")
    admission: PolicyChoice = PolicyChoice("predictive")
    in_flight_max: Positive = 2048  # requests, waiting ones included
    stream_bytes_max: Positive = 1 << 30  # reserved at arrival for whole answers
    stream_bytes_per_token: Positive = 64  # that a token is taken to need of stream_bytes_max
    room: Room = Room()
    patience: Patience = Patience()
    pools: PdPools = PdPools()
    prefix_index: IndexParams = IndexParams()
    output_length: LengthParams = LengthParams()
    queue: QueueParams = QueueParams()
    scaling: ScalingParams | None = None  # unset: no pool is told to grow or shrink
    quotas: dict[str, Quota] = {}  # by tenant
    quota_default: Quota | None = None  # of tenants that have none of their own; unset: no limits
    routes: dict[str, RouteConfig] = {}  # by model
    health: HealthParams = HealthParams()
    breaker: BreakerParams = BreakerParams()
    retry: RetryParams = RetryParams()
    hedge: HedgeParams | None = None  # unset: off


def wholes(config: FrontConfig, fronts: int) -> Wholes:
    """What `fronts` of one configuration share."""
    return Wholes(config.in_flight_max, config.quotas, config.quota_default, fronts)


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything an LLM WorkerNode can be told beside its machine's parameters."""

    credits: Annotated[int, msgspec.Meta(ge=1)] = 2  # steps in flight: 1 synchronous, 2 asynchronous
    pace: PolicyChoice = PolicyChoice("on_launch")
    buckets: Buckets = Buckets()
    report_interval_ms: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    transfer: TransferParams = TransferParams()
    orphan_grace_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    failures_max: Annotated[int, msgspec.Meta(ge=0)] = 3

    def __post_init__(self) -> None:
        if self.credits < 1:
            raise ConfigError(f"credits = {self.credits} is below 1: no step could ever run")
        if self.credits == 1 and self.pace.type == "just_in_time":
            raise ConfigError("pace.type = 'just_in_time' needs credits >= 2: with one step in flight nothing overlaps")


class Membership(msgspec.Struct, frozen=True):
    """Who a worker is, and who hears its reports."""

    node: NodeId
    incarnation: int = 1
    listeners: tuple[NodeId, ...] = ()
    control: NodeId | None = None  # may ask for everything that is held here
    report_slack_ns: Ns = 0  # while steps are shorter than the interval, a report may wait so much longer for one's end
