"""Send each request to the replica that holds most of its prompt, unless that replica is too busy to be worth it."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.router.protocol import Learned, ReplicaView, Scored


class CacheAware:
    """Longest prefix among the replicas near the least load.

    Each replica is judged by itself against the lightest one: a hot replica loses its own requests, and nobody else's
    locality. What every candidate holds alike speaks for none of them.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hit_tokens", "requests", "queued_tokens", "kv_usage"})
    sees: ClassVar[str] = "predicted prefix hits, requests, queued prompt tokens and KV use of each replica"
    good_at: ClassVar[str] = "conversations and shared documents: prompts are computed once, and hot spots are left"
    blind_spot: ClassVar[str] = "speed: it weighs tokens, not seconds, so a slow replica keeps the prefixes it holds"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """When a hit is worth following, and how much busier than the lightest its holder may be."""

        hit_tokens_min: Annotated[int, msgspec.Meta(ge=1)] = 64  # saved beyond what every replica saves
        requests_ratio: Annotated[float, msgspec.Meta(ge=1)] = 1.5  # times the requests of the lightest, and
        requests_slack: Annotated[float, msgspec.Meta(ge=0)] = 4.0  # so many more
        queue_per_hit: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # queued tokens that one saved token is worth, and
        queue_slack: Annotated[int, msgspec.Meta(ge=0)] = 512  # so many more than the lightest queue
        kv_usage_max: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.97  # from here on new work preempts old

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order the holders that pass the guard by what they save, then everybody by load."""
        p = self._params
        common = min((r.hit_tokens for r in replicas), default=0)
        fewest = min((r.requests for r in replicas), default=0)
        shortest = min((r.queued_tokens for r in replicas), default=0)

        def key(r: ReplicaView) -> tuple[bool, bool, float, float, str]:
            saved, is_full = r.hit_tokens - common, r.kv_usage > p.kv_usage_max
            is_worth_it = (
                saved >= p.hit_tokens_min
                and not is_full
                and r.requests <= p.requests_ratio * fewest + p.requests_slack
                and r.queued_tokens - shortest <= p.queue_per_hit * saved + p.queue_slack
            )
            return (
                (False, False, -saved, r.requests, r.id)
                if is_worth_it
                else (True, is_full, r.requests, r.queued_tokens, r.id)
            )

        ranked = sorted(((key(r), r) for r in replicas), key=lambda pair: pair[0])
        return [Scored(r.id, float(place), self._why(by, r, common)) for place, (by, r) in enumerate(ranked)]

    @staticmethod
    def _why(key: tuple[bool, bool, float, float, str], replica: ReplicaView, common: int) -> str:
        kind = "load" if key[0] else "prefix"
        return f"{kind}; saves {replica.hit_tokens - common} tokens, {replica.requests} requests"

    def observe(self, event: Learned) -> None:
        """Nothing to learn: the router keeps the prefix index."""
