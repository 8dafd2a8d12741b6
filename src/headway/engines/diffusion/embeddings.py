"""Embeddings that are kept: by what was said or shown, by whom it was encoded and how, bounded in bytes (SPEC G2)."""

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

    def key(self, prompt: str, in_company: bool = False) -> bytes:
        """Content hash of what decides an embedding. In company: others were encoded with it, or may have been."""
        return hashlib.sha256(self._encoder + bytes([in_company]) + prompt.encode()).digest()

    def has(self, prompt: str, in_company: bool) -> bool:
        """True where it need not be encoded."""
        return self.key(prompt, in_company) in self._kept

    def get(self, prompt: str, encode: Callable[[str], Embedding], in_company: bool = False) -> Embedding:
        """The embedding of a prompt, encoded where it is not kept."""
        found = self.find(self.key(prompt, in_company))
        if found is not None:
            self.hits += 1
            return found
        made = encode(prompt)
        self.put(prompt, made, in_company)
        return made

    def put(self, prompt: str, made: Embedding, in_company: bool) -> None:
        """Keep what had to be encoded."""
        self.misses += 1
        self.keep(self.key(prompt, in_company), made)

    def find(self, key: bytes) -> Embedding | None:
        """What is kept under a key, used just now; None: nothing is."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: bytes, made: Embedding) -> None:
        """Keep it under a key that has nothing yet, unless it is larger than all room."""
        size = embedding_bytes(made)
        if size <= self._bytes_max:
            self._kept[key] = made
            self.bytes += size
            while self.bytes > self._bytes_max:
                _key, oldest = self._kept.popitem(last=False)
                self.bytes -= embedding_bytes(oldest)

    def __len__(self) -> int:
        return len(self._kept)
