"""How fast a replica is, learned from a front's own first tokens and ends (A2), where its report does not say."""

from typing import Final

from headway.core.reports import StepCoefficients
from headway.core.units import NS_PER_S, Ns

KEEP: Final = 0.95  # weight of the past in a fit, per sample
AHEAD_MIN: Final = 64  # tokens: a shorter prompt's first token tells of the step, not of the prefill
SAMPLES_MIN: Final = 3  # fewer say nothing
# A further row adds little to a step, which reads all weights anyway. What steeper lines show is prefill between the
# steps, and as requests wait together with long prompts it would make one replica's rows look dear and another's free.
ROW_SHARE_MAX: Final = 0.02
FLOOR_SHARE_MAX: Final = 0.1  # of the time to a first token that is not the prefill's, however few samples say more
CONTRAST_MIN: Final = 1e-3  # share of the second moment below which the samples' work is all the same


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
        if spread > CONTRAST_MIN * self._n * self._xx:
            slope = min(slope, max(0.0, (self._n * self._xy - self._x * self._y) / spread))
        self.slope = slope
        self.floor = max(0.0, (self._y - slope * self._x) / self._n)

    @property
    def ratio(self) -> float:
        """Slope of the line through the origin."""
        return self._y / self._x if self._x > 0 else 0.0

    def within(self, share: float) -> tuple[float, float]:
        """Floor and slope, the slope at most `share` of the floor: the line through the samples' mean that is."""
        if self.slope <= share * self.floor or not self._n:
            return self.floor, self.slope
        floor = self._y / (self._n + share * self._x)
        return floor, share * floor


class Speed:
    """Two lines of one replica, as one front sees it."""

    def __init__(self) -> None:
        self.prefill = Line()  # seconds to the first token over the uncached tokens ahead of it, its own included
        self.decode = Line()  # seconds per output token over the front's requests beside it, its own included
        self.prefill_tokens_per_s = 0.0
        self.step_cost: StepCoefficients | None = None

    def began(self, ahead: int, since_ns: Ns) -> None:
        """A first token came `since_ns` after its dispatch, behind and with `ahead` uncached tokens."""
        if ahead < AHEAD_MIN:
            return
        line = self.prefill
        line.add(ahead, since_ns / NS_PER_S)
        slope = max(line.slope, (1.0 - FLOOR_SHARE_MAX) * line.ratio)
        if line.samples >= SAMPLES_MIN and slope > 0:
            self.prefill_tokens_per_s = 1.0 / slope

    def ended(self, output_tokens: int, beside: float, since_ns: Ns) -> None:
        """A request ended `since_ns` after its first token, with `beside` requests of this front there on average."""
        if output_tokens < 2:
            return
        line = self.decode
        line.add(beside, since_ns / NS_PER_S / (output_tokens - 1))
        if line.samples >= SAMPLES_MIN:
            floor, slope = line.within(ROW_SHARE_MAX)
            self.step_cost = StepCoefficients(floor * NS_PER_S, slope * NS_PER_S, 0.0, 0.0, 0.0)
