"""Whether the plan that runs has taken too long, with one timer for all plans: most end before anybody asks."""

from typing import Final

from headway.core.effects import Effect, WakeAt
from headway.core.ids import TimerId
from headway.core.units import Ns

STUCK_TIMER: Final = TimerId("stuck")


class StepWatch:
    """Told when a plan begins and ends."""

    def __init__(self) -> None:
        self._since_ns: Ns | None = None  # the plan that runs began; None: none runs, or it may take for ever
        self._due_ns: Ns = 0
        self._armed_ns: Ns | None = None  # when the timer comes

    def begin(self, patience_ns: Ns | None, at_ns: Ns, out: list[Effect]) -> None:
        """A plan was handed over, and may take so long."""
        self._since_ns = None
        if patience_ns is not None:
            self._since_ns, self._due_ns = at_ns, at_ns + patience_ns
            self._arm(out)

    def end(self) -> None:
        """It is over."""
        self._since_ns = None

    def look(self, at_ns: Ns, out: list[Effect]) -> Ns | None:
        """The timer fired: return when the plan began that should be over, or look again when it should be."""
        self._armed_ns = None
        if self._since_ns is None:
            return None
        if at_ns >= self._due_ns:
            return self._since_ns
        self._arm(out)
        return None

    def _arm(self, out: list[Effect]) -> None:
        if self._armed_ns is None or self._due_ns < self._armed_ns:  # behind a video, a picture is stuck sooner
            self._armed_ns = self._due_ns
            out.append(WakeAt(self._due_ns, STUCK_TIMER, replaces=True))
