"""What a routing policy sees and returns."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.request import Request
from headway.core.units import Ns


class ReplicaView(Protocol):
    """One replica as this front knows it: its last report plus what was dispatched and what ended since (A5)."""

    @property
    def id(self) -> NodeId: ...

    @property
    def requests(self) -> int:
        """Waiting and running."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens not yet computed, less what the learned rate has drained since the report."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Live KV of running sequences, in tokens."""
        ...

    @property
    def output_tokens_expected(self) -> int:
        """Output tokens of this front's unfinished dispatches, as predicted."""
        ...


class Scored(msgspec.Struct, frozen=True, gc=False):
    """One candidate of a policy; the lowest score wins, ties go to the lowest replica id."""

    replica: NodeId
    score: float


class Dispatched(msgspec.Struct, frozen=True, gc=False):
    """A request went to a replica: the only thing a routing policy may learn from."""

    at_ns: Ns
    request: RequestId
    replica: NodeId


class RoutingPolicy(Protocol):
    """Ranks replicas for one request."""

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Return candidates, best first; a subset of `replicas`. Writes nothing."""
        ...

    def observe(self, event: Dispatched) -> None:
        """Learn from a dispatch. The only method that may change policy state."""
        ...


def by_score(scored: list[Scored]) -> list[Scored]:
    """Sort best first, ties by replica id."""
    return sorted(scored, key=lambda item: (item.score, item.replica))
