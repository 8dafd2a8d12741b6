"""The requests that wait at a diffusion replica, in the order of its policy and by the batch they could share."""

from bisect import bisect_left, insort

from headway.core.units import Ns
from headway.sched.diffusion.protocols import BatchKey, Item, OrderPolicy, Rank

_Entry = tuple[Rank, int, Item]


class WaitingLine:
    """Sorted by rank, over all and per key; both are fixed while an item waits. O(log n) search, O(n) moves."""

    def __init__(self, order: OrderPolicy) -> None:
        self.work_ns: Ns = 0
        self._order = order
        self._all: list[_Entry] = []
        self._by_key: dict[tuple[BatchKey, int], list[_Entry]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, item: Item) -> None:
        """The item waits."""
        entry = (self._order.rank(item), item.seq, item)
        insort(self._all, entry)
        insort(self._by_key.setdefault((item.key, item.done), []), entry)
        self.work_ns += item.work_ns

    def remove(self, item: Item) -> bool:
        """It waits no more; False when it did not wait."""
        entry = (self._order.rank(item), item.seq, item)
        if not _take(self._all, entry):
            return False
        key = item.key, item.done
        alike = self._by_key[key]
        _take(alike, entry)
        if not alike:
            del self._by_key[key]
        self.work_ns -= item.work_ns
        return True

    def first(self, count: int) -> list[tuple[Rank, Item]]:
        """The next `count`, best first."""
        return [(rank, item) for rank, _seq, item in self._all[:count]]

    def alike(self, head: Item, count: int) -> list[Item]:
        """The next `count` of one key that have come as far, best first: a batch ends together."""
        return [item for _rank, _seq, item in self._by_key.get((head.key, head.done), ())[:count]]

    def check(self) -> bool:
        """True when both views hold the same items, in order."""
        parts = sorted(entry for entries in self._by_key.values() for entry in entries)
        return parts == self._all and self.work_ns == sum(entry[2].work_ns for entry in self._all)


def _take(entries: list[_Entry], entry: _Entry) -> bool:
    place = bisect_left(entries, entry[:2], key=lambda held: held[:2])
    if place == len(entries) or entries[place][1] != entry[1]:
        return False
    del entries[place]
    return True
