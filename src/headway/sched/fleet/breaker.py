"""One circuit breaker per replica instance: when its requests fail it rests, then one request at a time tries it.

Never terminal: whoever is there is tried again (smg#2468). Refusals are backpressure, no fault (sglang#25811, #39464).
"""

from collections import deque
from typing import Annotated, Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.ids import NodeId, RequestId
from headway.core.units import Ns, ns_from_s

State = Literal["closed", "open", "half_open"]
Outcome = Literal["success", "neutral", "fault"]
_SLOTS: Final = 10  # of the window; its oldest tenth leaves at once


class BreakerParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Opens on a share of faults and a minimum count of them; each opening in a row lasts twice as long."""

    window_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0  # over which outcomes are counted
    faults_min: Annotated[int, msgspec.Meta(ge=1)] = 5  # fewer faults within the window never open it
    fault_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5  # of faults among faults and successes that opens it
    open_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # it rests so long at first; doubles with every failed trial
    open_s_max: Annotated[float, msgspec.Meta(gt=0)] = 30.0  # doubling ends here

    def __post_init__(self) -> None:
        if self.open_s > self.open_s_max:
            raise ConfigError(f"breaker.open_s = {self.open_s} is above breaker.open_s_max = {self.open_s_max}")


class _Slot(msgspec.Struct):
    number: int
    successes: int = 0
    faults: int = 0


class _Breaker(msgspec.Struct):
    state: State = "closed"
    slots: deque[_Slot] = msgspec.field(default_factory=deque)
    openings: int = 0  # in a row
    opened_ns: Ns = 0
    until_ns: Ns = 0
    trial: RequestId | None = None  # the one request that may find out whether it works again
    decided_on: tuple[int, int] = (0, 0)  # faults and successes, when it last changed


class Breakers:
    """The breakers of the replicas that are there. Every change returns True when a state changed."""

    def __init__(self, params: BreakerParams) -> None:
        self._params = params
        self._slot_ns = max(1, ns_from_s(params.window_s) // _SLOTS)
        self._open_ns, self._open_ns_max = ns_from_s(params.open_s), ns_from_s(params.open_s_max)
        self._breakers: dict[NodeId, _Breaker] = {}
        self.disturbed: dict[NodeId, None] = {}  # whose state is not closed

    def joined(self, node: NodeId) -> None:
        """An instance is there; nothing that an earlier one did counts."""
        self._breakers[node] = _Breaker()
        self.disturbed.pop(node, None)

    def left(self, node: NodeId) -> None:
        """It is gone."""
        self._breakers.pop(node, None)
        self.disturbed.pop(node, None)

    def state(self, node: NodeId) -> State:
        """Its state; one that nobody knows is closed."""
        breaker = self._breakers.get(node)
        return "closed" if breaker is None else breaker.state

    def counts(self, node: NodeId) -> tuple[int, int]:
        """Faults and successes that its window holds."""
        slots = self._breakers[node].slots if node in self._breakers else ()
        return sum(slot.faults for slot in slots), sum(slot.successes for slot in slots)

    def decided_on(self, node: NodeId) -> tuple[int, int]:
        """Faults and successes in its window when its state last changed."""
        return self._breakers[node].decided_on

    def until_ns(self, node: NodeId) -> Ns:
        """When an open one may be tried."""
        return self._breakers[node].until_ns

    def is_trial(self, node: NodeId, request: RequestId) -> bool:
        """True for the request that finds out whether the replica works again."""
        breaker = self._breakers.get(node)
        return breaker is not None and breaker.trial == request

    def is_usable(self, node: NodeId, at_ns: Ns) -> bool:
        """True when it may be given a request now."""
        breaker = self._breakers.get(node)
        if breaker is None or breaker.state == "closed":
            return True
        return breaker.trial is None and at_ns >= breaker.until_ns

    def resort_ns(self, node: NodeId) -> Ns | None:
        """From when on it may be tried because nobody else is left: after the first rest, not after the whole backoff.

        None while a request is trying it.
        """
        breaker = self._breakers.get(node)
        if breaker is None or breaker.state == "closed":
            return 0
        if breaker.trial is not None:
            return None
        return min(breaker.until_ns, breaker.opened_ns + self._open_ns)

    def tried(self, node: NodeId, request: RequestId, *, is_down: bool) -> bool:
        """A request goes there. Behind an open breaker, or with bad health checks, it is the one trial."""
        breaker = self._breakers.get(node)
        if breaker is None or breaker.trial is not None or (breaker.state == "closed" and not is_down):
            return False
        breaker.trial = request
        has_changed, breaker.state = breaker.state != "half_open", "half_open"
        breaker.decided_on = self.counts(node)
        self.disturbed[node] = None
        return has_changed

    def ended(self, node: NodeId, request: RequestId, outcome: Outcome, at_ns: Ns) -> bool:
        """A request there has an outcome. Neutral ones only give the trial back."""
        breaker = self._breakers.get(node)
        if breaker is None:
            return False
        if outcome != "neutral":
            self._count(breaker, outcome == "fault", at_ns)
        if breaker.trial == request:
            breaker.trial = None
            if outcome == "success":
                breaker.state, breaker.openings, breaker.decided_on = "closed", 0, self.counts(node)
                breaker.slots.clear()
                del self.disturbed[node]
                return True
            if outcome == "fault":
                self._open(node, breaker, at_ns)
                return True
        elif outcome == "fault" and breaker.state == "closed" and self._is_failing(node):
            self._open(node, breaker, at_ns)
            return True
        return False

    def _count(self, breaker: _Breaker, is_fault: bool, at_ns: Ns) -> None:
        number, slots = at_ns // self._slot_ns, breaker.slots
        while slots and slots[0].number <= number - _SLOTS:
            slots.popleft()
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
        slots[-1].faults += is_fault
        slots[-1].successes += not is_fault

    def _is_failing(self, node: NodeId) -> bool:
        faults, successes = self.counts(node)
        return faults >= self._params.faults_min and faults >= self._params.fault_share * (faults + successes)

    def _open(self, node: NodeId, breaker: _Breaker, at_ns: Ns) -> None:
        breaker.state, breaker.opened_ns, breaker.decided_on = "open", at_ns, self.counts(node)
        self.disturbed[node] = None
        breaker.until_ns = at_ns + min(self._open_ns_max, self._open_ns << min(breaker.openings, 40))
        breaker.openings += 1
        breaker.slots.clear()
