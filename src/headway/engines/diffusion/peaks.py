"""Counts the bytes that a plan holds at its peak: on an accelerator by its allocator, on a CPU by the tensors that are
alive after every operation, and a factor for what an operation holds only while it runs."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

import msgspec
import torch
from msgspec.structs import astuple
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from headway.core.artifacts import StagePeaks
from headway.core.ports import DeviceMemory
from headway.engines.diffusion.rows import Row


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


class StateBytes(msgspec.Struct, frozen=True):
    """What rows keep between steps."""

    held: int = 0
    latents: int = 0  # of it


def state_of(rows: Sequence[Row]) -> StateBytes:
    """Of each row its latents and those that it was given, its solver with all that it remembers, embeddings, and what
    an edit needs. What several share counts once: a row that outlives its company keeps none of it (`batch.owned`)."""
    parts = [
        (row.latents, row.given, vars(row.solver), row.positive, row.negative, row.edit and astuple(row.edit))
        for row in rows
    ]
    latents = sum(row.latents.nbytes + (0 if row.given is None else row.given.nbytes) for row in rows)
    return StateBytes(_bytes(parts), latents)


def _bytes(root: object) -> int:
    """Of all storages of tensors that are reached from here."""
    storages: dict[int, int] = {}
    left, seen = [root], {id(root)}
    while left:
        thing = left.pop()
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            continue
        inner: Sequence[object] = ()
        if isinstance(thing, Mapping):
            inner = list(thing.values())
        elif isinstance(thing, list | tuple):
            inner = thing
        elif hasattr(thing, "step") and hasattr(thing, "__dict__"):  # a scheduler
            inner = list(vars(thing).values())
        left += [one for one in inner if id(one) not in seen]
        seen.update(id(one) for one in inner)
    return sum(storages.values())


def counter_of(device: torch.device) -> PeakCount:
    """Return the count that this device has."""
    return AllocatorCount(device) if device.type == "cuda" else TensorCount()


def peaks_of(laps: Sequence[tuple[int, int]], state: StateBytes, device: torch.device) -> StagePeaks:
    """What three laps say: rows begun, steps done, pictures decoded. Fewer, and the plan failed: nothing is known.

    `state`: of the rows after their steps. Whatever else is alive then is the work's: it goes with the batch.
    """
    if len(laps) != _LAPS:
        return StagePeaks(0, 0, 0)
    begin, step, decode = (seen_bytes(max(0, most - state.held), device) for _, most in laps)
    return StagePeaks(state.held, step, decode, begin, state.latents)


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
