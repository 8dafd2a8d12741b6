"""The webhook outbox: which message is sent when, and when one is given up. Delivered at least once."""

from typing import Final

from headway.core.ids import RequestId
from headway.core.job_effects import ClaimHook, CloseHook, JobEffect, PostponeHook, ReadHooks, SendHook
from headway.core.jobs import HookAnswered, HookClaimed, HookRow
from headway.core.units import NS_PER_S, Ns, ns_from_s
from headway.sched.jobs.params import HookParams

_MARGIN_NS: Final = 5 * NS_PER_S  # a claim outlasts the send's timeout, so that nobody sends it meanwhile
_GONE: Final = 410  # the receiver wants no more of these (RFC 9110, 15.5.11)


class Hooks:
    """Appends to `out`."""

    def __init__(self, params: HookParams, out: list[JobEffect]) -> None:
        self._params, self._out = params, out
        self._open: dict[str, int] = {}  # claimed or being claimed -> attempt
        self._is_reading = False
        self._hold_ns = ns_from_s(params.timeout_s) + _MARGIN_NS

    def __len__(self) -> int:
        return len(self._open)

    def poll(self) -> None:
        """Look from time to time, not faster than the table answers."""
        if not self._is_reading:
            self.read()

    def read(self) -> None:
        """Look for due messages while there is room to send them."""
        room = self._params.in_flight_max - len(self._open)
        if room > 0:
            self._is_reading = True
            self._out.append(ReadHooks(room))

    def seen(self, rows: tuple[HookRow, ...], at_ns: Ns) -> None:
        """Claim what is due."""
        self._is_reading = False
        for row in rows:
            if len(self._open) < self._params.in_flight_max and row.hook not in self._open:
                self._open[row.hook] = row.attempt + 1
                self._out.append(ClaimHook(row.hook, row.attempt, at_ns + self._hold_ns))

    def claimed(self, event: HookClaimed) -> None:
        """It is ours: send it."""
        self._open[event.row.hook] = event.row.attempt
        self._out.append(SendHook(event.row.hook, event.row.attempt))

    def lost(self, hook: str) -> None:
        """Somebody else's."""
        self._open.pop(hook, None)

    def answered(self, event: HookAnswered) -> None:
        """Delivered, tried again later, or given up."""
        if self._open.get(event.hook) != event.attempt:
            return  # an answer to what was given up
        del self._open[event.hook]
        status = event.status
        if status is not None and 200 <= status < 300:
            self._out.append(CloseHook(event.hook, event.attempt, True, event.reason))
        elif event.is_refused or status == _GONE or event.attempt >= self._params.attempts_max:
            self._out.append(CloseHook(event.hook, event.attempt, False, event.reason))
        else:
            wait_ns = self._params.backoff.wait_ns(RequestId(event.hook), event.attempt)
            self._out.append(PostponeHook(event.hook, event.attempt, event.at_ns + wait_ns, event.reason))
