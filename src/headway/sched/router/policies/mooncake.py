"""Mooncake's algorithm 1 (FAST'25; arXiv 2407.00079): the least time to the first token, by pull or by recompute."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.request import Request
from headway.core.units import NS_PER_S, Ns
from headway.sched.router.policies._terms import holder_of_most, prompt_of, rates
from headway.sched.router.protocol import Learned, ReplicaView, Scored, by_score


class Mooncake:
    """argmin T_transfer + T_queue + T_prefill(n, prefix).

    Where the best prefix in the fleet is more than `threshold` times the local one, a replica pulls the rest from its
    holder: prefix = best, T_transfer = fixed + missing tokens / pull rate. Else it uses its own: prefix = local,
    T_transfer = 0. T_queue is the time that its queued prompt tokens need. The algorithm's choice of a decode instance
    is what the router's pools are for, its early rejection is admission's.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hit_tokens", "queued_tokens", "prefill_tokens_per_s", "step_cost"})
    sees: ClassVar[str] = "queued prompt tokens, learned rates, step costs, predicted hits and what a pull costs"
    good_at: ClassVar[str] = "time to first token, with replicas of different speed"
    blind_spot: ClassVar[str] = "decode: what a running batch does to the next token, and many fronts that choose alike"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """The paper tunes `threshold` by hand; its store pulls 40 GB in 0.46 s over 4 x 200 Gb/s."""

        threshold: Annotated[float, msgspec.Meta(ge=1)] = 2.0  # best over local prefix beyond which a pull is meant
        pull_tokens_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # between replicas; 0: nobody pulls
        pull_fixed_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # of each pull

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by seconds to the first token; by tokens while no rate is known."""
        p, length, rate = self._params, prompt_of(request), rates(replicas)
        holder, best = holder_of_most(replicas)
        scored = []
        for r in replicas:
            prefix, transfer_s, source = r.hit_tokens, 0.0, None
            if p.pull_tokens_per_s > 0 and best > p.threshold * r.hit_tokens:
                source, prefix, transfer_s = holder, best, p.pull_fixed_s + (best - r.hit_tokens) / p.pull_tokens_per_s
            queue_s = r.queued_tokens / rate[r.id]
            prefill_s = self._prefill_s(r, max(0, length - prefix), prefix, rate[r.id])
            reason = f"transfer {transfer_s:.3f} + queue {queue_s:.3f} + prefill {prefill_s:.3f} s"
            cost_s = transfer_s + queue_s + prefill_s
            scored.append(Scored(r.id, cost_s, reason, source, 0 if source is None else prefix))
        return by_score(scored)

    @staticmethod
    def _prefill_s(replica: ReplicaView, new: int, prefix: int, rate: float) -> float:
        """Seconds for `new` tokens after `prefix`: by the replica's own polynomial where it tells one, else linear."""
        cost = replica.step_cost
        if cost is None:
            return new / rate
        return (cost.token_ns * new + cost.pair_ns * (new * prefix + new * (new + 1) / 2)) / NS_PER_S

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
