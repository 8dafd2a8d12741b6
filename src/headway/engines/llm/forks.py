"""Branches of a captured region: work on a second stream, from an explicit fork to an explicit join (SPEC E1)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.core.errors import InvariantError

Join = Callable[[], None]
Fork = Callable[[Callable[[], None]], Join]


def in_line(work: Callable[[], None]) -> Join:
    """A `Fork` that does not: the work is done here, and there is nothing to wait for."""
    work()
    return _nothing


class Forks:
    """Keeps account of the branches of the region that is being captured."""

    def __init__(self, split: Fork) -> None:
        """`split` runs work on a stream that waits for the capturing one; the call it returns lets that one wait for
        the branch. Where the work raises, `split` joins and raises again.
        """
        self._split = split
        self._open: dict[int, Join] = {}
        self._number = 0
        self._is_within = self._is_aside = False

    def fork(self, work: Callable[[], None]) -> Join:
        """Within a region: `work` beside what follows, until the returned call. Elsewhere `in_line`.

        What the work reads must live until the join. Raises InvariantError in a branch.
        """
        if not self._is_within:
            return in_line(work)
        if self._is_aside:
            raise InvariantError("a branch of a capture forks again; fork from the capturing stream only")
        self._is_aside = True
        try:
            back = self._split(work)
        finally:
            self._is_aside = False
        self._number += 1
        number = self._number
        self._open[number] = back

        def join() -> None:
            if self._open.pop(number, None) is not None:
                back()

        return join

    @contextmanager
    def region(self) -> Iterator[None]:
        """What is captured. Branches that it leaves open are joined, so that every stream comes back, and then refused.

        Raises InvariantError for them, where nothing else was raised.
        """
        self._is_within = True
        try:
            yield
        finally:
            self._is_within = False
            left = list(self._open.values())
            self._open.clear()
            for back in left:
                back()
        if left:
            raise InvariantError(
                f"a capture ends with {len(left)} branches that were forked and not joined: a replay would go on before"
                " their work is done; call what fork returned before the capture ends"
            )


def _nothing() -> None:
    """The work was done in line."""
