"""The standing buffers of a device, which its graphs read, and how the arrays of a step reach them."""

import torch

from headway.engines.llm.device import Array, Device
from headway.engines.llm.leases import Lease


class Staging:
    """Buffers at stable addresses (SPEC E1), filled by computing itself, in its order, from what a lease brought.

    So no copy from the host overwrites what a step that is queued has yet to read.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self._placed: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._lease: Lease | None = None
        self.moves = 0  # buffers that had to move; graphs captured before are void then

    def begin(self, lease: Lease) -> None:
        """What is placed and uploaded from here on belongs to this lease."""
        self._lease = lease
        self._placed.clear()

    def reserve(self, name: str, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        self.moves += name in self._buffers
        self._buffers[name] = torch.zeros(shape, dtype=dtype, device=self._device.where)
        return self._buffers[name]

    def place(self, name: str, array: Array) -> torch.Tensor:
        """The first rows of a buffer, which hold the array after `land`."""
        source = self._begun.put(array)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < len(source):
            buffer = self.reserve(name, *source.shape, dtype=source.dtype)
        self._placed[name] = buffer[: len(source)], source
        return self._placed[name][0]

    def land(self) -> None:
        """Computing that is queued from here on sees what was placed."""
        self._begun.arrive()
        for target, source in self._placed.values():
            target.copy_(source)
        self._placed.clear()

    def upload(self, array: Array) -> torch.Tensor:
        """The array on the device, for this lease only."""
        there = self._begun.put(array)
        self._begun.arrive()
        return there

    def view(self, name: str, count: int) -> torch.Tensor:
        return self._buffers[name][:count]

    @property
    def _begun(self) -> Lease:
        assert self._lease is not None, "arrays belong to a step that has begun"
        return self._lease
