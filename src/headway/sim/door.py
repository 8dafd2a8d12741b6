"""What a request passes on its way to a front: the network between client and gateway, and the gateway's CPU."""

import heapq
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from headway.core.ids import ModelId
from headway.core.request import DiffusionRequest, LlmRequest
from headway.core.units import Ns

Asked: TypeAlias = LlmRequest | DiffusionRequest
Promise: TypeAlias = Callable[[Asked, Ns], Asked]  # the request with its SLO, from when the gateway received it

Readdress: TypeAlias = Callable[[LlmRequest, ModelId], LlmRequest]  # the request as it is sent to another model


def renamed(request: LlmRequest, to: ModelId) -> LlmRequest:
    """The same prompt for another model, which shares its hashes."""
    return msgspec.structs.replace(request, model=to)


def as_it_is(request: Asked, received_ns: Ns) -> Asked:  # noqa: ARG001  Promise
    """Nothing is promised beyond what the request brings."""
    return request


class Door:
    """Requests take the gateway's processes in the order in which they were sent, each the one that is free first."""

    def __init__(self, way_ns: Ns = 0, cpu_ns: Ns = 0, promise: Promise = as_it_is, processes: int = 1) -> None:
        """`way_ns`: one way between a client and the gateway. `cpu_ns`: to receive, check and tokenise one request."""
        self.way_ns, self.cpu_ns, self.promise = way_ns, cpu_ns, promise
        self.readdress: Readdress = renamed
        self._free_ns: list[Ns] = [0] * processes

    def enter(self, sent_ns: Ns) -> tuple[Ns, Ns]:
        """A request is sent: when the gateway receives it, and when the front does."""
        received_ns = sent_ns + self.way_ns
        ready_ns = max(received_ns, self._free_ns[0]) + self.cpu_ns
        heapq.heapreplace(self._free_ns, ready_ns)
        return received_ns, ready_ns
