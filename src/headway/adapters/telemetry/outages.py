"""A database or an object store that does not answer: its operator reads why in the log, its clients only that."""

import logging
import time
from collections.abc import Callable
from typing import Final

LOG_EVERY_S: Final = 10.0


class Outage:
    """Of one part of the server. Told from one thread; `is_on` may be read from others."""

    def __init__(self, part: str, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`part`: what it is and where, for the log alone."""
        self.is_on = False
        self._part, self._log, self._clock = part, log, clock
        self._logged_s: float | None = None
        self._unlogged = 0
        self._is_told = False  # that it is on

    def failed(self, detail: str) -> None:
        """It did not answer. Logged at most every LOG_EVERY_S, with how many were not logged since."""
        self.is_on = True
        now_s = self._clock()
        if self._logged_s is not None and now_s - self._logged_s < LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} times since the last such line)" if self._unlogged else ""
        self._log.warning("%s does not answer: %s%s", self._part, detail, more)
        self._logged_s, self._unlogged, self._is_told = now_s, 0, True

    def answered(self) -> None:
        """It does answer."""
        if self.is_on:
            self.is_on = False
            if self._is_told:
                self._log.info("%s answers again", self._part)
            self._is_told = False
