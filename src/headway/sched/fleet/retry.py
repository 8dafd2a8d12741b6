"""How many retries are allowed: a share of what was sent, a few per second beside, and a wait for what exceeds it.

Tokens in integers (as in Finagle's RetryBudget), with a debt that time pays off: a retry that comes too early waits.
"""

from typing import Annotated, Final

import msgspec

from headway.core.units import NS_PER_S, Ns, ns_from_s

_MILLI: Final = 1000
_RETRY: Final = NS_PER_S * _MILLI  # one retry, in units of which `per_s` gains some every nanosecond


class RetryParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds the load that retries add when many requests fail."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2  # retries that one sent request allows
    per_s: Annotated[float, msgspec.Meta(ge=0.001)] = 10.0  # retries per second that are always allowed
    saved_max: Annotated[int, msgspec.Meta(ge=1)] = 100  # unused retries that are kept
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0  # a retry waits so long for the budget, else the request fails


class RetryBudget:
    """One per front."""

    def __init__(self, params: RetryParams) -> None:
        self._share = round(params.share * _MILLI) * NS_PER_S
        self._per_ns = max(1, round(params.per_s * _MILLI))
        self._most = params.saved_max * _RETRY
        self._wait_ns = ns_from_s(params.wait_s)
        self._balance = self._most
        self._at_ns: Ns = 0

    def sent(self) -> None:
        """A request was sent for the first time."""
        self._balance = min(self._most, self._balance + self._share)

    def take(self, at_ns: Ns) -> Ns | None:
        """Take one retry; return how long it must wait, or None when that is too long: nothing is taken then."""
        self._balance = min(self._most, self._balance + max(0, at_ns - self._at_ns) * self._per_ns)
        self._at_ns = max(at_ns, self._at_ns)
        debt = _RETRY - self._balance
        wait_ns = -(-debt // self._per_ns) if debt > 0 else 0
        if wait_ns > self._wait_ns:
            return None
        self._balance -= _RETRY
        return wait_ns
