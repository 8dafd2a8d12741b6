"""Send requests to the replicas in turn, by id."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from headway.core.ids import NodeId
from headway.core.request import Request
from headway.core.units import Ns
from headway.sched.router.protocol import Dispatched, Learned, ReplicaView, Scored


class RoundRobin:
    """Takes turns."""

    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "nothing but the turn"
    good_at: ClassVar[str] = "equal requests on equal replicas"
    blind_spot: ClassVar[str] = "a slow or crowded replica gets as much as any"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._last: NodeId | None = None

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Order the replicas after the last one used, wrapping around."""
        ids = sorted(replica.id for replica in replicas)
        last = self._last
        turn = [i for i in ids if last is not None and i > last] + [i for i in ids if last is None or i <= last]
        return [Scored(replica, float(place)) for place, replica in enumerate(turn)]

    def observe(self, event: Learned) -> None:
        """Move the turn."""
        if isinstance(event, Dispatched):
            self._last = event.replica
