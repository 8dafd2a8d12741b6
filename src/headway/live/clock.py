"""The only module that reads the clock: nanoseconds since the start of the run, shared by the processes of one host."""

import time

from headway.core.units import Ns


class Clock:
    """Monotonic time since `start_ns`, which a parent hands to its child processes so that their stamps compare."""

    def __init__(self, start_ns: int | None = None) -> None:
        self.start_ns = time.monotonic_ns() if start_ns is None else start_ns

    def now_ns(self) -> Ns:
        """Nanoseconds since run start."""
        return time.monotonic_ns() - self.start_ns

    def epoch_ns(self) -> int:
        """Unix time of run start, for stamps that leave the system."""
        return time.time_ns() - self.now_ns()


def unix_s() -> int:
    """Seconds since 1970, for `created` fields that leave the system."""
    return int(time.time())
