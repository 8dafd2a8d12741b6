"""Finds accesses to memory that nothing orders, by vector clocks over lanes (FastTrack: Flanagan, Freund, PLDI 2009).

What it finds does not depend on the order in which a test ran the lanes: two lanes touch the same words, one of them
writes, and no chain of events and waits leads from one to the other.
"""

from typing import Any

import torch

_GARBAGE = 12345.0
Touch = tuple[torch.Tensor, tuple[str, Any] | None]  # and the part of it: ("rows", indices) or ("select", (dim, index))


class Race(Exception):
    """Two lanes at the same memory, and no order between them."""


class Clocks:
    """How far each lane has come in each other lane's work, and the host in all of them."""

    def __init__(self, lanes: tuple[str, ...]) -> None:
        self._lanes = lanes
        self.now = {lane: dict.fromkeys(lanes, 0) for lane in lanes}
        self.host = dict.fromkeys(lanes, 0)
        self._past: dict[str, list[dict[str, int]]] = {lane: [dict.fromkeys(lanes, 0)] for lane in lanes}

    def at(self, lane: str, ticket: int) -> dict[str, int]:
        return self._past[lane][ticket]

    def tick(self, lane: str, known: dict[str, int]) -> None:
        """The lane runs its next work, which was given when the giver knew `known`, or waited for that."""
        merge(self.now[lane], known)
        self.now[lane][lane] += 1
        self._past[lane].append(dict(self.now[lane]))


def merge(into: dict[str, int], other: dict[str, int]) -> None:
    for lane, count in other.items():
        into[lane] = max(into[lane], count)


class Races:
    """Who touched which words of four bytes last. `found` counts racing reads that were answered with garbage."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._kept: list[Any] = []  # so that no address comes again
        self._reads: dict[int, dict[str, torch.Tensor]] = {}
        self._writes: dict[int, dict[str, torch.Tensor]] = {}
        self.found = 0

    def read(self, lane: str, touch: Touch) -> bool:
        """False when another lane may write there at the same time."""
        return self._touched(lane, touch, is_write=False)

    def spoil(self, lane: str, pages: Touch, gathered: torch.Tensor) -> None:
        """Put garbage where a gather reads what another lane may write at the same time. The read is not kept."""
        tensor, part = pages
        for other, shadow in self._writes.get(tensor.untyped_storage().data_ptr(), {}).items():
            if other != lane:
                late = (_part(_words(shadow, tensor), part) > self._clocks.now[lane][other]).any(-1)
                self.found += int(late.any())
                gathered.masked_fill_(late, _GARBAGE)

    def write(self, lane: str, touch: Touch) -> bool:
        """False when another lane may read or write there at the same time."""
        return self._touched(lane, touch, is_write=True)

    def _touched(self, lane: str, touch: Touch, is_write: bool) -> bool:
        tensor, part = touch
        if tensor.numel() == 0:
            return True
        key = tensor.untyped_storage().data_ptr()
        if key not in self._reads:
            self._kept.append(tensor.untyped_storage())
            self._reads[key], self._writes[key] = {}, {}
        others = [self._writes[key], self._reads[key]] if is_write else [self._writes[key]]
        is_ordered = all(
            int(_part(_words(shadow, tensor), part).max()) <= self._clocks.now[lane][other]
            for shadows in others
            for other, shadow in shadows.items()
            if other != lane
        )
        mine = (self._writes if is_write else self._reads)[key]
        if lane not in mine:
            mine[lane] = torch.zeros(-(-tensor.untyped_storage().nbytes() // 4), dtype=torch.int32)
        _mark(_words(mine[lane], tensor), part, self._clocks.now[lane][lane])
        return is_ordered


def _words(shadow: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The words of `tensor` in the shadow of its storage, in its shape, with one dimension more for wide elements."""
    size = tensor.element_size()
    if size < 4:
        if not tensor.is_contiguous():
            return shadow
        first = tensor.storage_offset() * size
        return shadow[first // 4 : -(-(first + tensor.numel() * size) // 4)]
    wide = size // 4
    strides = [stride * wide for stride in tensor.stride()]
    return shadow.as_strided((*tensor.shape, wide), (*strides, 1), tensor.storage_offset() * wide)


def _part(words: torch.Tensor, part: tuple[str, Any] | None) -> torch.Tensor:
    if part is None:
        return words
    how, which = part
    found = words[tuple(slice(None) if index is None else index for index in which)] if how == "rows" else None
    if found is None:
        found = words.index_select(*which)
    return found if found.numel() else words.new_zeros(1)


def _mark(words: torch.Tensor, part: tuple[str, Any] | None, clock: int) -> None:
    if part is None:
        words.fill_(clock)
    elif part[0] == "rows":
        words[tuple(slice(None) if index is None else index for index in part[1])] = clock
    else:
        words.index_fill_(*part[1], clock)
