"""How many pictures of one size have room in a forward pass, learned from passes that ran out of memory
(vllm-omni#2327).

What has no room is run in halves, and those in halves again; only one picture alone can fail. The limit of a size is
remembered, and tried again at twice the size when so many passes went well: memory that others held may be back.
"""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from headway.cost.batch_sizes import parts_of
from headway.engines.diffusion.families.protocol import Size
from headway.engines.diffusion.rows import Row

log = logging.getLogger(__name__)
_AGAIN_AFTER: Final = 50  # passes at the limit: a try that fails costs one pass, so at most 2 %
_SIZES_MAX: Final = 64  # of which the oldest is forgotten


class _Limit(msgspec.Struct):
    most: int
    failed: int  # the smallest pass that had no room when this was learned
    well: int = 0  # passes since


class PassRoom:
    """Rows that are to be computed as the pipeline alone would are never split: other passes have other last bits."""

    def __init__(self) -> None:
        self._limits: dict[Size, _Limit] = {}

    def groups(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Rows that share a pass, in their order, as few groups as have room. One row alone may need several passes."""
        limit = self._limits.get(rows[0].size)
        groups: list[list[Row]] = []
        left = 0
        for row in rows:
            pictures = len(row.latents)
            if not groups or (limit is not None and pictures > left):
                groups.append([])
                left = 0 if limit is None else limit.most
            groups[-1].append(row)
            left -= pictures
        return groups

    def most(self, rows: Sequence[Row], pictures_max: int | None) -> int | None:
        """Pictures of one pass, at most `pictures_max`; None: any number."""
        limit = self._limits.get(rows[0].size)
        if limit is None or rows[0].is_deterministic:
            return pictures_max
        return limit.most if pictures_max is None else min(limit.most, pictures_max)

    def ran(self, rows: Sequence[Row], most: int | None) -> None:
        """A step of these rows went well, in passes of at most so many pictures."""
        size = rows[0].size
        limit, pictures = self._limits.get(size), _largest(rows, most)
        if limit is None or pictures < limit.most:
            return
        limit.well += 1
        if limit.well >= _AGAIN_AFTER:
            limit.most, limit.well = 2 * limit.most, 0
            if limit.most > limit.failed:
                del self._limits[size]

    def failed(self, rows: Sequence[Row], most: int | None) -> bool:
        """A pass had no room. True: smaller ones may have; False: there are none."""
        size, pictures = rows[0].size, _largest(rows, most)
        if pictures == 1 or rows[0].is_deterministic:
            return False
        if size not in self._limits and len(self._limits) >= _SIZES_MAX:
            del self._limits[next(iter(self._limits))]
        self._limits[size] = limit = _Limit(pictures // 2, pictures)
        log.warning(
            "no room for %d pictures of %dx%d in one pass: %d from now on",
            pictures,
            size.width,
            size.height,
            limit.most,
        )
        return True


def _largest(rows: Sequence[Row], most: int | None) -> int:
    """Pictures of the largest pass (`batch.Batcher.predict`)."""
    pictures = sum(len(row.latents) for row in rows)
    return pictures if most is None or len(rows) > 1 else max(parts_of(pictures, most))


def no_room(row: Row) -> str:
    """Say of a row that failed what had no room, and what to do."""
    request = row.request
    size = f"{request.width}x{request.height}"
    frames = f", {request.frames} frames" if request.frames > 1 else ""
    if row.is_deterministic and request.n > 1:
        return (
            f"request {request.id}: no room for a step of {request.n} times {size}{frames} in one pass, which "
            "`deterministic` does not split; ask for fewer pictures, or without `deterministic`"
        )
    smaller = "a smaller size or fewer frames" if frames else "a smaller size"
    return f"request {request.id}: no room for a step of one {size}{frames}, alone; ask for {smaller}"
