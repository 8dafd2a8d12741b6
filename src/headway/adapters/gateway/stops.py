"""Finds stop strings in text that arrives in pieces, and never lets one out."""

from collections.abc import Sequence


class StopCutter:
    """Emits text up to the first stop string.

    The stop that is complete first wins; of several that end at the same character, the longest. So the cut does not
    depend on how the text was split. Held back is only the longest end of the text that may begin a stop.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the stop string itself belongs to the text."""
        self._stops = tuple(stops)
        self._inner = tuple(frozenset(stop[:-1]) for stop in stops)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that is now certain. After a stop was found nothing more comes."""
        if self.found is not None:
            return ""
        held = self._held + text
        match = self._first(held)
        if match is not None:
            end, stop = match
            self._held, self.found = "", stop
            return held[:end] if self._include else held[: end - len(stop)]
        keep = self._possible(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, str] | None = None
        for stop in self._stops:
            at = text.find(stop)
            if at < 0:
                continue
            end = at + len(stop)
            if best is None or end < best[0] or (end == best[0] and len(stop) > len(best[1])):
                best = (end, stop)
        return best

    def _possible(self, text: str) -> int:
        longest = 0
        for stop, inner in zip(self._stops, self._inner, strict=True):
            if not text or text[-1] not in inner:
                continue  # most pieces end with a character that no stop has before its last
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
