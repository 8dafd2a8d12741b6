"""Randomness as a keyed draw: the same key gives the same number in every process, order and replay."""

import hashlib


def draw_u64(seed: int, request_id: str, attempt: int, k: int) -> int:
    """Return the k-th 64-bit draw of one attempt of one request."""
    key = f"{seed}\x1f{request_id}\x1f{attempt}\x1f{k}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def draw_below(seed: int, request_id: str, attempt: int, k: int, bound: int) -> int:
    """Return a draw in [0, bound); the bias is below bound / 2**64. Raises ValueError when bound < 1."""
    if bound < 1:
        raise ValueError(f"bound {bound} is below 1")
    return draw_u64(seed, request_id, attempt, k) * bound >> 64


def draw_unit(seed: int, request_id: str, attempt: int, k: int) -> float:
    """Return a draw in [0, 1) with 53 bits."""
    return (draw_u64(seed, request_id, attempt, k) >> 11) / (1 << 53)
