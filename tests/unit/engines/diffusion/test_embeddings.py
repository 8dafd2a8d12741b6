import torch

from headway.engines.diffusion.embeddings import EmbeddingCache
from headway.engines.diffusion.families.protocol import Embedding


def embedded(prompt: str) -> Embedding:
    """1 KiB of it."""
    return {"prompt": torch.full((1, 16, 16), float(len(prompt)))}


def test_the_least_recently_used_goes_first() -> None:
    cache = EmbeddingCache(b"weights", 2048)
    for prompt in ("a", "bb", "a", "ccc", "a", "bb"):
        cache.get(prompt, embedded)
    assert (cache.hits, cache.misses, cache.bytes, len(cache)) == (2, 4, 2048, 2)


def test_what_is_larger_than_the_bound_is_not_kept() -> None:
    cache = EmbeddingCache(b"weights", 1000)
    assert cache.get("a", embedded)["prompt"][0, 0, 0] == 1.0
    assert (cache.bytes, len(cache)) == (0, 0)


def test_a_key_is_of_the_text_and_of_who_encodes_it() -> None:
    one, other = EmbeddingCache(b"weights", 1), EmbeddingCache(b"others", 1)
    assert one.key("a") == EmbeddingCache(b"weights", 9).key("a")
    assert len({one.key("a"), one.key("b"), other.key("a"), other.key("b")}) == 4
