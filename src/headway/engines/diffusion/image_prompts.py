"""Image prompts of requests: pictures become embeddings once, which rows share as long as they live (SPEC F1, G2).

What `FluxPipeline` computes of `ip_adapter_image`: the embedding of the picture goes with the words, that of a black
one with the words that are guided away from.
"""

import hashlib
from collections.abc import Callable
from weakref import WeakValueDictionary

import numpy as np
import torch

from headway.core.artifacts import BAD_INPUT
from headway.core.errors import RequestError
from headway.core.request import DiffusionRequest
from headway.engines.diffusion.embeddings import EmbeddingCache
from headway.engines.diffusion.families.protocol import Embedding, Family, Image, ImageAdapter, TakesImagePrompts
from headway.engines.diffusion.pictures import open_picture
from headway.engines.diffusion.rows import Row

IMAGE = "image"  # its name among the tensors of an embedding


def image_scale(row: Row) -> float | None:
    """How much the image prompt of a row counts; None: it has none."""
    return row.request.image_prompt_scale if IMAGE in row.positive else None


class ImagePrompts:
    """Embeddings of pictures. `encoder`: hash of the image encoder's weights and parameters.

    They are kept in the cache of prompts, by the hash of what the client sent. One that has no room there is encoded
    once all the same for rows that are there together.
    """

    def __init__(self, family: Family, encoder: bytes, cache: EmbeddingCache) -> None:
        self._adapter = family.image_adapter if isinstance(family, TakesImagePrompts) else None
        self._encoder, self._cache = encoder, cache
        self._held: WeakValueDictionary[bytes, torch.Tensor] = WeakValueDictionary()  # by rows or the cache
        self.hits = self.misses = 0

    def check(self, request: DiffusionRequest) -> None:
        """Raise RequestError for image prompts that this model does not take."""
        count = len(request.content.image_prompts)
        if request.image_prompts != count:
            raise RequestError(
                f"{request.image_prompts} image prompts are announced and {count} are there", code=BAD_INPUT
            )
        if count and self._adapter is None:
            raise RequestError("this model was loaded without ip_adapter and takes no image prompt", code=BAD_INPUT)
        if count > 1:
            raise RequestError(f"{count} image prompts; this model takes one", code=BAD_INPUT)

    def beside(
        self, request: DiffusionRequest, positive: Embedding, negative: Embedding | None
    ) -> tuple[Embedding, Embedding | None]:
        """The embeddings of a request with those of its image prompt. Raises RequestError for what is no picture."""
        if self._adapter is None or not request.content.image_prompts:
            return positive, negative
        adapter, body = self._adapter, request.content.image_prompts[0]
        shown = self._embedding(adapter, body, lambda: open_picture(body))
        if negative is None:
            return {**positive, IMAGE: shown}, None
        sides = (request.width, request.height, 3)  # in the order that the pipeline has them
        black = self._embedding(adapter, b"black %d %d" % sides[:2], lambda: np.zeros(sides, np.uint8))
        return {**positive, IMAGE: shown}, {**negative, IMAGE: black}

    def _embedding(self, adapter: ImageAdapter, content: bytes, image: Callable[[], Image]) -> torch.Tensor:
        key = hashlib.sha256(b"image" + self._encoder + content).digest()
        kept = self._cache.find(key)
        found = self._held.get(key) if kept is None else kept[IMAGE]
        if found is not None:
            self.hits += 1
            return found
        made = self._held[key] = adapter.encode(image())
        self.misses += 1
        self._cache.keep(key, {IMAGE: made})
        return made
