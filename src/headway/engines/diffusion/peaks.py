"""Counts the bytes that a plan holds at its peak: on an accelerator by its allocator, on a CPU by the tensors that are
alive after every operation, and a factor for what an operation holds only while it runs."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from headway.core.artifacts import StagePeaks
from headway.core.ports import DeviceMemory


class PeakCount(Protocol):
    """Open for one plan; `lap` ends one part of it."""

    def __enter__(self) -> "PeakCount": ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def lap(self) -> tuple[int, int]:
        """Bytes that are alive now, and the most since the lap before."""
        ...


class TensorCount(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the hook of subclasses untyped
    """Storages made while it is open, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._alive: dict[int, int] = {}
        self._bytes = self._most = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the operation; count what it made."""
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage.data_ptr()
        if not key or key in self._alive:
            return
        self._alive[key] = size = storage.nbytes()
        self._bytes += size
        self._most = max(self._most, self._bytes)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self._bytes -= self._alive.pop(key, 0)

    def lap(self) -> tuple[int, int]:
        """Bytes that are alive now, and the most since the lap before."""
        most, self._most = self._most, self._bytes
        return self._bytes, most


class AllocatorCount:
    """What CUDA's allocator has handed out since it was opened."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._before = device, 0

    def __enter__(self) -> "AllocatorCount":
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""

    def lap(self) -> tuple[int, int]:
        """Bytes that are alive now, and the most since the lap before."""
        most = torch.cuda.max_memory_allocated(self._device) - self._before
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device) - self._before, most


_KIB: Final = 1 << 10
_LAPS: Final = 3  # begun, steps done, decoded
# Of a host, resident memory over the tensors that are counted: what a convolution holds inside itself, frames while
# they become a file, pages that the allocator keeps. Measured on the tiny models, 128 to 512 pixels: 1.2 to 1.9.
_UNSEEN: Final = 2.0


def counter_of(device: torch.device) -> PeakCount:
    """Return the count that this device has."""
    return AllocatorCount(device) if device.type == "cuda" else TensorCount()


def peaks_of(laps: Sequence[tuple[int, int]], device: torch.device) -> StagePeaks:
    """What three laps say: rows begun, steps done, pictures decoded. Fewer, and the plan failed: nothing is known."""
    if len(laps) != _LAPS:
        return StagePeaks(0, 0, 0)
    (begun, most_beginning), (stepped, most_stepping), (_, most_decoding) = laps
    more = (most_stepping - begun, most_decoding - stepped, most_beginning - begun)
    step, decode, begin = (seen_bytes(max(0, amount), device) for amount in more)
    return StagePeaks(max(begun, stepped), step, decode, begin)


def seen_bytes(counted: int, device: torch.device) -> int:
    """What so many counted bytes stand for."""
    return counted if device.type == "cuda" else round(_UNSEEN * counted)


def held_of(device: torch.device) -> int:
    """What this process holds: of an accelerator what its allocator has, of a host what is resident; 0: not told."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith("VmRSS:")), 0)


def memory_of(device: torch.device) -> DeviceMemory | None:
    """Of an accelerator; what the allocator keeps for reuse is free."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    held, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    return DeviceMemory(total, held, free + reserved - held)
