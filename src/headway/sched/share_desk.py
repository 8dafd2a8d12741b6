"""Where requests of one front of several wait until the lender has answered (`admission/shares.py`).

A request waits here before the front knows of it: it is not queued, and holds nothing.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from headway.core.effects import Effect, Send, WakeAt
from headway.core.events import (
    ClientGone,
    Event,
    MessageArrived,
    RequestArrived,
    StreamClosed,
    TextStopped,
    TimerFired,
)
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.messages import Share
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.sched.admission.purse import Purse
from headway.sched.book import tokens_reserved

PATIENCE_NS: Final = 1 * NS_PER_S  # for an answer; then what is there decides
STATE_NS: Final = 500 * NS_PER_MS  # between statements of a front that holds something
WAITING_MAX: Final = 4096  # more are decided at once
STATE_TIMER: Final = TimerId("share:")


class _Waiting(msgspec.Struct):
    event: RequestArrived
    number: int  # of the statement that asked for it
    until_ns: Ns


class ShareDesk:
    """Appends what must be done to `out`, which the node hands to its driver."""

    def __init__(
        self, purse: Purse, control: NodeId, arrived: Callable[[RequestArrived], None], out: list[Effect]
    ) -> None:
        self.purse = purse
        self._control, self._arrived, self._out = control, arrived, out
        self._waiting: dict[RequestId, _Waiting] = {}
        self._ticks = False

    def __len__(self) -> int:
        return len(self._waiting)

    def took(self, event: Event) -> bool:
        """True when the front has nothing to do with an event any more."""
        at_ns = event.at_ns
        match event:
            case RequestArrived():
                self._consider(event, at_ns + PATIENCE_NS)
                return True
            case ClientGone() | TextStopped() | StreamClosed():
                self._decide(event.request, at_ns)  # the front has to know the request first
            case MessageArrived(message=Share() as share):
                self._heard(share, at_ns)
                return True
            case TimerFired(timer=timer) if timer.startswith("share:"):
                self._timer(timer, at_ns)
                return True
            case _:
                pass
        return False

    def _consider(self, event: RequestArrived, until_ns: Ns) -> None:
        request, at_ns = event.request, event.at_ns
        wants = self.purse.asks(request.tenant, tokens_reserved(request), at_ns)
        if not wants or at_ns >= until_ns or len(self._waiting) >= WAITING_MAX:
            self._arrived(event)
            return
        stated = self.purse.state(wants, at_ns)
        self._waiting[request.id] = _Waiting(event, stated.number, until_ns)
        self._out.append(Send(self._control, stated))
        self._out.append(WakeAt(until_ns, TimerId(f"share:{request.id}")))

    def _heard(self, message: Share, at_ns: Ns) -> None:
        """The lender has answered, and what waited for it can go on."""
        self.purse.heard(message, at_ns)
        for request in [name for name, one in self._waiting.items() if one.number <= message.answers]:
            waiting = self._waiting.pop(request)
            self._consider(msgspec.structs.replace(waiting.event, at_ns=at_ns), waiting.until_ns)

    def _decide(self, request: RequestId, at_ns: Ns) -> None:
        """With what is there."""
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            self._arrived(msgspec.structs.replace(waiting.event, at_ns=at_ns))

    def _timer(self, timer: TimerId, at_ns: Ns) -> None:
        """The lender was silent for too long, or it is time for a statement."""
        if timer != STATE_TIMER:
            request = RequestId(timer.partition(":")[2])
            waiting = self._waiting.get(request)
            if waiting is not None and at_ns >= waiting.until_ns:
                self._decide(request, at_ns)
            return
        self._ticks = False
        if not self.purse.is_empty:
            self._out.append(Send(self._control, self.purse.state((), at_ns)))

    def after(self, at_ns: Ns) -> None:
        """What others may wait for is given back at once, the rest with the next statement."""
        if self.purse.owes:
            self._out.append(Send(self._control, self.purse.state((), at_ns)))
        if not self._ticks and not self.purse.is_empty:
            self._ticks = True
            self._out.append(WakeAt(at_ns + STATE_NS, STATE_TIMER))
