"""Which bits of a prefix index's entries stand for which replica, and what is known of it beside them."""

from typing import Final

import msgspec

from headway.core.ids import NodeId, RequestId

AGE_BITS: Final = 10  # low bits of an entry's value: when it was last moved to the young end
RETIRED_MAX: Final = 8  # slots that wait for one sweep of all entries


class Sent(msgspec.Struct, gc=False, frozen=True):
    """A dispatch without a first token yet."""

    slot: int
    guessed: tuple[bytes, ...]  # entries that only this dispatch vouches for
    withdrawals: int  # of its replica, when it was sent


class Holder:
    """What is known of one replica."""

    def __init__(self, slot: int) -> None:
        self.slot = slot  # of what was dispatched there lately
        self.old_slot: int | None = None  # of what was before, and may be evicted any time
        self.capacity = 0  # tokens; 0: unknown
        self.filled = 0  # tokens guessed into `slot`
        self.is_exact = False  # its engine tells what it holds
        self.withdrawals = 0  # dispatches that ended without a first token
        self.sent: dict[RequestId, Sent] = {}
        self.settled: list[tuple[bytes, ...]] = []  # guesses that the engine's next report replaces


class Slots:
    """A slot is two bits above the age, told and guessed. Those of a retired slot stay in the entries until a sweep."""

    def __init__(self) -> None:
        self.owners: dict[int, NodeId] = {}  # by slot
        self.live = 0  # the lower bits of all slots in use, without the age
        self.count = 0  # ever used at a time
        self._free: list[int] = []
        self._retired: list[int] = []

    @property
    def is_sweep_due(self) -> bool:
        """No slot is free, and enough wait for a sweep."""
        return not self._free and len(self._retired) >= RETIRED_MAX

    def swept(self) -> int:
        """Free the retired slots; return the bits to take out of every entry."""
        self._free, self._retired = self._retired, []
        return sum(3 << 2 * slot + AGE_BITS for slot in self._free)

    def take(self, node: NodeId) -> int:
        """Return a slot that no entry carries."""
        slot = self._free.pop() if self._free else self.count
        self.count = max(self.count, slot + 1)
        self.owners[slot] = node
        self.live |= 1 << 2 * slot
        return slot

    def retire(self, slot: int) -> None:
        """Nothing that entries say of it counts any more."""
        del self.owners[slot]
        self.live &= ~(1 << 2 * slot)
        self._retired.append(slot)
