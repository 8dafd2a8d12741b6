"""Preparations that failed, the latest of each shape and size of pass, for operators: whoever asked has no open request
that could be told (SPEC F8)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headway.core.decisions import Decision
from headway.core.reports import PreparationFailure
from headway.core.request import DenoiseShape
from headway.core.units import Ns
from headway.sched.diffusion.warming import Key, size_words

FAILURES_MAX: Final = 16  # the latest are kept
ERROR_CHARS_MAX: Final = 300
NO_ROOM: Final = "even one has no room in the memory of its replica"


class Unprepared:
    """Told a failure as the engine's state shows it, then its reason, which the machine does not know."""

    def __init__(self) -> None:
        self._known: dict[Key, PreparationFailure] = {}
        self._open: tuple[Key, str] | None = None  # whose reason is still to come, and what to add to it
        self._new: list[tuple[Key, str]] = []  # whose decisions are due

    def failed(self, key: Key, others: Sequence[Key] = ()) -> None:
        """One failed. `others` of its size were asked for and are given up with it."""
        sizes = ", ".join(str(pictures) for shape, pictures in others if (shape, pictures) != key)
        self._open = key, f"; not run either: by {sizes}" if sizes else ""

    def because(self, why: str) -> None:
        """The reason of what just failed; nothing where nothing did."""
        if self._open is not None:
            (key, more), self._open = self._open, None
            words = why if len(why) <= ERROR_CHARS_MAX else f"{why[: ERROR_CHARS_MAX - 3]}..."
            self._new.append((key, words + more))

    def has_no_room(self, key: Key) -> None:
        """It was asked for and can never run here."""
        self._new.append((key, NO_ROOM))

    def over(self, key: Key) -> None:
        """It has run."""
        self._known.pop(key, None)

    def take_decisions(self, at_ns: Ns) -> Iterator[Decision]:
        """Of what failed since the last call; it is told from now on."""
        new, self._new = self._new, []
        for key, error in new:
            shape, pictures = key
            self._known.pop(key, None)
            self._known[key] = PreparationFailure(shape.height, shape.width, shape.frames, pictures, error, at_ns)
            if len(self._known) > FAILURES_MAX:
                del self._known[next(iter(self._known))]
            yield Decision("batch", at_ns, "prepare", f"{size_words(*key)} failed", error)

    def told(self, is_warm: Callable[[DenoiseShape, int], bool]) -> tuple[PreparationFailure, ...]:
        """For a report, the latest last. A request may have run the shape since."""
        return tuple(failure for key, failure in self._known.items() if not is_warm(*key))
