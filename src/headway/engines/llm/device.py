"""What the engine asks of a device that works on by itself, and what it keeps there: its standing buffers."""

from collections.abc import Callable
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
