"""Several rows in one step: their latents side by side, a timestep each, and the pass that guides."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

import msgspec
import torch

from headway.cost.batch_sizes import parts_of
from headway.engines.diffusion.families.protocol import Embedding, Family, Work
from headway.engines.diffusion.faults import caught
from headway.engines.diffusion.image_prompts import image_scale
from headway.engines.diffusion.rows import Edit, Row

# Both passes of a guided step as one batch, up to so many tokens of a pass. Measured on the tiny model with memory that
# is kept (`allocator`), apart over joined in CPU time: 1.43 with 64 tokens, 1.22 with 256, 1.15 and 1.12 with 512, 1.04
# to 1.06 with 1024, 1.04 with 2048, 1.02 with 8192.
JOINED_TOKENS_MAX: Final = 2048


class _Batch(msgspec.Struct, frozen=True):
    """What stays the same from step to step. `positive`: both embeddings, the negative half first, where joined."""

    rows: list[Row]
    counts: list[int]  # pictures of each
    is_joined: bool
    positive: Embedding
    negative: Embedding | None
    guidance: torch.Tensor | None  # [pictures], where the transformer takes it
    given: torch.Tensor | None  # clean latents of the frames that all rows go on from; twice, where joined


class Batcher:
    """Runs steps. What a batch is given is put together once, not at every step."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.forget()

    def forget(self) -> None:
        """Drop what the last batch was given."""
        self._batch: _Batch | None = None
        self._latents: torch.Tensor | None = None  # of a batch, side by side
        self._views: list[torch.Tensor] = []  # the same as each row holds them
        self._prediction: torch.Tensor | None = None  # of a batch, side by side
        self._predictions: list[torch.Tensor] = []  # the same by row

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
        batch = self._batch_of(rows)
        latents, timesteps = self._inputs(rows)
        positive, negative, rest = batch.positive, batch.negative, (batch.guidance, image_scale(first), batch.given)
        if first.negative is None:
            prediction = family.forward(Work(latents, timesteps, positive, first.size, *rest))
        elif batch.is_joined:
            both = Work(torch.cat([latents] * 2), torch.cat([timesteps] * 2), positive, first.size, *rest)
            low, high = family.forward(both).chunk(2)
            prediction = family.combine(high, low, first.guidance_scale)
        else:
            high = family.forward(Work(latents, timesteps, positive, first.size, *rest))
            low = family.forward(Work(latents, timesteps, negative or {}, first.size, *rest))
            prediction = family.combine(high, low, first.guidance_scale)
        self._prediction = family.output(prediction)
        self._predictions = list(torch.split(self._prediction, batch.counts))
        return self._predictions

    def step(
        self, rows: Sequence[Row], predictions: Sequence[torch.Tensor], shown: Collection[int]
    ) -> list[tuple[Row, Exception]]:
        """Latents after the step that these are the predictions of. Rows of one way through the noise make it together,
        with the bits of each alone. `shown`: sequences that keep what they take the finished latents for.

        Returns whose step went wrong."""
        wrong: list[tuple[Row, Exception]] = []
        before = [row.latents for row in rows]
        views: list[torch.Tensor | None] | None = [None]
        with caught(partial(_note, wrong, rows[0])):
            views = self._stepped_together(rows, predictions)
        if views is None:
            self._latents = None
            views = [None] * len(rows)
            for place, row in enumerate(rows):
                with caught(partial(_note, wrong, row)):
                    views[place] = row.solver.step(_own(predictions[place]), row.latents, row.done)
        for row, prediction, latents, view in zip(rows, predictions, before, views, strict=True):
            if view is None:
                continue
            with caught(partial(_note, wrong, row)):
                row.latents = view
                row.clean = row.solver.clean(prediction, latents, row.done) if row.seq in shown else None
                if row.edit is not None:
                    row.latents = _blended(row, row.edit)
                row.done += 1
        self._views = [] if wrong else [view for view in views if view is not None]
        return wrong

    def _stepped_together(
        self, rows: Sequence[Row], predictions: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None] | None:
        """The latents of each after one step of all; None: they make it apart. Raises what one row alone raises."""
        first, together, joint = rows[0], self._latents, self._prediction
        if predictions is not self._predictions or joint is None or together is None:
            return None
        wrong: list[Exception] = []
        with caught(wrong.append):
            after = first.solver.step(joint, together, first.done)
        if wrong and len(rows) == 1:
            raise wrong.pop()
        if wrong:  # what solvers that step together remember is a number, the same in all of them
            first.solver.follow(rows[1].solver)
            return None
        for row in rows[1:]:
            row.solver.follow(first.solver)
        self._latents = after
        return list(torch.split(after, [len(row.latents) for row in rows]))

    def _inputs(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents as the model takes them, and timesteps."""
        first = rows[0]
        if not _is_one_way(rows):
            self._latents = None
            latents = torch.cat([row.solver.scaled(row.latents, row.done) for row in rows])
            return latents, torch.cat([row.solver.timesteps[row.done].expand(len(row.latents)) for row in rows])
        if self._latents is None or not _are_same([row.latents for row in rows], self._views):
            self._views = [row.latents for row in rows]
            self._latents = _joined(self._views)
        timesteps = first.solver.timesteps[first.done].expand(len(self._latents))
        return first.solver.scaled(self._latents, first.done), timesteps

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

    def _batch_of(self, rows: Sequence[Row]) -> _Batch:
        if self._batch is not None and _are_same(rows, self._batch.rows):
            return self._batch
        counts = [len(row.latents) for row in rows]
        is_joined = self._is_joined(rows, sum(counts))
        positive = [row.positive for row in rows]
        negative = [row.negative for row in rows if row.negative is not None]
        guidance = None
        if not self._family.is_guided_by_pairs:
            scales = [row.guidance_scale for row in rows for _ in row.latents]
            guidance = torch.tensor(scales, device=rows[0].latents.device, dtype=torch.float32)
        prompts = stack([*negative, *positive], counts * 2) if is_joined else stack(positive, counts)
        apart = stack(negative, counts) if negative and not is_joined else None
        frames = [given for row in rows if (given := row.given_latents) is not None] * (1 + is_joined)
        given = _joined(frames) if frames else None
        self._batch = _Batch(list(rows), counts, is_joined, prompts, apart, guidance, given)
        return self._batch


def alike(family: Family, rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by what must be equal in one forward pass: guided or not and how far, with an image prompt or not and how
    much it counts, and the transformer at work."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        scale = row.guidance_scale if row.negative is not None else None
        phase = family.phase(row.solver.value(row.done))
        alone = row.seq if row.is_deterministic else None
        groups.setdefault((row.size, scale, image_scale(row), phase, alone), []).append(row)
    return list(groups.values())


def owned(rows: Collection[Row]) -> None:
    """Rows of a step share the storage of their latents; those whose company has gone are given their own."""
    needed: dict[int, int] = {}
    for row in rows:
        key = row.latents.untyped_storage().data_ptr()
        needed[key] = needed.get(key, 0) + row.latents.nbytes
    for row in rows:
        storage = row.latents.untyped_storage()
        if storage.nbytes() > needed[storage.data_ptr()]:
            row.latents = row.latents.clone()


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


def _is_one_way(rows: Sequence[Row]) -> bool:
    """Whether the rows are at the same step of the same way through the noise."""
    first = rows[0]
    return all(row.done == first.done and row.solver.is_like(first.solver) for row in rows[1:])


def _note(wrong: list[tuple[Row, Exception]], row: Row, error: Exception) -> None:
    wrong.append((row, error))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """What a solver keeps of it holds no more than itself."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _blended(row: Row, edit: Edit) -> torch.Tensor:
    """Outside of the mask the picture itself, at the noise level that the next step begins with."""
    clean = edit.clean
    if row.done + 1 < row.request.steps:
        clean = row.solver.mixed(clean, edit.noise, row.done + 1)
    return (1 - edit.mask) * clean + edit.mask * row.latents
