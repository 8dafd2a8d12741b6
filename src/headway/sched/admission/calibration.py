"""How far forecasts of one model are off, learned while serving, and the quantile that admission promises at.

A bound is the forecast times a quantile of the recent ratios actual / forecast (split conformal prediction:
Angelopoulos & Bates, A Gentle Introduction to Conformal Prediction, section 1), so that a share `quantile` of the
answers comes within it whatever the bias of the forecast. Which quantile follows from the sample of refusals that ran
all the same: each one that kept its SLO lowers it, each one that did not raises it, so that the share of false
rejections tends to its target (adaptive conformal inference: Gibbs & Candes 2021, equation 2). The two ends of the
range hold what is meant: under a lasting overload a refusal is often false in hindsight for the one request, and would
not be if all of them had run.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Annotated, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.reports import AdmissionFigures

Promise = Literal["ttft", "tpot", "e2e"]
PROMISES: tuple[Promise, ...] = ("ttft", "tpot", "e2e")
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class CalibrationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The quantile admission predicts at: where it begins, how far and how fast it moves, and towards what."""

    quantile: Share = 0.6  # to begin with
    quantile_min: Share = 0.5  # what is more likely late than not is never admitted, however many refusals were false
    quantile_max: Share = 0.98
    quantile_step: Share = 0.02  # per refusal of the sample; 0: the quantile stays
    false_reject_target: Share = 0.2  # share of the refused that would have kept their SLO
    samples_min: Annotated[int, msgspec.Meta(ge=1)] = 20  # before them a forecast counts as it is
    window: Annotated[int, msgspec.Meta(ge=10)] = 200  # answers that are remembered

    def __post_init__(self) -> None:
        if not self.quantile_min <= self.quantile <= self.quantile_max:
            raise ConfigError(
                f"quantile = {self.quantile} must be between quantile_min = {self.quantile_min} and quantile_max = "
                f"{self.quantile_max}"
            )


class Ratios:
    """Actual over forecast, of the last answers, in order of size and of time."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, ratio: float) -> None:
        """Remember one; the oldest is forgotten."""
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        if len(self._recent) > self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def at(self, quantile: float) -> float:
        """Return the ratio that a share `quantile` of new answers stays within."""
        count = len(self._sorted)
        return self._sorted[min(count, max(1, math.ceil((count + 1) * quantile))) - 1]


class Calibration:
    """Of one model."""

    def __init__(self, params: CalibrationParams) -> None:
        self.quantile = params.quantile
        self._params = params
        self._ratios = {what: Ratios(params.window) for what in PROMISES}
        self._covered: dict[Promise, deque[bool]] = {what: deque(maxlen=params.window) for what in PROMISES}
        self._false: deque[bool] = deque(maxlen=params.window)
        self._shadows = 0

    def bound(self, what: Promise, seconds: float, grain: float) -> float:
        """Return what the answer is promised to stay within; `grain` seconds are what the forecast cannot resolve."""
        ratios = self._ratios[what]
        if len(ratios) < self._params.samples_min:
            return seconds
        return max(0.0, (seconds + grain) * ratios.at(self.quantile) - grain)

    def came(self, what: Promise, forecast: tuple[float, float], bound: float, seconds: float) -> None:
        """An answer came after `seconds`; `forecast` with its grain."""
        predicted, grain = forecast
        self._covered[what].append(seconds <= bound)
        if predicted + grain > 0:
            self._ratios[what].add((seconds + grain) / (predicted + grain))

    def never_came(self, what: Promise, forecast: tuple[float, float], bound: float, seconds: float) -> None:
        """It had not come after `seconds`, when it was given up: that is news only beyond its bound."""
        if seconds > bound:
            self.came(what, forecast, bound, seconds)

    def shadowed(self, was_false: bool) -> None:
        """A request that was to be refused ran, and kept its SLO or not."""
        params = self._params
        self._false.append(was_false)
        self._shadows += 1
        move = -(1.0 - params.false_reject_target) if was_false else params.false_reject_target
        moved = self.quantile + params.quantile_step * move
        self.quantile = min(params.quantile_max, max(params.quantile_min, moved))

    def figures(self, model: str) -> AdmissionFigures:
        """What operators read."""
        coverage = tuple((what, _share(self._covered[what])) for what in PROMISES)
        return AdmissionFigures(model, self.quantile, coverage, _share(self._false), self._shadows)


def _share(seen: deque[bool]) -> float | None:
    return sum(seen) / len(seen) if seen else None
