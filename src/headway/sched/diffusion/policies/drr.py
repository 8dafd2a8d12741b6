"""Turns between batch keys: sizes that are mixed in one queue do not starve each other (vllm-omni#3831, PR#3860)."""

from typing import Annotated, ClassVar, Final

import msgspec

from headway.core.units import Ns, ns_from_s
from headway.sched.diffusion.protocols import Item, Party, Rank, Used, Waits

_KEYS_MAX: Final = 1024  # that are remembered; of those that wait for nothing the oldest is forgotten


class Drr:
    """Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), in device time: each key with work has a quantum per
    round, what it used beyond that counts in the next ones.

    Kept as the time that each key has had, in whole quanta: a key whose batch takes seven quanta waits until the others
    have had seven. One that comes, or comes back, joins the round that is on: a pause saves nothing up. Between two
    keys that always have work waiting the device times differ by at most a quantum and one batch.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "measured device time of each batch key (size, steps, guidance...), and arrival times"
    good_at: ClassVar[str] = "mixed sizes in one pool: small pictures wait for one large batch, and large ones run"
    blind_spot: ClassVar[str] = "tenants and deadlines; a key with many requests gets no more than one with few"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`quantum_s`: device time of a key before the next one is due; within a round, arrival decides."""

        quantum_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    def __init__(self, params: Params) -> None:
        self._quantum_ns = max(1, ns_from_s(params.quantum_s))
        self._served: dict[Party, Ns] = {}
        self._last: Ns = 0  # of the key that was served last

    def rank(self, item: Item) -> Rank:
        """Arrival, within a key."""
        return (item.request.arrived_ns, item.seq)

    def party(self, item: Item) -> Party:
        """Its batch key."""
        return item.key

    def turn(self, party: Party, more_ns: Ns = 0) -> int:
        """The round in which the key is."""
        return (self._served.get(party, 0) + more_ns) // self._quantum_ns

    def charge_ns(self, item: Item, device_ns: Ns) -> Ns:
        """All of it, whoever the tenant is."""
        return device_ns

    def observe(self, event: Waits | Used) -> None:
        """Let a key join the round that is on; charge the one that was served."""
        served, key = self._served, self.party(event.item)
        match event:
            case Waits(active=active) if key not in active:
                floor = min((served.get(other, 0) for other in active), default=self._last)
                served[key] = max(served.pop(key, 0), floor)
                gone = [held for held in served if held not in active and held != key]
                for old in gone[: max(0, len(served) - _KEYS_MAX)]:
                    del served[old]
            case Used(device_ns=device_ns):
                self._last = served[key] = served.get(key, 0) + device_ns
            case _:
                pass
