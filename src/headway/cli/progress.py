"""How far a simulation is, on stderr; and Ctrl-C or SIGTERM, which end it between two slices: its result is whole."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from headway.bench.simulated import Progress, Watch
from headway.cli.pace import Paced

LINE_EVERY_S: Final = 1.0  # of wall time, where a line is asked for and no terminal shows a bar


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
def watching(
    is_shown: bool | None, interrupt: Interrupt, clock: Callable[[], float] = time.monotonic
) -> Iterator[Watch]:
    """Return what a run asks whether to go on. `is_shown` None: a bar on a terminal, a line now and then elsewhere."""
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    is_terminal = sys.stderr.isatty()
    try:
        if is_terminal and is_shown is not False:
            with _bar(interrupt) as watch:
                yield watch
        elif is_shown is not False:
            yield _lines(interrupt, Paced(LINE_EVERY_S, clock, is_first=True) if is_shown else Paced(clock=clock))
        else:
            yield lambda _: not interrupt.is_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def line(at: Progress) -> str:
    """Return what is shown of a run: virtual time of how much, wall time, and requests done of how many."""
    faster = at.virtual_s / at.wall_s if at.wall_s > 0 else 0.0
    until = "" if at.until_s is None else f" of {at.until_s:g} s"
    times = f"{at.virtual_s:.1f} s{until} simulated in {at.wall_s:.1f} s ({faster:.3g} x)"
    if at.requests is None:
        return f"{times}, {at.done} of {at.arrived} requests done"
    return f"{times}, {at.done} of {at.requests} requests done, {at.arrived - at.done} under way"


def _lines(interrupt: Interrupt, paced: Paced) -> Watch:
    def watch(at: Progress) -> bool:
        paced.say(lambda: line(at))
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
