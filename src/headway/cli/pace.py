"""Lines on stderr that come now and then, for logs and pipes."""

import sys
import time
from collections.abc import Callable
from typing import Final

LOG_EVERY_S: Final = 10.0  # where nobody asked: so a short run says nothing


class Paced:
    """Plain lines on stderr, at most one every `every_s`; the first one after that time, or at once with `is_first`."""

    def __init__(
        self, every_s: float = LOG_EVERY_S, clock: Callable[[], float] = time.monotonic, *, is_first: bool = False
    ) -> None:
        self._every_s, self._clock = every_s, clock
        self._due_s = clock() + (0.0 if is_first else every_s)

    def say(self, text: Callable[[], str]) -> None:
        """Print `text()` when a line is due."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            print(text(), file=sys.stderr, flush=True)
