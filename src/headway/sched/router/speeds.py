"""How fast a replica is, learned from a front's own first tokens and ends (A2), where its report does not say."""

from typing import Final

import msgspec

from headway.core.units import NS_PER_S, Ns

KEEP: Final = 0.95  # weight of the past in a fit, per sample
AHEAD_MIN: Final = 64  # tokens: a shorter prompt's first token tells of the step, not of the prefill


class Line:
    """Least squares y = floor + slope x with forgetting; neither may be negative, for time only grows with work."""

    def __init__(self) -> None:
        self.floor = self.slope = 0.0
        self.samples = 0
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        """Fold in one sample."""
        self.samples += 1
        self._n = KEEP * self._n + 1.0
        self._x = KEEP * self._x + x
        self._y = KEEP * self._y + y
        self._xx = KEEP * self._xx + x * x
        self._xy = KEEP * self._xy + x * y
        spread = self._n * self._xx - self._x * self._x
        slope = self._y / self._x if self._x > 0 else 0.0  # through the origin, unless the samples differ enough
        if spread > 1e-3 * self._n * self._xx:
            slope = min(slope, max(0.0, (self._n * self._xy - self._x * self._y) / spread))
        self.slope = slope
        self.floor = max(0.0, (self._y - slope * self._x) / self._n)


class Flight(msgspec.Struct, gc=False):
    """One dispatch of this front that has not ended."""

    replica: str
    tenant: str
    session: str | None
    uncached: int
    ahead: int  # uncached tokens of own dispatches at that replica without a first token, its own included
    at_ns: Ns
    began_ns: Ns | None = None
    beside: int = 0  # own dispatches there when its first token came


class Pace:
    """What is known of one replica beyond its report."""

    def __init__(self) -> None:
        self.prefill = Line()  # seconds to the first token over the uncached tokens ahead of it, its own included
        self.decode = Line()  # seconds per output token over the own dispatches beside it, its own included
        self.heard_ns: Ns = 0  # of the last sample of any kind
        self.in_flight = 0
        self.ahead = 0
        self.by_tenant: dict[str, int] = {}

    def sent(self, flight: Flight) -> None:
        """Count a dispatch."""
        self.in_flight += 1
        self.ahead += flight.uncached
        flight.ahead = self.ahead
        self.by_tenant[flight.tenant] = self.by_tenant.get(flight.tenant, 0) + 1

    def began(self, flight: Flight, since_ns: Ns, at_ns: Ns) -> None:
        """Its first token came."""
        self.heard_ns = at_ns
        self.ahead -= flight.uncached
        flight.began_ns, flight.beside = at_ns, self.in_flight
        if flight.ahead >= AHEAD_MIN:
            self.prefill.add(flight.ahead, since_ns / NS_PER_S)

    def ended(self, flight: Flight, output_tokens: int, at_ns: Ns) -> None:
        """It is over."""
        beside = (flight.beside + self.in_flight) / 2
        self.in_flight -= 1
        left = self.by_tenant[flight.tenant] - 1
        if left:
            self.by_tenant[flight.tenant] = left
        else:
            del self.by_tenant[flight.tenant]
        if flight.began_ns is None:
            self.ahead -= flight.uncached
        elif output_tokens > 1:
            self.heard_ns = at_ns
            self.decode.add(beside, (at_ns - flight.began_ns) / NS_PER_S / (output_tokens - 1))
