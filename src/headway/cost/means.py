"""A recursive mean with forgetting: the least squares of one constant."""


class Mean:
    """`value` is `start` until something was observed."""

    def __init__(self, start: float = 1.0) -> None:
        self.value, self.count = start, 0

    def observe(self, value: float, memory: int) -> None:
        """Fold in one; after `memory` of them one weighs a third."""
        self.count = min(self.count + 1, memory)
        self.value += (value - self.value) / self.count
