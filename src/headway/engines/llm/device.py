"""What the engine asks of a device that works on by itself, and what it keeps there: buffers and decode graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]  # int32, int64, float32 or float64


class Device(Protocol):
    """Work is queued in order and done later; nothing but `wait` of a fetched tensor waits for it."""

    @property
    def where(self) -> torch.device: ...

    def pinned(self, array: Array) -> torch.Tensor:
        """A copy in memory that the device can read by itself; the array may be overwritten at once."""
        ...

    def fetch(self, tensor: torch.Tensor) -> Callable[[], Array]:
        """Start copying to the host. The returned call waits for that copy only; it may be called again."""
        ...

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Record the work of `compute`; the returned call queues it again and returns the same, refilled tensor."""
        ...


class Staging:
    """Buffers on the device at stable addresses, filled through pinned memory (SPEC E1)."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self.moves = 0  # buffers that had to move; graphs captured before are void then

    def reserve(self, name: str, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        self.moves += name in self._buffers
        self._buffers[name] = torch.zeros(shape, dtype=dtype, device=self._device.where)
        return self._buffers[name]

    def place(self, name: str, array: Array) -> torch.Tensor:
        """The array on the device, in the first rows of its buffer."""
        source = self._device.pinned(array)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < len(source):
            buffer = self.reserve(name, *source.shape, dtype=source.dtype)
        target = buffer[: len(source)]
        target.copy_(source, non_blocking=True)
        return target

    def upload(self, array: Array) -> torch.Tensor:
        """The array on the device, for this step only."""
        return self._device.pinned(np.ascontiguousarray(array)).to(self._device.where, non_blocking=True)

    def view(self, name: str, count: int) -> torch.Tensor:
        return self._buffers[name][:count]


class DecodeGraphs:
    """Captured decode steps by (rows, blocks): padded rows, and KV blocks that every row's attention covers.

    `compute(rows, blocks)` is a whole step over the standing buffers, from tokens to logits.
    """

    def __init__(self, device: Device, compute: Callable[[int, int], torch.Tensor], blocks_max: int) -> None:
        self._device, self._compute = device, compute
        self._spans = _powers(blocks_max)
        self._replays: dict[tuple[int, int], Callable[[], torch.Tensor]] = {}

    def __contains__(self, rows: int) -> bool:
        return (rows, self._spans[0]) in self._replays

    @property
    def rows(self) -> list[int]:
        return sorted({rows for rows, _ in self._replays})

    def capture(self, rows: int) -> None:
        """Capture every span of `rows`, the longest first: it asks for the most memory, which the others share."""
        for blocks in reversed(self._spans):
            self._replays[rows, blocks] = self._device.capture(partial(self._compute, rows, blocks))

    def recapture(self) -> None:
        rows = self.rows
        self._replays.clear()
        for count in reversed(rows):
            self.capture(count)

    def replay(self, rows: int, blocks: int) -> torch.Tensor:
        """Logits [rows, vocab] of the step that lies in the buffers; valid until the next replay of this size."""
        return self._replays[rows, next(span for span in self._spans if span >= blocks)]()


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent < most] + [most]
