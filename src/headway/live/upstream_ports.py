"""What an upstream node needs of the gateway that it belongs to."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from headway.adapters.gateway.relay.ports import Exchange, Usage
from headway.core.ids import NodeId, RequestId
from headway.core.request import TextRequest
from headway.core.units import Ns
from headway.live.hub import Peer
from headway.live.wire import Envelope


class Node(Protocol):
    """How the node reaches the others (`live.hub`)."""

    def join(self, node: NodeId, incarnation: int, peer: Peer) -> None: ...

    def leave(self, node: NodeId, incarnation: int, reason: str) -> None: ...

    def receive(self, node: NodeId, frame: Envelope) -> None: ...


class Surroundings(msgspec.Struct, frozen=True):
    """What every upstream node of a gateway shares."""

    hub: Node
    front: NodeId
    now_ns: Callable[[], Ns]
    exchange: Callable[[RequestId], Exchange | None]  # of a request that is open
    is_renamed: Callable[[str], bool]  # clients may have written another name of this model
    answered: Callable[[TextRequest, Usage], None]  # a whole answer, and what it used
    forget: Callable[[NodeId], None]  # nobody need show it any more
