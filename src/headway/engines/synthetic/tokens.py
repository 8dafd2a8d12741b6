"""Fake tokens: a hash of the whole history and the position, so that equivalence can be tested exactly (SPEC B7).

The running hash lives in the fake KV: slot p holds the hash of tokens 0..p, made from slot p - 1 and token p. A wrong
block table, a wrong prefix hit or a lost copy therefore changes every later token.
"""

from collections.abc import Sequence
from typing import Final

from headway.core.request import FinishReason, SamplingParams

MASK: Final = (1 << 64) - 1
EMPTY: Final = 0x9E3779B97F4A7C15  # hash of no token


def mix(history: int, token: int) -> int:
    """Return the hash of `history` and one more token (the finaliser of SplitMix64)."""
    x = (history + (token + 1) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def sample(history: int, position: int, sampling: SamplingParams, vocab_size: int) -> int:
    """Return the token at `position` after `history`. Greedy ignores the seed; a temperature does not."""
    salt = 0 if sampling.temperature == 0 else sampling.seed + 1
    return mix(history ^ salt, position) % vocab_size


def is_stop(token: int, count: int, sampling: SamplingParams, eos: Sequence[int]) -> bool:
    """True when `token`, the `count`-th output, ends the sequence."""
    if count <= sampling.min_tokens:
        return False
    return token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos)


def reference(
    prompt: Sequence[int], sampling: SamplingParams, vocab_size: int, eos: Sequence[int] = ()
) -> tuple[list[int], FinishReason]:
    """Return what a request alone produces: no batch, no chunks, no cache. O(tokens)."""
    history = EMPTY
    for token in prompt:
        history = mix(history, token)
    outputs: list[int] = []
    while len(outputs) < sampling.max_tokens:
        token = sample(history, len(prompt) + len(outputs), sampling, vocab_size)
        outputs.append(token)
        if is_stop(token, len(outputs), sampling, eos):
            return outputs, FinishReason.STOP
        history = mix(history, token)
    return outputs, FinishReason.LENGTH
