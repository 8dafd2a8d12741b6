"""What a slice gives to the law suite."""

from collections.abc import Hashable
from typing import Protocol


class Scene(Protocol):
    """A policy in a random situation. `scene(name, rng, shuffle)` of a law module makes one; `shuffle` only changes the
    order in which the policy met its candidates."""

    def query(self) -> object:
        """Ask the policy everything it can be asked; ids, not objects."""
        ...

    def allowed(self, answer: object) -> bool:
        """The answer names candidates only."""
        ...

    def state(self) -> Hashable:
        """Everything that the policy remembers."""
        ...

    def conserves(self) -> None:
        """Follow the policy until nothing is left; raise AssertionError if anything was lost or came twice."""
        ...
