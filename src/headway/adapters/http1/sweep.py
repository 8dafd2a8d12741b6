"""One timer for the deadlines of many connections: a deadline is set by an assignment, at every byte if need be.

A timer of the loop for each would cost more than relaying a chunk does.
"""

import asyncio
import math
from typing import Final, Protocol

NEVER: Final = math.inf
TICKS_PER_TIMEOUT: Final = 8  # how late a deadline may be noticed, as a part of the shortest timeout
TICK_S_MAX: Final = 1.0


class Swept(Protocol):
    """Something with a deadline on the loop's clock, `NEVER` while there is none."""

    deadline: float

    def late(self) -> None:
        """The deadline has passed; it was set to NEVER. May remove itself or others from the sweep."""
        ...


class Sweep:
    """Looks at every member once a tick."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s_min: float) -> None:
        self._loop = loop
        self._tick_s = min(timeout_s_min / TICKS_PER_TIMEOUT, TICK_S_MAX)
        self._members: dict[Swept, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Swept) -> None:
        """Watch a member's deadline."""
        self._members[member] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def remove(self, member: Swept) -> None:
        """Watch it no longer."""
        self._members.pop(member, None)

    def _tick(self) -> None:
        now = self._loop.time()
        for member in [member for member in self._members if member.deadline <= now]:
            member.deadline = NEVER
            member.late()
        # Without members the timer stops, so that an idle process sleeps.
        self._timer = self._loop.call_later(self._tick_s, self._tick) if self._members else None
