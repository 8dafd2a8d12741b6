"""The ledger (SPEC L-2): accounts that hold `capacity == free + reserved + used` after every event of their node.

A `level` account returns to zero; a `meter` only grows in `used`. Lease verbs are idempotent by lease id.
"""

from collections import OrderedDict
from typing import Literal

import msgspec

from headway.core.errors import InvariantError
from headway.core.ids import LeaseId

Kind = Literal["level", "meter"]


class AccountView(msgspec.Struct, frozen=True):
    """One account as others see it. `capacity` is None for a meter without limit."""

    name: str
    owner: str
    unit: str
    kind: Kind
    capacity: int | None
    reserved: int
    used: int
    cache: bool = False


class _Lease(msgspec.Struct):
    reserved: int
    used: int = 0


class Account:
    """One account with its open leases. Amounts are integers of `unit` (blocks, requests, bytes, microseconds)."""

    def __init__(self, name: str, owner: str, unit: str, capacity: int | None, kind: Kind = "level") -> None:
        if capacity is not None and capacity < 0:
            raise InvariantError(f"account {name}: capacity {capacity} is negative")
        self.name, self.owner, self.unit, self.kind = name, owner, unit, kind
        self.capacity = capacity
        self.reserved = 0
        self.used = 0
        self._leases: dict[LeaseId, _Lease] = {}
        self._closed: OrderedDict[LeaseId, None] = OrderedDict()

    @property
    def free(self) -> int | None:
        """What may still be reserved; negative after an overdraft; None without a limit."""
        return None if self.capacity is None else self.capacity - self.reserved - self.used

    def can_reserve(self, amount: int) -> bool:
        """True when `amount` fits now."""
        free = self.free
        return free is None or amount <= free

    def reserve(self, lease: LeaseId, amount: int) -> bool:
        """Open a lease; False when it does not fit. A lease id that was seen before changes nothing."""
        if amount < 0:
            raise InvariantError(f"account {self.name}: lease {lease} reserves {amount}")
        if lease in self._leases or lease in self._closed:
            return True
        if not self.can_reserve(amount):
            return False
        self._leases[lease] = _Lease(amount)
        self.reserved += amount
        return True

    def extend(self, lease: LeaseId, amount: int) -> bool:
        """Add to an open lease; False when it does not fit or the lease is closed."""
        held = self._leases.get(lease)
        if held is None or not self.can_reserve(amount):
            return False
        held.reserved += amount
        self.reserved += amount
        return True

    def settle(self, lease: LeaseId, amount: int) -> None:
        """Turn the reservation into `amount` used. More than reserved is an overdraft that counts against the next
        admission. On a meter the use stays after release."""
        held = self._leases.get(lease)
        if held is None:
            return
        self.reserved -= held.reserved
        self.used += amount - held.used
        held.reserved, held.used = 0, amount
        if self.kind == "meter":
            self._close(lease)

    def release(self, lease: LeaseId) -> None:
        """Close the lease: a level account gets everything back. Unknown or closed lease: nothing happens."""
        held = self._leases.get(lease)
        if held is None:
            return
        self.reserved -= held.reserved
        if self.kind == "level":
            self.used -= held.used
        self._close(lease)

    def _close(self, lease: LeaseId) -> None:
        del self._leases[lease]
        self._closed[lease] = None
        while len(self._closed) > 4096:  # a repeated verb comes within one round trip; older ids cannot
            self._closed.popitem(last=False)  # a plain dict would walk over what was deleted before

    def check(self) -> None:
        """Raise InvariantError unless the account adds up."""
        reserved = sum(lease.reserved for lease in self._leases.values())
        used = sum(lease.used for lease in self._leases.values())
        if (
            reserved != self.reserved
            or (self.kind == "level" and used != self.used)
            or self.reserved < 0
            or self.used < 0
        ):
            raise InvariantError(
                f"account {self.name}: reserved {self.reserved}, leases {reserved}; used {self.used}, leases {used}"
            )

    def view(self) -> AccountView:
        """The account as others see it."""
        return AccountView(self.name, self.owner, self.unit, self.kind, self.capacity, self.reserved, self.used)


class Ledger:
    """The accounts of one node."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.accounts: dict[str, Account] = {}

    def open(self, name: str, unit: str, capacity: int | None, kind: Kind = "level") -> Account:
        """Return the account, made if it is new."""
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = Account(name, self.owner, unit, capacity, kind)
        return account

    def release_all(self, lease: LeaseId) -> None:
        """Release one lease id in every account."""
        for account in self.accounts.values():
            account.release(lease)

    def check(self) -> None:
        """Raise InvariantError unless every account adds up."""
        for account in self.accounts.values():
            account.check()

    def views(self) -> tuple[AccountView, ...]:
        """All accounts as others see them, by name."""
        return tuple(self.accounts[name].view() for name in sorted(self.accounts))
