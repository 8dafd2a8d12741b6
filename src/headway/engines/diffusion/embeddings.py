"""Prompt embeddings that are kept: by what was said, by whom it was encoded and how, bounded in bytes (SPEC G2)."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

from headway.engines.diffusion.families.protocol import Embedding


def embedding_bytes(embedding: Embedding) -> int:
    """Memory of one embedding."""
    return sum(tensor.numel() * tensor.element_size() for tensor in embedding.values())


class EmbeddingCache:
    """Least recently used embeddings go first. `encoder`: hash of the text encoders' weights and parameters, so that
    other weights under the same name never answer (llama.cpp#26207, vllm#42125)."""

    def __init__(self, encoder: bytes, bytes_max: int) -> None:
        self._encoder, self._bytes_max = encoder, bytes_max
        self._kept: OrderedDict[bytes, Embedding] = OrderedDict()
        self.bytes = self.hits = self.misses = 0

    def key(self, prompt: str) -> bytes:
        """Content hash of what decides an embedding."""
        return hashlib.sha256(self._encoder + prompt.encode()).digest()

    def get(self, prompt: str, encode: Callable[[str], Embedding]) -> Embedding:
        """The embedding of a prompt, encoded where it is not kept."""
        key = self.key(prompt)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            self.hits += 1
            return found
        self.misses += 1
        made = encode(prompt)
        size = embedding_bytes(made)
        if size <= self._bytes_max:
            self._kept[key] = made
            self.bytes += size
            while self.bytes > self._bytes_max:
                _key, oldest = self._kept.popitem(last=False)
                self.bytes -= embedding_bytes(oldest)
        return made

    def __len__(self) -> int:
        return len(self._kept)
