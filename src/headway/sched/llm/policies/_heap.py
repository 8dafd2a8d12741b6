"""A min-heap whose entries can be taken out by their sequence."""

import heapq
from collections.abc import Iterable

from headway.sched.llm.sequence import Seq

Key = tuple[int, ...]
_SLACK = 64


class LazyHeap:
    """O(log n) push and discard, O(1) peek. Stale entries leave at the top at once and are swept when they dominate.

    An entry names its sequence by a serial number: a stale one must not keep a prompt alive, or a sweep would pay for
    freeing hundreds of them in one step.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int]] = []
        self._live: dict[Seq, int] = {}
        self._seqs: dict[int, Seq] = {}  # by serial
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, seq: Seq) -> bool:
        return seq in self._live

    def push(self, seq: Seq, key: Key) -> None:
        """Add `seq`; a key must not repeat among live entries."""
        if seq in self._live:
            self.discard(seq)
        self._serial += 1
        self._live[seq] = self._serial
        self._seqs[self._serial] = seq
        heapq.heappush(self._heap, (key, self._serial))

    def discard(self, seq: Seq) -> None:
        """Take `seq` out, if it is in."""
        serial = self._live.pop(seq, None)
        if serial is None:
            return
        heap, seqs = self._heap, self._seqs
        del seqs[serial]
        if len(heap) > 2 * len(seqs) + _SLACK:
            self._heap = [entry for entry in heap if entry[1] in seqs]
            heapq.heapify(self._heap)
            return
        while heap and heap[0][1] not in seqs:
            heapq.heappop(heap)

    def peek(self) -> Seq | None:
        """The smallest."""
        return self._seqs[self._heap[0][1]] if self._heap else None

    def first(self, count: int) -> list[tuple[Key, Seq]]:
        """The `count` smallest in order, with keys. Writes nothing; walks the heap from the top."""
        heap, seqs = self._heap, self._seqs
        out: list[tuple[Key, Seq]] = []
        front: list[tuple[Key, int, int]] = [(*heap[0], 0)] if heap else []
        while front and len(out) < count:
            key, serial, at = heapq.heappop(front)
            seq = seqs.get(serial)
            if seq is not None:
                out.append((key, seq))
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(front, (*heap[child], child))
        return out

    def members(self) -> Iterable[Seq]:
        """All, in order of arrival here."""
        return self._live.keys()
