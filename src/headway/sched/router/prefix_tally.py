"""How often the predicted prefix hit was right, per model: predicted against reported cached tokens."""

from collections.abc import Sequence

from headway.core.ids import ModelId
from headway.core.reports import PrefixFigures
from headway.core.request import DiffusionRequest, Request


class _Sums:
    def __init__(self) -> None:
        self.dispatches = self.unhashed = self.predicted = self.reported = self.over = self.under = 0


class PrefixTally:
    """Counts since the start. Seven ways to lose prefix routing in silence were found by this (AMD-AGI/Infera#143)."""

    def __init__(self) -> None:
        self._models: dict[ModelId, _Sums] = {}

    def _of(self, model: ModelId) -> _Sums:
        sums = self._models.get(model)
        if sums is None:
            sums = self._models[model] = _Sums()
        return sums

    def dispatched(self, request: Request) -> None:
        """A request went to a replica."""
        if not isinstance(request, DiffusionRequest):
            sums = self._of(request.model)
            sums.dispatches += 1
            sums.unhashed += not request.block_tokens

    def told(self, model: ModelId, predicted: int, reported: int) -> None:
        """A replica said how much of a prompt it had cached."""
        sums = self._of(model)
        sums.predicted += predicted
        sums.reported += reported
        sums.over += max(0, predicted - reported)
        sums.under += max(0, reported - predicted)

    def figures(self) -> Sequence[PrefixFigures]:
        """All of it, by model."""
        return tuple(
            PrefixFigures(model, s.dispatches, s.unhashed, s.predicted, s.reported, s.over, s.under)
            for model, s in sorted(self._models.items())
        )
