"""Prompts as runs of one token value each: equal exactly as far as their runs are, and cheap to make and to hash.

Two runs of new text get different values (but for chance, 2**-32 per pair), so only what is meant to be shared is.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Final

import msgspec

from headway.core.blockhash import packed_block_hashes
from headway.core.draw import draw_u64, draw_unit
from headway.workload.offered import ANSWER_TOKEN

VALUES: Final = 1 << 32  # block hashes take tokens of 32 bits
HEADS_KEPT: Final = 256  # beginnings that are kept made and hashed; another one is made again


class Prompt(msgspec.Struct, frozen=True):
    """Tokens and the hashes of their full blocks; no hashes where blocks have no size."""

    tokens: tuple[int, ...] = ()
    hashes: tuple[bytes, ...] = ()


class Run(msgspec.Struct, frozen=True):
    """A token value and how often it comes."""

    value: int
    count: int


def run_value(seed: int, key: str) -> int:
    """The token value of a run of new text; never that of an answer."""
    value = draw_u64(seed, key, 0, 0) % VALUES
    return value if value != ANSWER_TOKEN else ANSWER_TOKEN + 1


def extend(prompt: Prompt, runs: Sequence[Run], root: bytes, block_tokens: int) -> Prompt:
    """Append runs; only blocks that they fill are hashed. Packing runs costs a tenth of packing their tokens."""
    new: list[int] = []
    for run in runs:
        new += [run.value] * run.count
    tokens = prompt.tokens + tuple(new)
    if not block_tokens:
        return Prompt(tokens)
    done = len(prompt.hashes)
    parent = prompt.hashes[-1] if done else root
    rest = array("I", prompt.tokens[done * block_tokens :]).tobytes()
    packed = rest + b"".join([array("I", (run.value,)).tobytes() * run.count for run in runs])
    return Prompt(tokens, prompt.hashes + packed_block_hashes(parent, packed, block_tokens))


def runs_of(tokens: Iterable[int]) -> list[Run]:
    """Tokens as runs."""
    return [Run(value, sum(1 for _ in group)) for value, group in groupby(tokens)]


class Heads:
    """The beginnings that prompts of one workload share, by family."""

    def __init__(self, seed: int, name: str, families: int, skew: float) -> None:
        """`skew`: exponent of Zipf's law over the families."""
        self._seed, self._name, self._families = seed, name, families
        weights = (1.0 / rank**skew for rank in range(1, families + 1)) if skew else ()
        self._sums = list(accumulate(weights))
        self._made = lru_cache(maxsize=HEADS_KEPT)(self._make)

    def family(self, key: str) -> int:
        """Draw the family of a prompt."""
        u = draw_unit(self._seed, f"{self._name}/family/{key}", 0, 0)
        if not self._sums:
            return math.floor(u * self._families)
        return min(bisect_right(self._sums, u * self._sums[-1]), self._families - 1)

    def head(self, family: int, tokens: int, root: bytes, block_tokens: int) -> Prompt:
        """The first tokens of a family's prompts."""
        return self._made(family, tokens, root, block_tokens)

    def _make(self, family: int, tokens: int, root: bytes, block_tokens: int) -> Prompt:
        value = run_value(self._seed, f"{self._name}/head/{family}")
        return extend(Prompt(), (Run(value, tokens),), root, block_tokens)
