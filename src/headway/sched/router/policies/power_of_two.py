"""Draw two replicas, take the one with fewer requests."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from headway.core.draw import draw_below
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns
from headway.sched.router.protocol import Learned, ReplicaView, Scored, by_score


class PowerOfTwo:
    """Compares two keyed draws."""

    needs: ClassVar[frozenset[str]] = frozenset({"requests"})
    sees: ClassVar[str] = "waiting and running requests of two drawn replicas"
    good_at: ClassVar[str] = "many fronts on stale reports: they do not herd"
    blind_spot: ClassVar[str] = "a third, emptier replica"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`seed` is part of every keyed draw."""

        seed: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Return the two drawn replicas, the lighter one first."""
        pool = sorted(replicas, key=lambda replica: replica.id)
        if len(pool) > 2:
            attempt = 0 if isinstance(request, DiffusionRequest) else request.attempts
            first = pool.pop(draw_below(self._params.seed, request.id, attempt, 0, len(pool)))
            second = pool.pop(draw_below(self._params.seed, request.id, attempt, 1, len(pool)))
            pool = [first, second]
        return by_score([Scored(replica.id, float(replica.requests)) for replica in pool])

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
