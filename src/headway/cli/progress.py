"""How far a simulation is, on stderr; and Ctrl-C or SIGTERM, which end it between two slices: its result is whole."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from headway.bench.simulated import Progress, Watch

LINE_EVERY_S: Final = 1.0  # of wall time, where no terminal shows a bar


class Interrupt:
    """Remembers the first signal; the second one of its kind ends the process as if nobody listened."""

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def is_asked(self) -> bool:
        """True once a signal came."""
        return self.number is not None

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.number = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def watching(is_shown: bool | None, interrupt: Interrupt) -> Iterator[Watch]:
    """Return what a run asks whether to go on. `is_shown` None: a bar on a terminal, nothing elsewhere."""
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    is_terminal = sys.stderr.isatty()
    try:
        if is_terminal and is_shown is not False:
            with _bar(interrupt) as watch:
                yield watch
        elif is_shown:
            yield _lines(interrupt)
        else:
            yield lambda _: not interrupt.is_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def line(at: Progress) -> str:
    """Return what is shown of a run: virtual and wall time, and how many requests are done."""
    faster = at.virtual_s / at.wall_s if at.wall_s > 0 else 0.0
    times = f"{at.virtual_s:.1f} s simulated in {at.wall_s:.1f} s ({faster:.0f} x)"
    return f"{times}, {at.done} of {at.arrived} requests done"


def _lines(interrupt: Interrupt) -> Watch:
    due_s = 0.0

    def watch(at: Progress) -> bool:
        nonlocal due_s
        if at.wall_s >= due_s:
            due_s = at.wall_s + LINE_EVERY_S
            print(line(at), file=sys.stderr, flush=True)
        return not interrupt.is_asked

    return watch


@contextmanager
def _bar(interrupt: Interrupt) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def watch(at: Progress) -> bool:
            bar.update(task, description=line(at), total=at.until_s, completed=at.virtual_s)
            return not interrupt.is_asked

        yield watch
