"""When a short request that is still without its first token is sent to a second replica, and how many of them are."""

from bisect import bisect_left, insort
from collections import deque
from typing import Annotated, Final

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import Ns, ns_from_ms

_MICRO: Final = 1_000_000
_SAVED_MAX: Final = 10 * _MICRO  # hedges that a quiet time allows at once
_KEPT: Final = 256  # first-token times that a quantile is taken of
_KNOWN_MIN: Final = 32  # fewer say nothing


class HedgeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """After a fixed delay, or after a quantile of the latest times to a first token: one of the two."""

    after_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None  # from the dispatch
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None  # of the latest dispatch-to-first-token times
    prompt_tokens_max: Annotated[int, msgspec.Meta(ge=1)] = 2048  # a longer prompt costs too much twice
    share_max: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05  # hedges per request sent

    def __post_init__(self) -> None:
        if (self.after_ms is None) == (self.quantile is None):
            raise ConfigError("hedge needs one of hedge.after_ms and hedge.quantile, and not both")


class Hedging:
    """One per front."""

    def __init__(self, params: HedgeParams) -> None:
        self._params = params
        self._latest: deque[Ns] = deque()
        self._sorted: list[Ns] = []
        self._share = round(params.share_max * _MICRO)
        self._balance = _MICRO

    def sent(self) -> None:
        """A request was sent for the first time."""
        self._balance = min(_SAVED_MAX, self._balance + self._share)

    def learned(self, first_token_ns: Ns) -> None:
        """A first token came so long after its dispatch."""
        self._latest.append(first_token_ns)
        insort(self._sorted, first_token_ns)
        if len(self._latest) > _KEPT:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def delay_ns(self, prompt_tokens: int) -> Ns | None:
        """How long after its dispatch a request is hedged; None: it is not."""
        params = self._params
        if prompt_tokens > params.prompt_tokens_max:
            return None
        if params.after_ms is not None:
            return ns_from_ms(params.after_ms)
        if params.quantile is None or len(self._sorted) < _KNOWN_MIN:
            return None
        return self._sorted[int(params.quantile * len(self._sorted))]

    def take(self) -> bool:
        """Take one hedge from the budget; False when none is left."""
        if self._balance < _MICRO:
            return False
        self._balance -= _MICRO
        return True
