"""Which rows that end together are decoded in one pass, and what one of them gets if that pass fails."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch

from headway.engines.diffusion.families.protocol import Family, Frames, Size
from headway.engines.diffusion.faults import caught
from headway.engines.diffusion.memory import release
from headway.engines.diffusion.rows import Row
from headway.engines.diffusion.stages import Stages

# Of one pass, so that it holds no more than the decode of one picture of 362 px each way. Measured on the tiny model,
# one by one over together in CPU time: 1.8 with eight of 64 px, 1.4 with 128 px, 1.2 with four of 256 px, of which the
# order of the tensors in memory (`channels_last`) gives a third to a half.
JOINED_PIXELS_MAX: Final = 1 << 17


def begin_decodes(rows: Sequence[Row], family: Family, stages: Stages) -> dict[int, Callable[[], Frames]]:
    """Begin the decodes of rows, by sequence; the calls wait for their frames. Where stages decode beside each other
    every row is decoded by itself, as are deterministic ones everywhere."""
    begun: dict[int, Callable[[], Frames]] = {}
    for group in _groups(rows, alone=stages.decodes_max > 1):
        grids: list[tuple[Row, torch.Tensor]] = []
        for row in group:
            with caught(partial(_refuse, begun, row)):
                grids.append((row, row.whole(family.unpack(row.latents, row.size))))
        size = group[0].size
        if len(grids) == 1:
            row, grid = grids[0]
            with caught(partial(_refuse, begun, row)):
                begun[row.seq] = stages.decoding(grid, size)
            continue
        joint = _Joint([grid for _row, grid in grids], size, stages)
        begun.update({row.seq: partial(joint.frames, place) for place, (row, _grid) in enumerate(grids)})
    return begun


def _refuse(begun: dict[int, Callable[[], Frames]], row: Row, error: Exception) -> None:
    """Its decode could not begin: whoever waits for it hears why."""

    def wait() -> Frames:
        raise error

    begun[row.seq] = wait


class _Joint:
    """One decode of several rows, made when the first of them is asked for."""

    def __init__(self, grids: Sequence[torch.Tensor], size: Size, stages: Stages) -> None:
        self._grids, self._size, self._stages = grids, size, stages
        self._frames: list[Frames] | None = None
        self._is_tried = False

    def frames(self, place: int) -> Frames:
        """Of one row. Raises what its decode alone raises, where the one of all failed."""
        if not self._is_tried:
            self._is_tried = True
            self._try()
        if self._frames is None:
            return self._stages.decoding(self._grids[place], self._size)()
        return self._frames[place]

    def _try(self) -> None:
        with caught(lambda _error: release()):  # which row it is of shows when each is decoded alone
            together = torch.cat(list(self._grids))
            if together.dim() == 4:  # [pictures, channels, height, width], and no frames
                together = together.contiguous(memory_format=torch.channels_last)
            frames = self._stages.decoding(together, self._size)()
            parts, begin = [], 0
            for grid in self._grids:
                parts.append(frames[begin : begin + len(grid)])
                begin += len(grid)
            self._frames = parts


def _groups(rows: Sequence[Row], alone: bool) -> list[list[Row]]:
    """Rows of one size in order, up to so many pixels."""
    groups: list[list[Row]] = []
    open_: dict[Size, tuple[list[Row], int]] = {}  # the last group of a size, and its pixels
    for row in rows:
        size = row.size
        pixels = len(row.latents) * size.height * size.width * size.frames
        group, held = open_.get(size, ([], 0))
        if group and not (alone or row.is_deterministic) and held + pixels <= JOINED_PIXELS_MAX:
            group.append(row)
            open_[size] = group, held + pixels
            continue
        groups.append([row])
        if not row.is_deterministic:
            open_[size] = groups[-1], pixels
    return groups
