"""The requests that wait at a diffusion replica, in the order of its policy and by the batch they could share."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import TypeVar

from headway.core.errors import InvariantError
from headway.core.units import Ns
from headway.sched.diffusion.protocols import BatchKey, Item, OrderPolicy, Party, Rank, TurnPolicy

_Entry = tuple[Rank, int, Item]
_Key = TypeVar("_Key")


class WaitingLine:
    """Sorted by rank, over all, per key and per party; all are fixed while an item waits. O(log n) search, O(n) moves.

    With a policy that gives turns, the heads of the parties are compared by what each has had.
    """

    def __init__(self, order: OrderPolicy) -> None:
        self.work_ns: Ns = 0
        self._order = order
        self._turns = order if isinstance(order, TurnPolicy) else None
        self._all: list[_Entry] = []
        self._by_key: dict[tuple[BatchKey, int], list[_Entry]] = {}
        self._by_party: dict[Party, list[_Entry]] = {}  # where turns are given

    def __len__(self) -> int:
        return len(self._all)

    def add(self, item: Item) -> None:
        """The item waits."""
        entry = (self._order.rank(item), item.seq, item)
        insort(self._all, entry)
        insort(self._by_key.setdefault((item.key, item.done), []), entry)
        if self._turns is not None:
            insort(self._by_party.setdefault(self._turns.party(item), []), entry)
        self.work_ns += item.work_ns

    def remove(self, item: Item) -> bool:
        """It waits no more; False when it did not wait."""
        entry = (self._order.rank(item), item.seq, item)
        if not _take(self._all, entry):
            return False
        _take_from(self._by_key, (item.key, item.done), entry)
        if self._turns is not None:
            _take_from(self._by_party, self._turns.party(item), entry)
        self.work_ns -= item.work_ns
        return True

    def first(self, count: int) -> list[tuple[Rank, Item]]:
        """The next `count`, best first, as if each had its believed time before the one after it is chosen."""
        if self._turns is None:
            return [(rank, item) for rank, _seq, item in self._all[:count]]
        turns = self._turns
        heads: list[tuple[int, Rank, int]] = []
        lines = list(self._by_party.items())
        for line, (party, entries) in enumerate(lines):
            heappush(heads, (turns.turn(party), entries[0][0], line))
        out: list[tuple[Rank, Item]] = []
        places, charged = [0] * len(lines), [0] * len(lines)
        while heads and len(out) < count:
            turn, rank, line = heappop(heads)
            party, entries = lines[line]
            item = entries[places[line]][2]
            out.append(((turn, *rank), item))
            places[line] += 1
            if places[line] < len(entries):
                charged[line] += turns.charge_ns(item, item.work_ns)
                heappush(heads, (turns.turn(party, charged[line]), entries[places[line]][0], line))
        return out

    def precedes(self, item: Item, others: Sequence[Item]) -> bool:
        """True when the item would go before all of them, if they waited too."""
        rank = self._standing(item)
        return all(rank < self._standing(other) for other in others)

    def best(self, items: Sequence[Item]) -> Item:
        """Which of them is next."""
        return min(items, key=self._standing)

    def _standing(self, item: Item) -> Rank:
        rank = self._order.rank(item)
        return rank if self._turns is None else (self._turns.turn(self._turns.party(item)), *rank)

    def alike(self, head: Item, count: int) -> list[Item]:
        """The next `count` of one key that have come as far, best first: a batch ends together."""
        return [item for _rank, _seq, item in self._by_key.get((head.key, head.done), ())[:count]]

    def check(self) -> bool:
        """True when all views hold the same items, in order."""
        parts = sorted(entry for entries in self._by_key.values() for entry in entries)
        shares = sorted(entry for entries in self._by_party.values() for entry in entries)
        if self._turns is not None and shares != self._all:
            return False
        return parts == self._all and self.work_ns == sum(entry[2].work_ns for entry in self._all)


def check_queue(items: Mapping[int, Item], lines: Sequence[WaitingLine], batch: Sequence[Item]) -> None:
    """Raise InvariantError when lines, batch and items disagree, or a request ran past its steps."""
    for seq, item in items.items():
        if item.done >= item.request.steps:
            raise InvariantError(f"sequence {seq} has {item.done} of {item.request.steps} steps and is not over")
    waiting = sum(len(line) for line in lines)
    if not all(line.check() for line in lines) or waiting + len(batch) != len(items):
        raise InvariantError(f"{waiting} wait and {len(batch)} run of {len(items)} requests")
    if len({(item.key, item.done) for item in batch}) > 1:
        raise InvariantError("a batch holds requests of different keys or steps")


def _take_from(lists: dict[_Key, list[_Entry]], key: _Key, entry: _Entry) -> None:
    entries = lists[key]
    _take(entries, entry)
    if not entries:
        del lists[key]


def _take(entries: list[_Entry], entry: _Entry) -> bool:
    place = bisect_left(entries, entry[:2], key=lambda held: held[:2])
    if place == len(entries) or entries[place][1] != entry[1]:
        return False
    del entries[place]
    return True
