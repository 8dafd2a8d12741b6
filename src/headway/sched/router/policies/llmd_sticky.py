"""llm-d's sticky-until-saturated: stay where the prompt is cached until the queue there costs too much time."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec

from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.router.policies._terms import best_first, hit_share, uncached
from headway.sched.router.protocol import Learned, ReplicaView, Scored


class LlmdSticky:
    """Its prefix-cache-affinity filter before one load scorer (llm-d-router READMEs, llm-d blog 2026-08-17).

    Keep the warm replicas, unless the least busy of them has more than tau = peak rate x penalty uncached tokens in
    flight beyond the least busy cold one. Of those left take the fewest uncached tokens in flight, this request's
    included. Broken stickiness keeps everybody, and so does an unknown rate.
    """

    needs: ClassVar[frozenset[str]] = frozenset(
        {"hit_tokens", "uncached_in_flight", "in_flight", "prefill_tokens_per_s", "block_hashes"}
    )
    sees: ClassVar[str] = "share of the prompt that is cached, and this front's uncached tokens in flight"
    good_at: ClassVar[str] = "long shared contexts: affinity holds until waiting costs more than the allowed time"
    blind_spot: ClassVar[str] = "partly cached prompts below the threshold, decode load, and other fronts' requests"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Published values unless said otherwise."""

        affinity: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8  # share of the blocks cached that makes it warm
        penalty_s: Annotated[float, msgspec.Meta(ge=0)] = 18.0  # to the first token, for staying; 0: always stay
        # Prefill tokens per second at full load; published 15928 for Qwen3-32B on two H100. None: the highest learned.
        peak_tokens_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
        bound: Literal["prefill", "decode"] = "prefill"  # what is scarce: decode counts requests instead of tokens
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0  # of the draw between equals

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order the kept replicas by load, then the others."""
        kept = self._kept(request, replicas)
        names = {replica.id for replica in kept}
        others = [replica for replica in replicas if replica.id not in names]
        return [*self._by_load(request, kept, "kept"), *self._by_load(request, others, "cold")]

    def _kept(self, request: Request, replicas: Sequence[ReplicaView]) -> Sequence[ReplicaView]:
        p = self._params
        warm = [replica for replica in replicas if hit_share(request, replica) >= p.affinity]
        if not warm or len(warm) == len(replicas):
            return replicas
        if p.penalty_s == 0:
            return warm
        peak = p.peak_tokens_per_s or max(replica.prefill_tokens_per_s for replica in replicas)
        if peak == 0:
            return replicas
        names = {replica.id for replica in warm}
        cold = min(replica.uncached_in_flight for replica in replicas if replica.id not in names)
        behind = min(replica.uncached_in_flight for replica in warm) - cold
        return replicas if behind > peak * p.penalty_s else warm

    def _by_load(self, request: Request, replicas: Sequence[ReplicaView], kind: str) -> list[Scored]:
        scored = []
        for r in replicas:
            if self._params.bound == "decode":
                scored.append(Scored(r.id, float(r.in_flight), f"{kind}; {r.in_flight} requests in flight"))
            else:
                tokens = r.uncached_in_flight + uncached(request, r)
                scored.append(Scored(r.id, float(tokens), f"{kind}; {tokens} uncached tokens in flight"))
        return best_first(scored, self._params.seed, request)

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
