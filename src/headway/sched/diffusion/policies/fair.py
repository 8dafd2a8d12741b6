"""Fair shares of the device between tenants: who has had the least of it, by weight, is next."""

from typing import ClassVar

import msgspec

from headway.core.units import Ns
from headway.sched.diffusion.protocols import Item, Party, Rank, Used, Waits


class Fair:
    """Virtual counters of measured device time (VTC, OSDI'24, with seconds in place of tokens).

    A tenant that comes back after a pause is lifted to the least of those that are there: a pause saves nothing up.
    Between two that always have work waiting, the counters differ by at most one batch.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "measured device time of each tenant, by weight, and arrival times"
    good_at: ClassVar[str] = "a tenant with many or long requests takes no more than its share from the others"
    blind_spot: ClassVar[str] = "deadlines, and the mean wait; each replica keeps counters of its own"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._served: dict[Party, Ns] = {}  # by tenant, over its weight
        self._last: Ns = 0  # of the tenant that was served last

    def rank(self, item: Item) -> Rank:
        """Arrival, within a tenant."""
        return (item.request.arrived_ns, item.seq)

    def party(self, item: Item) -> Party:
        """Its tenant."""
        return item.request.tenant

    def turn(self, party: Party, more_ns: Ns = 0) -> int:
        """Device time that the tenant has had, over its weight."""
        return self._served.get(party, 0) + more_ns

    def charge_ns(self, item: Item, device_ns: Ns) -> Ns:
        """A weight is a larger share."""
        return device_ns // item.request.tenant_weight

    def observe(self, event: Waits | Used) -> None:
        """Lift who comes back; charge who was served."""
        served, tenant = self._served, self.party(event.item)
        match event:
            case Waits(active=active) if tenant not in active:
                floor = min((self.turn(other) for other in active), default=self._last)
                served[tenant] = max(self.turn(tenant), floor)
            case Used(device_ns=device_ns):
                self._last = served[tenant] = self.turn(tenant, self.charge_ns(event.item, device_ns))
            case _:
                pass
