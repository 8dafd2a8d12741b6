"""How long prompts and outputs are: distributions over tokens as keyed draws."""

import math
from statistics import NormalDist
from typing import Literal

import msgspec

from headway.core.draw import draw_unit
from headway.core.errors import ConfigError


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many tokens, or how many of something else."""

    kind: Literal["fixed", "geometric", "lognormal"] = "lognormal"  # shape
    mean: float = 128.0  # tokens, before `longest` cuts
    cv: float = 1.0  # deviation over mean, of `lognormal` only
    longest: int = 4096  # what is drawn longer is this long

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= self.longest or self.cv < 0:
            raise ConfigError(f"lengths need 1 <= mean <= longest and cv >= 0, got {self}")

    def draw(self, seed: int, what: str, place: int) -> int:
        """Return the length at a place of a workload, at least 1."""
        u = draw_unit(seed, what, 0, place)
        if self.kind == "fixed":
            value = self.mean
        elif self.kind == "geometric":
            value = 1.0 if self.mean == 1 else 1 + math.floor(math.log(1.0 - u) / math.log(1.0 - 1.0 / self.mean))
        else:
            sigma = math.sqrt(math.log(1.0 + self.cv**2))
            normal = NormalDist().inv_cdf(min(max(u, 1e-12), 1 - 1e-12))
            value = math.exp(math.log(self.mean) - sigma**2 / 2 + sigma * normal)
        return min(self.longest, max(1, round(value)))
