"""Send each request to the replica with the fewest requests."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.router.protocol import Learned, ReplicaView, Scored, by_score


class LeastRequests:
    """Counts waiting and running requests."""

    needs: ClassVar[frozenset[str]] = frozenset({"requests"})
    sees: ClassVar[str] = "waiting and running requests, its own unseen dispatches included"
    good_at: ClassVar[str] = "uneven arrivals"
    blind_spot: ClassVar[str] = "request lengths: ten long prompts weigh as much as ten short ones"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order by waiting + running."""
        return by_score([Scored(replica.id, float(replica.requests)) for replica in replicas])

    def observe(self, event: Learned) -> None:
        """Nothing to learn."""
