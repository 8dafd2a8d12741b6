"""Carries what ended to a slow place (a collector, a disk) in a thread: bounded, in batches, lossy when it must be."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class OutboxLimits(msgspec.Struct, frozen=True):
    """How much waits, how much goes at once, and how long a batch is gathered."""

    waiting_max: int
    batch_max: int = 512
    gather_s: float = 1.0


class Outbox(Generic[T]):
    """`put` never blocks and never raises: what finds no room, or cannot be delivered, is counted in `lost`."""

    def __init__(self, name: str, deliver: Callable[[Sequence[T]], int], limits: OutboxLimits) -> None:
        """`deliver` runs in the thread and returns how many items it lost; an OSError loses the batch."""
        self._deliver, self._limits = deliver, limits
        self._waiting: deque[T] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._refused = self._failed = 0  # one writer each: the caller's thread, the outbox's
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Items that will never arrive."""
        return self._refused + self._failed

    def put(self, item: T) -> None:
        """Leave an item."""
        if len(self._waiting) >= self._limits.waiting_max:
            self._refused += 1
            return
        self._waiting.append(item)
        if not self._wake.is_set():
            self._wake.set()

    def close(self, patience_s: float) -> None:
        """Deliver what waits, for so long at most; what is left then is lost."""
        self._closing.set()
        self._wake.set()
        self._thread.join(patience_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.is_set()  # read before the queue is emptied, so that nothing stays behind
            if not is_last:
                self._wake.wait()
                self._closing.wait(self._limits.gather_s)
            # Cleared before the queue is emptied: an item that comes meanwhile sets it again.
            self._wake.clear()
            while batch := self._take():
                try:
                    self._failed += self._deliver(batch)
                except OSError:
                    self._failed += len(batch)

    def _take(self) -> list[T]:
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._limits.batch_max))]
