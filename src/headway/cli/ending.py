"""How a command ends before it is done: SIGTERM, as job systems send it, leaves what Ctrl-C leaves."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT_INTERRUPTED: Final = 130  # as a shell says it of SIGINT
EXIT_TERMINATED: Final = 143  # and of SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came. What handles Ctrl-C handles it too."""


def exit_code(why: KeyboardInterrupt | int) -> int:
    """Return how a command ends that was interrupted, by the exception or the number of the signal."""
    is_terminated = isinstance(why, Terminated) or why == signal.SIGTERM
    return EXIT_TERMINATED if is_terminated else EXIT_INTERRUPTED


def _raise(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # the next one ends it at once
    raise Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated in here, as SIGINT raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
