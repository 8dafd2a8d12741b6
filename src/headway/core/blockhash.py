"""Chained block hashes of the prefix index (SPEC B2).

The key of a block covers everything that decides its KV: model, LoRA (id and version), tenant salt, media, dtype and
every token before and in it. Fields are tagged and length-prefixed, so no field can pose as another
(vllm#44701, LMCache#4086). 128 bits of BLAKE2b; on a hit the pool still compares the tokens.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

DIGEST_BYTES: Final = 16
KNOWN_TOKENS_MIN: Final = 64  # tokens that an entry of prefix knowledge stands for, at least


def cache_root(*, model: str, lora: str = "", salt: str = "", media: Sequence[str] = (), dtype: str = "") -> bytes:
    """Return the root of the chain. Every field changes it, an empty one included."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    fields: list[tuple[str, str]] = [("model", model), ("lora", lora), ("salt", salt), ("dtype", dtype)]
    fields += [("media", item) for item in media]
    for tag, value in fields:
        raw = value.encode()
        digest.update(f"{tag}:{len(raw)}:".encode())
        digest.update(raw)
    return digest.digest()


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of one full block after `parent`."""
    return hashlib.blake2b(parent + array("I", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def block_hashes(root: bytes, tokens: Sequence[int], block_size: int) -> tuple[bytes, ...]:
    """Return one hash per full block of `tokens`. O(tokens)."""
    return packed_block_hashes(root, array("I", tokens).tobytes(), block_size)


def packed_block_hashes(root: bytes, packed: bytes, block_size: int) -> tuple[bytes, ...]:
    """Return the same for tokens that are packed already, as the bytes of an array of C unsigned ints."""
    width = array("I").itemsize * block_size
    blake2b = hashlib.blake2b
    out: list[bytes] = []
    parent = root
    for start in range(0, len(packed) - width + 1, width):
        parent = blake2b(parent + packed[start : start + width], digest_size=DIGEST_BYTES).digest()
        out.append(parent)
    return tuple(out)


def known_stride(block_tokens: int) -> int:
    """Of how many blocks in a row routers and engines know one: entries below 64 tokens cost gigabytes (GAIE#2878)."""
    return -(-KNOWN_TOKENS_MIN // block_tokens)
