"""The playback of one session: when a chunk is due, how late it came, and when the next one may be begun."""

from collections import deque

from headway.core.units import Ns


class Playback:
    """Plays from when the first chunk was sent, and waits where the next one has not come."""

    def __init__(self, ahead: int) -> None:
        """`ahead`: chunks that are made before they are played."""
        self._began: deque[Ns] = deque(maxlen=ahead)  # when the last chunks began to be played
        self.due_ns: Ns | None = None  # when all that was sent will have been played; None: nothing was

    def sent(self, at_ns: Ns, length_ns: Ns) -> None:
        """The next chunk has left; it plays for so long."""
        began_ns = at_ns if self.due_ns is None else max(at_ns, self.due_ns)
        self._began.append(began_ns)
        self.due_ns = began_ns + length_ns

    @property
    def opens_ns(self) -> Ns:
        """When the next chunk may be begun: `ahead` before it is played. 0: at once."""
        return self._began[0] if len(self._began) == self._began.maxlen else 0

    def late_ns(self, at_ns: Ns) -> Ns:
        """By how much the next chunk is late that comes now."""
        return 0 if self.due_ns is None else max(0, at_ns - self.due_ns)
