"""DualMap (arXiv 2602.06502): two hashes of the prompt's beginning name two replicas, one of them is taken."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.draw import draw_u64
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, s_from_ns
from headway.sched.router.policies._terms import uncached
from headway.sched.router.protocol import Learned, ReplicaView, Scored


class Dualmap:
    """The one with more of the prompt cached, until its pending prefill misses the SLO: then the lighter of the two.

    Each hash ranks all replicas by rendezvous, which moves as few prefixes as its two rings do when a replica comes or
    goes; the second hash passes over the first's replica. The paper's adaptive prefix length is a fixed one here, and
    its moving of queued requests is what the front's own queue does for every policy.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"hit_tokens", "queued_tokens", "prefill_tokens_per_s", "block_hashes"})
    sees: ClassVar[str] = "two replicas by hash of the prompt's beginning: their hits, pending prefill and learned rate"
    good_at: ClassVar[str] = "many prefixes without any shared state: every front maps them alike"
    blind_spot: ClassVar[str] = "a third, idle replica; a prefix hotter than two replicas can serve"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Published: a time to first token of 5 s."""

        prefix_tokens: Annotated[int, msgspec.Meta(ge=1)] = 512  # of the prompt that are hashed; all if shorter
        ttft_slo_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0  # of a request without its own
        seed: Annotated[int, msgspec.Meta(ge=0)] = 0  # of both hashes

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Return the two, the chosen one first."""
        pair = self._pair(request, replicas)
        if not pair:
            return []
        pending = {r.id: r.queued_tokens + uncached(request, r) for r in pair}
        affine = min(pair, key=lambda r: (-r.hit_tokens, pending[r.id], r.id))
        rate, slo_s = affine.prefill_tokens_per_s, self._slo_s(request, at_ns)
        meets = rate == 0 or pending[affine.id] / rate <= slo_s  # without a rate nothing speaks against staying

        def seconds(r: ReplicaView) -> float:
            return pending[r.id] / (r.prefill_tokens_per_s or rate)

        chosen = affine if meets else min(pair, key=lambda r: (seconds(r), r.id))
        kind = "affine" if meets else f"affine misses {slo_s:.3g} s"
        ranked = [chosen, *(r for r in pair if r is not chosen)]
        return [Scored(r.id, float(n), f"{kind}; {pending[r.id]} tokens pending") for n, r in enumerate(ranked)]

    def _pair(self, request: Request, replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
        key, pair = self._key(request), []
        left = sorted(replicas, key=lambda r: r.id)
        for ring in range(min(2, len(left))):
            pair.append(left.pop(max(range(len(left)), key=lambda n: self._draw(key, left[n], ring))))
        return pair

    def _draw(self, key: str, replica: ReplicaView, ring: int) -> int:
        return draw_u64(self._params.seed, f"{key}/{replica.id}", 0, ring)

    def _key(self, request: Request) -> str:
        if isinstance(request, DiffusionRequest) or not request.block_hashes or not request.block_tokens:
            return request.id
        last = max(1, self._params.prefix_tokens // request.block_tokens)
        return request.block_hashes[:last][-1].hex()

    def _slo_s(self, request: Request, at_ns: Ns) -> float:
        deadline = request.slo.ttft_deadline_ns
        return self._params.ttft_slo_s if deadline is None else s_from_ns(deadline - at_ns)

    def observe(self, event: Learned) -> None:
        """Nothing to learn: two hashes need no memory."""
