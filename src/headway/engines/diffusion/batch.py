"""Several rows in one forward pass: their latents side by side, a timestep each, and the pass that guides."""

from collections.abc import Sequence
from typing import Final

import msgspec
import torch

from headway.cost.batch_sizes import parts_of
from headway.engines.diffusion.families.protocol import Embedding, Family, Work
from headway.engines.diffusion.rows import Row

# Both passes of a guided step as one batch, up to so many tokens of a pass. Measured on the tiny model with memory that
# is kept (`allocator`), apart over joined in CPU time: 1.43 with 64 tokens, 1.22 with 256, 1.15 and 1.12 with 512, 1.04
# to 1.06 with 1024, 1.04 with 2048, 1.02 with 8192.
JOINED_TOKENS_MAX: Final = 2048


class Batcher:
    """Runs forward passes. Embeddings of a batch are put together once, not at every step."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._rows: list[Row] = []  # whose embeddings are put together
        self._were_joined = False
        self._stacked: tuple[Embedding, Embedding | None] = ({}, None)

    def forget(self) -> None:
        """Drop the embeddings of the last batch."""
        self._rows, self._stacked = [], ({}, None)

    def predict(self, rows: Sequence[Row], pictures_max: int | None = None) -> list[torch.Tensor]:
        """What the transformer says of each row at its step, guided; one tensor per row. Rows are alike
        (`alike`). One row alone takes passes of the sizes that are measured up to `pictures_max` (`cost.batch_sizes`).
        """
        family, first = self._family, rows[0]
        if pictures_max is not None and len(rows) == 1:
            passes = parts_of(len(first.latents), pictures_max)
            if len(passes) > 1:
                parts = [msgspec.structs.replace(first, latents=part) for part in torch.split(first.latents, passes)]
                return [torch.cat([self.predict([part])[0] for part in parts])]
        latents = _joined([row.solver.scaled(row.latents, row.done) for row in rows])
        timesteps = torch.cat([row.solver.timesteps[row.done].expand(len(row.latents)) for row in rows])
        guidance = None
        if not family.is_guided_by_pairs:
            scales = [row.guidance_scale for row in rows for _ in row.latents]
            guidance = torch.tensor(scales, device=latents.device, dtype=torch.float32)
        is_joined = self._is_joined(rows, len(latents))
        positive, negative = self._embeddings(rows, is_joined)
        if first.negative is None:
            prediction = family.forward(Work(latents, timesteps, positive, first.size, guidance))
        elif is_joined:
            both = Work(torch.cat([latents] * 2), torch.cat([timesteps] * 2), positive, first.size, guidance)
            low, high = family.forward(both).chunk(2)
            prediction = family.combine(high, low, first.guidance_scale)
        else:
            high = family.forward(Work(latents, timesteps, positive, first.size, guidance))
            low = family.forward(Work(latents, timesteps, negative or {}, first.size, guidance))
            prediction = family.combine(high, low, first.guidance_scale)
        return list(torch.split(family.output(prediction), [len(row.latents) for row in rows]))

    def _is_joined(self, rows: Sequence[Row], pictures: int) -> bool:
        first = rows[0]
        if first.negative is None:
            return False
        if self._family.pair == "joined":
            return True
        if first.is_deterministic or self._family.tokens(first.size) * pictures > JOINED_TOKENS_MAX:
            return False
        shapes = [{name: tensor.shape for name, tensor in part.items()} for part in _parts(rows)]
        return all(shape == shapes[0] for shape in shapes)

    def _embeddings(self, rows: Sequence[Row], is_joined: bool) -> tuple[Embedding, Embedding | None]:
        is_same = len(rows) == len(self._rows) and all(a is b for a, b in zip(rows, self._rows, strict=True))
        if not is_same or is_joined != self._were_joined:
            counts = [len(row.latents) for row in rows]
            positive = [row.positive for row in rows]
            negative = [row.negative for row in rows if row.negative is not None]
            if is_joined:
                self._stacked = stack([*negative, *positive], counts * 2), None
            else:
                self._stacked = stack(positive, counts), stack(negative, counts) if negative else None
            self._rows, self._were_joined = list(rows), is_joined
        return self._stacked


def alike(family: Family, rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by what must be equal in one forward pass: guided or not and how far, and the transformer at work."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        scale = row.guidance_scale if row.negative is not None else None
        phase = family.phase(row.solver.value(row.done))
        alone = row.seq if row.is_deterministic else None
        groups.setdefault((row.size, scale, phase, alone), []).append(row)
    return list(groups.values())


def stack(embeddings: Sequence[Embedding], counts: Sequence[int]) -> Embedding:
    """Embeddings side by side, each as often as its row has pictures; shorter prompts are padded and masked."""
    lengths = {embedding["prompt"].shape[1] for embedding in embeddings}
    if len(lengths) > 1 or any("mask" in embedding for embedding in embeddings):
        embeddings = [_padded(embedding, max(lengths)) for embedding in embeddings]
    pairs = list(zip(embeddings, counts, strict=True))
    return {
        name: _joined([each[name].expand(count, *each[name].shape[1:]) for each, count in pairs])
        for name in embeddings[0]
    }


def _padded(embedding: Embedding, length: int) -> Embedding:
    prompt = embedding["prompt"]
    missing = length - prompt.shape[1]
    mask = embedding.get("mask")
    if mask is None:
        mask = torch.ones(prompt.shape[:2], dtype=torch.long, device=prompt.device)
    if not missing:
        return {**embedding, "mask": mask}
    longer = torch.nn.functional.pad(prompt, (0, 0, 0, missing))
    return {**embedding, "prompt": longer, "mask": torch.nn.functional.pad(mask, (0, missing))}


def _parts(rows: Sequence[Row]) -> list[Embedding]:
    return [part for row in rows for part in (row.positive, row.negative) if part is not None]


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
