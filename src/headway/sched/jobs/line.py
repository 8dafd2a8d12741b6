"""Rows that this node might claim next. The table has the truth; this is what was last seen of it."""

import heapq
from collections.abc import Sequence

from headway.core.ids import RequestId
from headway.core.jobs import JobRow
from headway.core.units import Ns

Rank = tuple[int, int, RequestId]


class Line:
    """By urgency, then position, then id. `first` is O(log n) amortised."""

    def __init__(self) -> None:
        self._rows: dict[RequestId, JobRow] = {}
        self._order: list[tuple[Rank, int, RequestId]] = []  # with the attempt; entries of other rows are stale
        self._since_read: dict[RequestId, JobRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def read_begins(self) -> None:
        """A read of the table was asked for: it may miss what is stored from now on."""
        self._since_read.clear()

    def seen(self, rows: Sequence[JobRow]) -> None:
        """What the read found replaces everything older."""
        fresh = dict(self._since_read)
        self._rows = {row.job: row for row in rows} | fresh
        self._order = [(_rank(row), row.attempt, row.job) for row in self._rows.values()]
        heapq.heapify(self._order)

    def store(self, row: JobRow) -> None:
        """One that was stored just now."""
        self._rows[row.job] = self._since_read[row.job] = row
        heapq.heappush(self._order, (_rank(row), row.attempt, row.job))

    def drop(self, job: RequestId) -> None:
        """It is claimed, or no longer to be had."""
        self._rows.pop(job, None)
        self._since_read.pop(job, None)

    def take(self, at_ns: Ns) -> JobRow | None:
        """Remove and return the first one that is due; None where there is none."""
        later: list[tuple[Rank, int, RequestId]] = []
        found: JobRow | None = None
        while self._order and found is None:
            entry = heapq.heappop(self._order)
            row = self._rows.get(entry[2])
            if row is None or (_rank(row), row.attempt) != entry[:2]:
                continue
            if row.not_before_ns > at_ns:
                later.append(entry)
            else:
                found = row
                self.drop(row.job)
        for entry in later:
            heapq.heappush(self._order, entry)
        return found


def _rank(row: JobRow) -> Rank:
    return (-row.urgency, row.position, row.job)
