"""In which order the one thread of the job table does what it is asked for."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Heartbeats pass everything else, for what they wait leases run out, and work is done twice. But no two of them
    in a row while others wait: before a slow table nothing but heartbeats would be written. Either kind keeps its
    own order.

    Passing is safe: JobNode sends no heartbeat of an attempt whose end it asked to be written, and what may wait of an
    attempt that runs (its beginning, previews, a checkpoint) neither ends its lease nor writes less than a heartbeat
    of before would leave.
    """

    def __init__(self) -> None:
        self._beats: deque[T] = deque()
        self._others: deque[T] = deque()
        self._was_beat = False

    def __len__(self) -> int:
        return len(self._beats) + len(self._others)

    def put(self, item: T, is_beat: bool = False) -> None:
        """It is asked for now."""
        (self._beats if is_beat else self._others).append(item)

    def take(self) -> T:
        """What is done next. Raises IndexError where nothing waits."""
        self._was_beat = bool(self._beats) and not (self._was_beat and self._others)
        return (self._beats if self._was_beat else self._others).popleft()
