"""How far a simulation is, on stderr; and Ctrl-C, which ends it between two slices so that its result is whole."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from headway.bench.simulated import Progress, Watch

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

EXIT_INTERRUPTED: Final = 130  # as a shell says it of SIGINT


class Interrupt:
    """Remembers the first SIGINT; the second one is Python's own again."""

    def __init__(self) -> None:
        self.is_asked = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.is_asked = True
        signal.signal(number, signal.default_int_handler)


@contextmanager
def watching(is_shown: bool) -> Iterator[Watch]:
    """Return what a run asks whether to go on; shows a line while it runs."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        if not is_shown:
            yield lambda _: not interrupt.is_asked
            return
        with _bar() as bar:
            task = bar.add_task("", total=None)

            def watch(at: Progress) -> bool:
                bar.update(task, description=line(at), total=at.until_s, completed=at.virtual_s)
                return not interrupt.is_asked

            yield watch
    finally:
        signal.signal(signal.SIGINT, before)


def line(at: Progress) -> str:
    """Return what is shown of a run: virtual and wall time, and how many requests are done."""
    faster = at.virtual_s / at.wall_s if at.wall_s > 0 else 0.0
    return (
        f"{at.virtual_s:.1f} s simulated in {at.wall_s:.1f} s ({faster:.0f} x), {at.done} of {at.arrived} requests done"
    )


def _bar() -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"), BarColumn(), console=Console(stderr=True, force_terminal=True), transient=True
    )
