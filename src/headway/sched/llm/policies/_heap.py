"""A min-heap whose entries can be taken out by their sequence."""

import heapq
from collections.abc import Iterable

from headway.sched.llm.sequence import Seq

Key = tuple[int, ...]
_SLACK = 64


class LazyHeap:
    """O(log n) push and discard, O(1) peek. Stale entries leave at the top at once and are swept when they dominate."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Seq]] = []
        self._live: dict[Seq, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, seq: Seq) -> bool:
        return seq in self._live

    def push(self, seq: Seq, key: Key) -> None:
        """Add `seq`; a key must not repeat among live entries."""
        self._serial += 1
        self._live[seq] = self._serial
        heapq.heappush(self._heap, (key, self._serial, seq))

    def discard(self, seq: Seq) -> None:
        """Take `seq` out, if it is in."""
        if self._live.pop(seq, None) is None:
            return
        heap, live = self._heap, self._live
        if len(heap) > 2 * len(live) + _SLACK:
            self._heap = [entry for entry in heap if live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)
            return
        while heap and live.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)

    def peek(self) -> Seq | None:
        """The smallest."""
        return self._heap[0][2] if self._heap else None

    def first(self, count: int) -> list[tuple[Key, Seq]]:
        """The `count` smallest in order, with keys. Writes nothing; walks the heap from the top."""
        heap, live = self._heap, self._live
        out: list[tuple[Key, Seq]] = []
        front: list[tuple[Key, int, int]] = [(heap[0][0], heap[0][1], 0)] if heap else []
        while front and len(out) < count:
            key, serial, at = heapq.heappop(front)
            seq = heap[at][2]
            if live.get(seq) == serial:
                out.append((key, seq))
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(front, (heap[child][0], heap[child][1], child))
        return out

    def members(self) -> Iterable[Seq]:
        """All, in order of arrival here."""
        return self._live.keys()
