"""What a routing policy sees and returns."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.reports import DenoiseCoefficients, StepCoefficients
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
    def queued_tokens_spread(self) -> int:
        """Standard deviation of `queued_tokens`, which grows with the report's age (A5)."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Live KV of running sequences, in tokens."""
        ...

    @property
    def output_tokens_expected(self) -> int:
        """Output tokens of this front's unfinished dispatches, as predicted."""
        ...

    @property
    def waiting(self) -> int:
        """Not yet scheduled there."""
        ...

    @property
    def in_flight(self) -> int:
        """This front's own unfinished dispatches."""
        ...

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens of the request being ranked that are predicted to be cached there."""
        ...

    @property
    def distinct_hits(self) -> int:
        """Of `hit_tokens`, those beyond the prefix that more than half of the candidates hold too."""
        ...

    @property
    def uncached_in_flight(self) -> int:
        """Prompt tokens of this front's dispatches that had no first token yet, less their predicted hits."""
        ...

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks in use, [0, 1]; 0 while unknown."""
        ...

    @property
    def kv_tokens_total(self) -> int:
        """KV capacity in tokens; 0 while unknown."""
        ...

    @property
    def prefill_tokens_per_s(self) -> float:
        """Learned; 0 while unknown."""
        ...

    @property
    def step_ns(self) -> Ns:
        """Smoothed time of its steps; 0 while unknown."""
        ...

    @property
    def step_cost(self) -> StepCoefficients | None:
        """What it believes its steps cost."""
        ...

    @property
    def age_ns(self) -> Ns:
        """Age of what is known; 0 for an idle replica, whose report does not age."""
        ...

    @property
    def source(self) -> str:
        """`engine`, `scrape` or `counted` (core.reports)."""
        ...

    @property
    def adapters(self) -> tuple[str, ...]:
        """LoRA adapters loaded there."""
        ...

    @property
    def adapters_max(self) -> int:
        """How many fit; 0 while unknown."""
        ...

    @property
    def host(self) -> str:
        """Its machine."""
        ...

    @property
    def work_ns(self) -> Ns:
        """Until a diffusion replica has done all that it holds; 0 while it tells nothing."""
        ...

    @property
    def own_work_ns(self) -> Ns:
        """What the request being ranked takes there alone, if it is of pictures; 0 while it tells nothing."""
        ...

    @property
    def denoise_cost(self) -> DenoiseCoefficients | None:
        """What a diffusion replica believes its work costs."""
        ...


class Scored(msgspec.Struct, frozen=True, gc=False):
    """One candidate of a policy; the lowest score wins, ties go to the lowest replica id."""

    replica: NodeId
    score: float
    reason: str = ""  # the parts of the score, for whoever asks why
    pull_from: NodeId | None = None  # it should fetch the beginning of the prompt there, before it prefills
    pull_tokens: int = 0  # up to this token


class Dispatched(msgspec.Struct, frozen=True, gc=False):
    """A request went to a replica, where `hit_tokens` of its prompt were predicted to be cached."""

    at_ns: Ns
    request: Request
    replica: NodeId
    hit_tokens: int = 0


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    """Its first token came; `cached_tokens` as the replica says, None when it does not."""

    at_ns: Ns
    request: RequestId
    replica: NodeId
    since_dispatch_ns: Ns
    cached_tokens: int | None = None


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A dispatch is over, in whatever way."""

    at_ns: Ns
    request: RequestId
    replica: NodeId
    output_tokens: int


class Left(msgspec.Struct, frozen=True, gc=False):
    """A replica is gone, with everything it had cached."""

    at_ns: Ns
    replica: NodeId


Learned = Dispatched | FirstToken | Ended | Left


class RoutingPolicy(Protocol):
    """Ranks replicas for one request."""

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Return candidates, best first; a subset of `replicas`. Writes nothing."""
        ...

    def observe(self, event: Learned) -> None:
        """Learn from what happened. The only method that may change policy state."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """A policy that can tell the parts of its scores."""

    def explain(
        self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns
    ) -> Mapping[NodeId, Mapping[str, float]]:
        """Return the parts of every score by name. Writes nothing."""
        ...


def by_score(scored: list[Scored]) -> list[Scored]:
    """Sort best first, ties by replica id."""
    return sorted(scored, key=lambda item: (item.score, item.replica))
