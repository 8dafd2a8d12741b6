"""llm-d's weighted scorers: prefix, queue and KV cache, each in [0, 1] (READMEs of llm-d-router's scorer plugins)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.router.policies._terms import best_first, hit_share
from headway.sched.router.protocol import Learned, ReplicaView, Scored

Weight = Annotated[float, msgspec.Meta(ge=0)]


class LlmdWeighted:
    """Weighted sum, highest wins; equal sums are drawn, as its max-score picker draws them.

    prefix = (1 - w) x share of blocks matched + w x min(1, tokens matched / model length)^2; queue = (longest - own) /
    (longest - shortest), 1 when all are equal; kv = 1 - usage.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hit_tokens", "waiting", "kv_usage", "block_hashes"})
    sees: ClassVar[str] = "share of the prompt that is cached, waiting requests, KV use"
    good_at: ClassVar[str] = "a fixed compromise between locality and balance"
    blind_spot: ClassVar[str] = "sizes: a share says nothing of tokens saved, and one waiting request is any other"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Weights 3, 2, 2 are the best of those that llm-d publishes."""

        prefix: Weight = 3.0
        queue: Weight = 2.0
        kv: Weight = 2.0
        prefix_length_weight: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # of the squared length in prefix
        model_tokens_max: Annotated[int, msgspec.Meta(ge=1)] = 8192  # that the length is measured by
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0  # of the draw between equals

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by the negated sum."""
        p = self._params
        shortest = min((r.waiting for r in replicas), default=0)
        longest = max((r.waiting for r in replicas), default=0)
        scored = []
        for r in replicas:
            length = min(1.0, r.hit_tokens / p.model_tokens_max) ** 2
            prefix = (1 - p.prefix_length_weight) * hit_share(request, r) + p.prefix_length_weight * length
            queue = 1.0 if longest == shortest else (longest - r.waiting) / (longest - shortest)
            kv = 1.0 - r.kv_usage
            score = -(p.prefix * prefix + p.queue * queue + p.kv * kv)
            scored.append(Scored(r.id, score, f"prefix {prefix:.2f}, queue {queue:.2f}, kv {kv:.2f}"))
        return best_first(scored, p.seed, request)

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
