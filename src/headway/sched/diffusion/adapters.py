"""Which adapters are in the weights of a replica that merges them, and what it takes to have others there (SPEC G3)."""

from headway.core.request import LoraUse


def rewrites(inside: tuple[LoraUse, ...], wanted: tuple[LoraUse, ...]) -> int:
    """Of all weights, from one set of adapters to another: out by the pristine copy, and in."""
    return 0 if inside == wanted else bool(inside) + bool(wanted)


class Merged:
    """`merges`: adapters are merged while they are used. Rewrites of all weights add up until a plan takes them."""

    def __init__(self, *, merges: bool) -> None:
        self._merges = merges
        self._inside: tuple[LoraUse, ...] = ()
        self._rewrites = 0

    def want(self, loras: tuple[LoraUse, ...]) -> None:
        """The next batch needs these and no others."""
        if self._merges and loras != self._inside:
            self._rewrites, self._inside = rewrites(self._inside, loras), loras

    def take(self) -> int:
        """Rewrites that the next plan begins with."""
        rewrites, self._rewrites = self._rewrites, 0
        return rewrites

    def lost(self) -> None:
        """The engine began anew, with its own weights."""
        self._inside = ()
