"""What a step borrows to bring arrays to a device and results back: pinned memory, its counterpart there, and events.

Only memory of a lease is touched by more than one lane, so torch's allocator, which knows one lane, never hands it out.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch

from headway.core.errors import EngineError, InvariantError
from headway.engines.llm.device import Array, Device

_ALIGNED = 256  # bytes; arrays begin at multiples of it
_FETCHED_BYTES = 4096  # of results, at first


class _Pair:
    """Pinned host memory and as many bytes on the device; `sent` of the `filled` bytes are on their way."""

    def __init__(self, device: Device, size: int) -> None:
        self.host = device.pinned(size)
        self.written = self.host.numpy()
        self.there = torch.empty(size, dtype=torch.uint8, device=device.where)
        self.filled = self.sent = 0

    @property
    def size(self) -> int:
        return len(self.written)


class _Slot:
    """The memory and the events of one lease at a time."""

    def __init__(self, device: Device, size: int) -> None:
        self.device = device
        self.arrived, self.computed, self.fetched = device.event(), device.event(), device.event()
        self.pairs: list[_Pair] = []
        self.grow(size)
        self.out = _Pair(device, _FETCHED_BYTES)

    def grow(self, size: int) -> None:
        self.pairs.append(_Pair(self.device, size))
        # The allocator hands out memory that computing, queued earlier, may still use.
        self.computed.record("compute")
        self.computed.hold("copy_in")

    def room(self, size: int) -> _Pair:
        """The pair that takes `size` bytes more."""
        if self.pairs[-1].filled + size > self.pairs[-1].size:
            self.grow(max(sum(pair.filled for pair in self.pairs) + size, 2 * self.pairs[-1].size))
        return self.pairs[-1]

    def clear(self) -> None:
        """Make ready for the next lease: of several pairs the largest, which is the last, stays."""
        del self.pairs[:-1]
        self.pairs[0].filled = self.pairs[0].sent = 0


class Lease:
    """Lent to one step or transfer until `end`. Used by one thread; `end` and the call of `fetch` by any."""

    def __init__(self, name: str, slot: _Slot, give_back: Callable[[str, _Slot], None]) -> None:
        self.name = name
        self._slot, self._give_back = slot, give_back
        self._lock = threading.Lock()
        self._found: Array | None = None
        self._is_idle = True  # no lane works on the slot
        self._is_last = False  # the results are under way, and nothing may be put any more
        self._is_over = False

    def put(self, array: Array) -> torch.Tensor:
        """The array on the device, to be read after `arrive`; the array itself may be overwritten at once."""
        with self._lock:
            self._check_open()
            size = -(-array.nbytes // _ALIGNED) * _ALIGNED
            pair = self._slot.room(size)
            span = slice(pair.filled, pair.filled + array.nbytes)
            pair.written[span].view(array.dtype)[:] = array.ravel()
            pair.filled += size
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return pair.there[span].view(kind).view(array.shape)

    def arrive(self) -> None:
        """Send what was put; computing that is queued from here on waits for it."""
        with self._lock:
            self._check_open()
            self._is_idle = False
            slot = self._slot
            for pair in slot.pairs:
                if pair.filled > pair.sent:
                    span = slice(pair.sent, pair.filled)
                    slot.device.copy(pair.there[span], pair.host[span], "copy_in")
                    pair.sent = pair.filled
            slot.arrived.record("copy_in")
            slot.arrived.hold("compute")

    def fetch(self, tensor: torch.Tensor) -> Callable[[], Array]:
        """Queue the way of `tensor` to the host, once a lease and after all else that reads what was put.

        The returned call waits for it alone and gives a copy, the same one each time. Raises EngineError when the
        lease ended before.
        """
        with self._lock:
            self._check_open()
            self._is_idle, self._is_last = False, True
            slot, size = self._slot, tensor.numel() * tensor.element_size()
            if size > slot.out.size:
                slot.out = _Pair(slot.device, 2 * size)
            out, host = (part[:size].view(tensor.dtype).view(tensor.shape) for part in (slot.out.there, slot.out.host))
            out.copy_(tensor)
            slot.computed.record("compute")
            slot.computed.hold("copy_out")
            slot.device.copy(host, out, "copy_out")
            slot.fetched.record("copy_out")

        def wait() -> Array:
            slot.fetched.wait()  # without the lock, so that `end` does not wait behind it
            with self._lock:
                if self._found is None:
                    self._check()
                    self._found, self._is_idle = host.numpy().copy(), True
                return self._found

        return wait

    def end(self) -> None:
        """Give everything back, once: at once when the results were waited for, else after all lanes ran dry."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            if not self._is_idle:
                with suppress(RuntimeError):  # a device that fails here works on nothing any more
                    self._slot.device.drain()
            self._give_back(self.name, self._slot)

    def _check_open(self) -> None:
        self._check()
        if self._is_last:
            raise InvariantError(f"{self.name} brings more after its results were asked for")

    def _check(self) -> None:
        if self._is_over:
            raise EngineError(f"{self.name} ended before it was done: a step failed, or the engine closed")


class LeasePool:
    """Slots that leases take and give back; one more is made when all are out."""

    def __init__(self, device: Device, size: int) -> None:
        """`size`: bytes of inputs that a step brings at most as a rule; a slot grows when a step brings more."""
        self._device, self._size = device, size
        self._lock = threading.Lock()
        self._free: list[_Slot] = []
        self._open: dict[str, Lease] = {}

    @property
    def free(self) -> int:
        """Slots that no lease holds."""
        return len(self._free)

    @property
    def all(self) -> int:
        return len(self._free) + len(self._open)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the leases that have not ended, oldest first."""
        return tuple(self._open)

    def lease(self, name: str) -> Lease:
        """Raises InvariantError while a lease of this name is open."""
        with self._lock:
            if name in self._open:
                raise InvariantError(f"{name} holds a lease already")
            slot = self._free.pop() if self._free else _Slot(self._device, self._size)
            lease = self._open[name] = Lease(name, slot, self._take_back)
            return lease

    def end(self, name: str) -> None:
        """End the lease of this name where one is open."""
        with self._lock:
            lease = self._open.get(name)
        if lease is not None:
            lease.end()

    def end_all(self) -> None:
        with self._lock:
            leases = list(self._open.values())
        for lease in leases:
            lease.end()

    def _take_back(self, name: str, slot: _Slot) -> None:
        slot.clear()
        with self._lock:
            del self._open[name]
            self._free.append(slot)
