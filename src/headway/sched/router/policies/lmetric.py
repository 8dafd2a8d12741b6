"""LMetric (arXiv 2603.15202): the product of prefill tokens and batch size, without a weight."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.router.policies._terms import uncached
from headway.sched.router.protocol import Learned, ReplicaView, Scored, by_score


class Lmetric:
    """argmin P x BS: P = queued and own uncached prompt tokens there, BS = requests there, this one included.

    Leaving the queued term out of P weakens it; it is the common mistake of ports. The paper's optional detector of hot
    prefixes is not part of the formula and not here.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"queued_tokens", "hit_tokens", "requests"})
    sees: ClassVar[str] = "queued prompt tokens, predicted prefix hits, waiting and running requests"
    good_at: ClassVar[str] = "locality and balance at once with nothing to tune"
    blind_spot: ClassVar[str] = "how long decodes take, and that replicas differ in speed"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by the product."""
        scored = []
        for replica in replicas:
            tokens, batch = replica.queued_tokens + uncached(request, replica), replica.requests + 1
            scored.append(Scored(replica.id, float(tokens * batch), f"{tokens} tokens x {batch} requests"))
        return by_score(scored)

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
