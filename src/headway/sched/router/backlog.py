"""How much prefill waits at a replica between two of its reports (A5).

expected = reported - drained since + own dispatches since, as a fluid that drains at the learned rate. A report that is
overdue says less and less: the belief goes back to what this replica usually has, and never below the own dispatches
that are still without a first token. So a stale report is neither a full replica nor an idle one.
"""

from typing import Final

from headway.core.units import NS_PER_MS, NS_PER_S, Ns

SMOOTHING: Final = 0.9  # weight of the past in what is usual, per report
PATIENCE_NS: Final = 1000 * NS_PER_MS  # a report is on time while no interval is known
PATIENCE_MIN_NS: Final = 200 * NS_PER_MS
INTERVALS: Final = 4  # of the usual ones, until a report is overdue
DRAIN_DOUBT: Final = 0.5  # standard deviation of what has drained since, as a share of it


class Backlog:
    """The fluid, and what is usual. Amounts are prompt tokens."""

    def __init__(self) -> None:
        self.rate = 0.0  # tokens/s; 0: unknown, nothing drains
        self._level, self._level_ns = 0.0, 0
        self._gone = 0.0  # drained since the report, as far as it was folded into the level
        self._heard_ns: Ns | None = None
        self._usual = self._deviation = 0.0
        self._interval_ns = 0.0

    @property
    def patience_ns(self) -> float:
        """How old a report may be without being overdue."""
        return max(PATIENCE_MIN_NS, INTERVALS * self._interval_ns) if self._interval_ns else PATIENCE_NS

    def hear(self, tokens: int, unseen: float, rate: float, at_ns: Ns) -> None:
        """A report says `tokens`, and knows nothing of the `unseen` ones."""
        if self._heard_ns is None:
            self._usual = float(tokens)
        else:
            self._usual = SMOOTHING * self._usual + (1 - SMOOTHING) * tokens
            self._deviation = SMOOTHING * self._deviation + (1 - SMOOTHING) * abs(tokens - self._usual)
            gap_ns = float(at_ns - self._heard_ns)
            # A quiet replica says nothing; its silence is not how often it speaks when it has something to say.
            known = self._interval_ns
            self._interval_ns = SMOOTHING * known + (1 - SMOOTHING) * min(gap_ns, 10 * known) if known else gap_ns
        self._level, self._level_ns, self._gone = tokens + unseen, at_ns, 0.0
        self._heard_ns, self.rate = at_ns, rate

    def add(self, tokens: float, at_ns: Ns) -> None:
        """Something was dispatched there."""
        left = self._drained(at_ns)
        self._gone += self._level - left
        self._level, self._level_ns = left + tokens, at_ns

    def wake(self, at_ns: Ns) -> None:
        """Work begins at a replica that was idle, and so had nothing to report: its silence was no age."""
        if self._heard_ns is not None:
            self._heard_ns = max(self._heard_ns, at_ns)

    def _drained(self, at_ns: Ns) -> float:
        return max(0.0, self._level - self.rate * (at_ns - self._level_ns) / NS_PER_S)

    def look(self, at_ns: Ns, own: int) -> tuple[float, float]:
        """Return expectation and standard deviation; `own`: dispatched by this front and without a first token."""
        level = self._level - self.rate * (at_ns - self._level_ns) / NS_PER_S
        level = level if level > 0.0 else 0.0
        doubt = DRAIN_DOUBT * (self._gone + self._level - level)
        if self._heard_ns is None:
            return level, doubt
        age_ns = at_ns - self._heard_ns
        if age_ns <= PATIENCE_MIN_NS:  # on time, whatever is usual
            return level, doubt
        patience_ns = self.patience_ns
        if age_ns <= patience_ns:
            return level, doubt
        keep = patience_ns / age_ns
        usual = max(self._usual, float(own))
        return keep * level + (1 - keep) * usual, keep * doubt + (1 - keep) * max(self._deviation, DRAIN_DOUBT * usual)
