"""What a front has running at each replica, by tenant, and when it last heard of one."""

import msgspec

from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One dispatch of this front that has not ended."""

    replica: NodeId
    tenant: TenantId
    session: str | None


class Presence(msgspec.Struct, gc=False):
    """At one replica."""

    heard_ns: Ns = -1  # of the last first token or end; -1: never
    by_tenant: dict[TenantId, int] = {}  # msgspec copies the default


class Flights:
    """All of a front. Each is counted once, and leaves once."""

    def __init__(self) -> None:
        self.by_tenant: dict[TenantId, int] = {}
        self._flights: dict[RequestId, Flight] = {}
        self._at: dict[NodeId, Presence] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def at(self, replica: NodeId) -> Presence | None:
        """Return what is known of a replica; None when nothing was sent there yet."""
        return self._at.get(replica)

    def heard_ns(self, replica: NodeId) -> Ns:
        """When a first token or an end last came from there; -1: never."""
        presence = self._at.get(replica)
        return -1 if presence is None else presence.heard_ns

    def sent(self, request: Request, replica: NodeId) -> None:
        """It goes there. An earlier dispatch of it, whose end was never told, is over."""
        self._leave(request.id)
        session = None if isinstance(request, DiffusionRequest) else request.session
        self._flights[request.id] = Flight(replica, request.tenant, session)
        by_tenant = self._at.setdefault(replica, Presence()).by_tenant
        for counts in (self.by_tenant, by_tenant):
            counts[request.tenant] = counts.get(request.tenant, 0) + 1

    def began(self, request: RequestId, replica: NodeId, at_ns: Ns) -> Flight | None:
        """Return the flight whose first token came, if it is that one."""
        flight = self._flights.get(request)
        if flight is None or flight.replica != replica:
            return None
        self._at[replica].heard_ns = at_ns
        return flight

    def ended(self, request: RequestId, replica: NodeId, at_ns: Ns) -> None:
        """It is over there."""
        if self.began(request, replica, at_ns) is not None:
            self._leave(request)

    def left(self, replica: NodeId) -> None:
        """The replica is gone with all that ran there. O(flights)."""
        for request in [name for name, flight in self._flights.items() if flight.replica == replica]:
            self._leave(request)
        self._at.pop(replica, None)

    def _leave(self, request: RequestId) -> None:
        flight = self._flights.pop(request, None)
        if flight is None:
            return
        for counts in (self.by_tenant, self._at[flight.replica].by_tenant):
            counts[flight.tenant] -= 1
            if not counts[flight.tenant]:
                del counts[flight.tenant]
