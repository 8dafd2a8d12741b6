"""What a further gateway process is told at its start."""

from collections.abc import Mapping

import msgspec

from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.upstream.settings import UpstreamSettings
from headway.core.ids import NodeId
from headway.core.units import Ns
from headway.live.config_models import DiscoverySettings
from headway.live.listening import HttpTimes
from headway.sched.nodes import FrontConfig


class Address(msgspec.Struct, frozen=True):
    """Where all gateway processes listen, and the door of the main one."""

    host: str
    port: int
    door: str  # Unix socket


class Relays(msgspec.Struct, frozen=True):
    """What is relayed, and under which names."""

    upstreams: tuple[UpstreamSettings, ...]
    discovery: DiscoverySettings
    own: tuple[str, ...]  # models that the main process serves itself
    aliases: Mapping[str, str]
    fallbacks: Mapping[str, tuple[str, ...]]
    transfers: tuple[str, ...]
    created: int  # Unix time that clients see


class FrontSpec(msgspec.Struct, frozen=True):
    """One further gateway process of `fronts`, the main one included."""

    node: NodeId
    control: NodeId
    fronts: int
    front: FrontConfig
    gateway: GatewaySettings
    address: Address
    relays: Relays
    times: HttpTimes
    event_logs: str | None = None

    @property
    def what(self) -> str:
        """For people."""
        return "gateway process"

    @property
    def module(self) -> str:
        """What its process runs."""
        return "headway.live.front_host"

    def order(self, incarnation: int, socket: str, run_start_ns: Ns) -> bytes:
        """The start order on its stdin."""
        return msgspec.msgpack.encode(FrontStart(self, incarnation, socket, run_start_ns))


class FrontStart(msgspec.Struct, frozen=True):
    """The start order."""

    spec: FrontSpec
    incarnation: int
    socket: str
    run_start_ns: Ns
