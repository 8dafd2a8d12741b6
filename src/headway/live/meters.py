"""Usage of a server without a job table: counted in memory from its start, and gone with it."""

from collections.abc import Callable, Sequence
from typing import Final

from headway.adapters.gateway.job_ports import Place, Usage, UsageQuery
from headway.adapters.gateway.tally import Tally, day_of, used
from headway.core.evidence import EvidenceRecord
from headway.core.units import NS_PER_S, Ns

KEPT_DAYS: Final = 366  # as many as one query may ask for
_DAY_NS: Final = 86_400 * NS_PER_S


class MemoryMeters:
    """`Meters`. Rows are bounded by days, configured tenants and models."""

    def __init__(self, unix_ns: Callable[[], Ns]) -> None:
        self._unix_ns = unix_ns
        self._tally = Tally()
        self._day = day_of(unix_ns())
        self.since: int | None = unix_ns() // NS_PER_S

    def observe(self, record: EvidenceRecord) -> None:
        """A request ended."""
        at_ns = self._unix_ns()
        self._tally.observe(record, at_ns)
        if (day := day_of(at_ns)) != self._day:
            self._day = day
            self._forget(day_of(at_ns - KEPT_DAYS * _DAY_NS))

    def _forget(self, last_day: str) -> None:
        for place in [place for place in self._tally.sums if place[0] <= last_day]:
            del self._tally.sums[place]

    async def usage(self, query: UsageQuery) -> Sequence[Usage]:
        """See the port."""
        places = sorted(place for place in self._tally.sums if _is_asked(place, query))
        if query.after is not None:
            places = [place for place in places if place > query.after]
        return [used(place, self._tally.sums[place]) for place in places[: query.limit]]

    async def sums(self, query: UsageQuery) -> Sequence[Usage]:
        """See the port."""
        total = Tally()
        for place, counts in self._tally.sums.items():
            if _is_asked(place, query):
                day, _tenant, model = place
                total.add((day, "", model), counts)
        return [used(place, total.sums[place]) for place in sorted(total.sums)]


def _is_asked(place: Place, query: UsageQuery) -> bool:
    day, tenant, model = place
    return query.first_day <= day <= query.last_day and query.tenant in (None, tenant) and query.model in (None, model)
