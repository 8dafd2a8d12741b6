"""Plan as soon as a step credit is free."""

from typing import ClassVar

import msgspec

from headway.core.units import Ns
from headway.sched.executor.protocol import InFlight


class OnLaunch:
    """Keeps the device busy first."""

    is_prompt: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()
    sees: ClassVar[str] = "free step credits"
    good_at: ClassVar[str] = "throughput: the device never waits for a plan"
    blind_spot: ClassVar[str] = "a request that arrives later waits one step more"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No parameters."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def plan_at(self, at_ns: Ns, flight: InFlight) -> Ns:
        """Now."""
        return at_ns
