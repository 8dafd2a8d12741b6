"""Steps whose decoding rows all sample the same token: one number counts them, and no row is touched.

Only engines without content say so (`StepDone.beat`): a simulation then costs what changes, not what is generated. A
row follows the beats of its replica from the step after it joined until it leaves the batch; whoever reads its tokens
or their time gets them as if each had been delivered. Worker and front keep such a count for themselves.
"""

from headway.core.units import Ns


class Beats:
    """The count of one replica, as one node knows it."""

    __slots__ = ("at_ns", "count", "step", "token")

    def __init__(self) -> None:
        self.count = self.step = 0
        self.at_ns: Ns = 0
        self.token = 0

    def tick(self, token: int, step: int, at_ns: Ns) -> None:
        """Every row that follows has one more token."""
        self.count += 1
        self.token, self.step, self.at_ns = token, step, at_ns

    def ticks(self, count: int, token: int, step: int, at_ns: Ns) -> None:
        """The same `count` times; step and time are the last one's."""
        self.count += count
        self.token, self.step, self.at_ns = token, step, at_ns


class Row:
    """Tokens of one request. What it reads while it follows is brought up to date first."""

    def __init__(self) -> None:
        self.beats: Beats | None = None
        self.told: list[int] = []  # by name, and what was caught up
        self.told_ns: Ns | None = None
        self.told_step = 0
        self._heard = 0  # beats that are folded in

    def follow(self, beats: Beats) -> None:
        """From the next beat on it gets a token with each."""
        self.beats, self._heard = beats, beats.count

    def part(self) -> None:
        """It gets no more of them."""
        if self.beats is not None:
            self._catch_up()
            self.beats = None

    @property
    def tokens(self) -> list[int]:
        """Its tokens so far."""
        if self.beats is not None:
            self._catch_up()
        return self.told

    @property
    def last_token_ns(self) -> Ns | None:
        """When the last of them came, or the answer of an upstream."""
        if self.beats is not None:
            self._catch_up()
        return self.told_ns

    @property
    def token_step(self) -> int:
        """The step that sampled the last of them."""
        if self.beats is not None:
            self._catch_up()
        return self.told_step

    def _catch_up(self) -> None:
        beats = self.beats
        assert beats is not None
        missing = beats.count - self._heard
        if missing:
            self._heard = beats.count
            self.told.extend([beats.token] * missing)
            self.told_step, self.told_ns = beats.step, beats.at_ns
