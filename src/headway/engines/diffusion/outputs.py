"""What a row hands back: finished pictures or its video, and previews."""

from typing import Final

import torch

from headway.core.artifacts import Made, PromptRead
from headway.engines.diffusion.families.protocol import Family, Frames, Size
from headway.engines.diffusion.pictures import picture_bytes, video_bytes
from headway.engines.diffusion.rows import Row
from headway.engines.diffusion.stages import Stages

PREVIEW_EDGE: Final = 256  # pixels; of a larger picture the latents are halved until its preview is no larger


def finished(row: Row, frames: Frames, read: PromptRead) -> tuple[Made, ...]:
    """Encode the pictures of a row, each with the seed that makes it alone (diffusers#6233)."""
    said, seed = row.request.content, row.request.seed
    if said.form == "mp4":
        return tuple(
            Made("video", video_bytes(video, row.request.fps), k, row.done, seed + k, read)
            for k, video in enumerate(frames)
        )
    return tuple(
        Made("picture", picture_bytes(picture[0], said.form, said.quality), k, row.done, seed + k, read)
        for k, picture in enumerate(frames)
    )


def preview(row: Row, family: Family, stages: Stages) -> Made | None:
    """The first picture as the last step foresees it, small; of a video its first frame, as PNG. None: no step ran."""
    if row.clean is None:
        return None
    said, size = row.request.content, row.size
    grid = family.unpack(row.clean[:1], size)
    if size.frames > 1:
        grid = grid[:, :, :1]
    factor = _shrink(size, grid)
    if factor > 1:
        flat = grid.reshape(-1, *grid.shape[-2:])[:, None].float()
        small = torch.nn.functional.avg_pool2d(flat, factor)[:, 0]
        grid = small.reshape(*grid.shape[:-2], *small.shape[-2:]).to(grid.dtype)
    frames = stages.decoding(grid, Size(size.height // factor, size.width // factor))()
    form = "png" if said.form == "mp4" else said.form
    shown = sum(step <= row.done for step in row.request.preview_steps)
    return Made(
        "preview", picture_bytes(frames[0][0], form, said.quality), max(0, shown - 1), row.done, row.request.seed
    )


def _shrink(size: Size, grid: torch.Tensor) -> int:
    """Halvings, as a factor, that the picture is too large for and the latents allow."""
    factor = 1
    while max(size.height, size.width) // factor > PREVIEW_EDGE and not any(
        edge % (2 * factor) for edge in grid.shape[-2:]
    ):
        factor *= 2
    return factor
