"""What a start waits for: one line that is redrawn on a terminal, a line now and then in a log, until it is over."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from headway import __version__

LOG_EVERY_S: Final = 10.0  # without any other line
TERMINAL_EVERY_S: Final = 1.0
_CLEAR: Final = "\r\x1b[K"


class Starting:
    """Who does what, since when. Every thread may call it; a thread of its own shows it, since imports block."""

    def __init__(
        self,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[str], None] | None = None,
    ) -> None:
        """`tell` prints a line. `draw` writes on a terminal without ending the line; None: there is none."""
        self._tell, self._clock, self._draw = tell, clock, draw
        self._doing: dict[str, tuple[str, float]] = {}
        self._names: Mapping[str, str] = {}
        self._ready: set[str] = set()
        self._said_s = clock()
        self._is_drawn = self._is_watched = False
        self._over = threading.Event()

    def does(self, who: str, what: str) -> None:
        """It does this from now on."""
        self._doing[who] = (what, self._clock())

    def loading(self, models: Mapping[str, str]) -> None:
        """All that was to be done here is done; now these replicas load, each its model."""
        self._names = models
        self._doing = {node: ("its process starts", self._clock()) for node in models}

    def heard(self, who: str, what: str) -> None:
        """A line of one of them. What is drawn makes way for it."""
        if who in self._names:
            if what.startswith("ready"):
                self._ready.add(who)
                self._doing.pop(who, None)
            elif what.startswith("lost"):
                self._ready.discard(who)
            if who not in self._ready:
                self.does(who, what)
        self.make_way()

    def make_way(self) -> None:
        """Another line is about to be printed."""
        self._said_s = self._clock()
        if self._is_drawn and self._draw is not None:
            self._is_drawn = False
            self._draw(_CLEAR)

    def line(self) -> str:
        """Who does what, for how long."""
        now_s = self._clock()
        named = [(f"{self._names[who]} on {who}" if who in self._names else who, *doing) for who, doing in self._now()]
        return "; ".join(f"{who}: {what}, for {now_s - since_s:.0f} s" for who, what, since_s in named)

    def _now(self) -> list[tuple[str, tuple[str, float]]]:
        return list(self._doing.items())  # a copy: other threads change it

    def tick(self) -> None:
        """Show it where it is due."""
        if not self._doing or self._over.is_set():
            return
        if self._draw is not None:
            self._is_drawn = True
            self._draw(_CLEAR + self.line()[: shutil.get_terminal_size().columns - 1])
        elif self._clock() - self._said_s >= LOG_EVERY_S:
            self._said_s = self._clock()
            self._tell(self.line())

    @contextmanager
    def shown(self, *, is_at_once: bool) -> Iterator[None]:
        """Show it until `over`, and no longer than this lasts. At once: it is known how lines are to look."""
        if is_at_once:
            self._tell(f"starting Headway {__version__}")
            self.does("serve", "importing what it needs")
            self.watch(self._tell)
        try:
            yield
        finally:
            self.over()

    def watch(self, tell: Callable[[str], None]) -> None:
        """Show it from now on, by these lines."""
        self._tell = tell
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._run, name="starting", daemon=True).start()

    def over(self) -> None:
        """It has started, or will not."""
        self._over.set()
        self.make_way()

    def _run(self) -> None:
        while not self._over.wait(TERMINAL_EVERY_S):
            self.tick()


def terminal() -> Callable[[str], None] | None:
    """What draws on stderr; None where that is a file or a pipe."""
    if not sys.stderr.isatty():
        return None

    def draw(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    return draw
