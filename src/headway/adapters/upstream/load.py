"""What is known of an upstream's load: its last scrape, carried on by what this gateway has sent and seen end since.

A dispatch takes a millisecond, a scrape comes every second: without the own counts a policy would send everything to
whoever looked idle at the last scrape (llm-d-router#2066). Metrics that stand still or make no sense count as none.
"""

from typing import Final

import msgspec

from headway.adapters.upstream.scrape import Scraped
from headway.core.ids import RequestId
from headway.core.units import Ns

FROZEN_SCRAPES: Final = 3  # in a row without any progress, while answers came
FROZEN_ANSWERS: Final = 2
RATIO_MIN, RATIO_MAX = 0.25, 64.0  # bytes per token outside of it: the prompt was no text
FORGET_TOKENS: Final = 2_000_000


class Figures(msgspec.Struct, frozen=True):
    """The load now. `at_ns`: as of when the upstream's own part of it was told."""

    running: int
    waiting: int
    is_scraped: bool
    at_ns: Ns


class UpstreamLoad:
    """One upstream. Requests are numbered by their front; a scrape covers what was sent before it was asked for."""

    def __init__(self) -> None:
        self.scraped: Scraped | None = None  # None: only own counts
        self.number = 0  # of the last Submit
        self.answers = 0  # that were whole
        self._open: dict[RequestId, int] = {}
        self._at_ns: Ns = 0
        self._covered = 0  # number up to which the scrape counts
        self._total = 0  # requests there at the scrape
        self._ended = 0  # of those, since
        self._slots: int | None = None  # that ran when some had to wait
        self._unmoved, self._answers_then = 0, 0

    @property
    def in_flight(self) -> int:
        """Own requests that have not ended."""
        return len(self._open)

    def submitted(self, request: RequestId, number: int) -> None:
        """A request is on its way."""
        self.number = max(self.number, number)
        self._open[request] = number

    def ended(self, request: RequestId, *, is_answered: bool) -> None:
        """It is over there, in whatever way."""
        number = self._open.pop(request, None)
        if number is not None:
            self._ended += number <= self._covered
            self.answers += is_answered

    def heard(self, scraped: Scraped, covered: int, at_ns: Ns) -> bool:
        """Take a scrape; False when it is not believed: its counters stand still while answers come."""
        before = self.scraped
        if before is not None and scraped.progress == before.progress and any(p is not None for p in scraped.progress):
            self._unmoved += 1
        else:
            self._unmoved, self._answers_then = 0, self.answers
        if self.is_frozen:
            self.scraped = scraped  # its progress is compared on; its load is not used
            return False
        self.scraped, self._at_ns, self._covered, self._ended = scraped, at_ns, covered, 0
        running, waiting = scraped.running or 0, scraped.waiting or 0
        own = sum(number <= covered for number in self._open.values())
        self._total = max(running + waiting, own)
        if waiting > 0:
            self._slots = running
        elif self._slots is not None and running > self._slots:
            self._slots = None
        return True

    @property
    def is_frozen(self) -> bool:
        """The metrics do not move although they should."""
        return self._unmoved >= FROZEN_SCRAPES and self.answers - self._answers_then >= FROZEN_ANSWERS

    def lost(self) -> None:
        """The scrapes fail: what was told last is too old to use."""
        self.scraped, self._slots, self._unmoved = None, None, 0

    def figures(self, at_ns: Ns) -> Figures:
        """The load now."""
        if self.scraped is None or self.is_frozen:
            return Figures(len(self._open), 0, False, at_ns)
        covered = sum(number <= self._covered for number in self._open.values())
        total = max(self._total - self._ended, covered) + len(self._open) - covered
        waiting = 0 if self._slots is None else max(0, total - self._slots)
        return Figures(total - waiting, waiting, True, self._at_ns)


class BytesPerToken:
    """Bytes of a conversation per prompt token, learned from what answers say they used."""

    def __init__(self, initial: float) -> None:
        self._bytes, self._tokens = initial, 1.0

    @property
    def value(self) -> float:
        """As it is believed now."""
        return self._bytes / self._tokens

    def observe(self, estimated_tokens: int, used: float, prompt_tokens: int) -> None:
        """A prompt that was estimated with `used` bytes per token had so many."""
        if prompt_tokens <= 0 or estimated_tokens <= 0:
            return
        size = estimated_tokens * used
        if RATIO_MIN <= size / prompt_tokens <= RATIO_MAX:
            self._bytes, self._tokens = self._bytes + size, self._tokens + prompt_tokens
            if self._tokens > FORGET_TOKENS:
                self._bytes, self._tokens = self._bytes / 2, self._tokens / 2
