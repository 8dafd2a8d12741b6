"""An IP-Adapter in a Flux transformer: its blocks attend to a picture beside the words.

Follows `FluxPipeline.load_ip_adapter` and `encode_image` of diffusers 0.42, whose attention with an adapter cannot run
without a picture: passes without one take the attention that the transformer had before.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from headway.engines.diffusion.families.protocol import Image, Pipeline


class FluxImageAdapter:
    """Loads it. `image_encoder`: a folder; None: the pipeline has one. Raises what diffusers raises."""

    def __init__(self, pipeline: Pipeline, weights: Path, image_encoder: Path | None, dtype: torch.dtype) -> None:
        transformer = pipeline.transformer
        self._pipe, self._device = pipeline, transformer.device
        self._blocks: Sequence[Pipeline] = [block.attn for block in transformer.transformer_blocks]
        self._without: Sequence[Pipeline] = [attention.processor for attention in self._blocks]
        pipeline.load_ip_adapter(
            str(weights.parent),
            weight_name=weights.name,
            image_encoder_pretrained_model_name_or_path=None if image_encoder is None else str(image_encoder),
            image_encoder_dtype=dtype,
            local_files_only=True,
            low_cpu_mem_usage=False,
        )
        transformer.encoder_hid_proj.to(self._device, dtype)  # diffusers leaves it on the CPU, in float32
        self._with: Sequence[Pipeline] = [attention.processor for attention in self._blocks]
        self._scale: float | None = 1.0
        self.attend(None)

    def encode(self, image: Image) -> torch.Tensor:
        """The embedding of one picture, [1, 1, width]."""
        embedding: torch.Tensor = self._pipe.encode_image(image, self._device, 1)
        return embedding[None, :]

    def attend(self, scale: float | None) -> None:
        """Forward passes from now on weigh the picture so; None: they have none."""
        if scale == self._scale:
            return
        self._scale = scale
        for attention, plain, adapted in zip(self._blocks, self._without, self._with, strict=True):
            if scale is None:
                attention.set_processor(plain)
            else:
                adapted.scale = [scale]
                attention.set_processor(adapted)
