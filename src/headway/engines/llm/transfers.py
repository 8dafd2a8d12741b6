"""KV that moves beside computing: swaps with the host, reads and writes for other replicas (SPEC E2).

Computing and the lanes `kv_out` and `kv_in` meet at blocks, the two lanes at host slots too. A lane waits for another
only where both touch the same block or slot and one of them writes it; a transfer follows all computing that was queued
before it. The host waits for none of it.  # never run on a device
"""

import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from typing import Final, Literal

import msgspec
import numpy as np
import torch

from headway.core.errors import EngineError
from headway.engines.llm.device import Device
from headway.engines.llm.kv import KvPool

_ARENA_BYTES = 32 << 20  # of each lane on the device: so much is gathered or scattered by one kernel

KvLane = Literal["kv_in", "kv_out"]
_LANES: Final[tuple[KvLane, ...]] = ("kv_in", "kv_out")


class _Room:
    """Memory and events of one transfer at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Behind the computing before; source not needed any more; target filled.
        self.begun, self.taken, self.ended = device.event(), device.event(), device.event()
        self._numbers, self._there = torch.empty(0), torch.empty(0, dtype=torch.int64, device=device.where)
        self._payload = torch.empty(0)

    def index(self, blocks: Sequence[int], lane: KvLane) -> torch.Tensor:
        """The block numbers, int64 on the device, for this lane."""
        count = len(blocks)
        if count > len(self._there):
            self._numbers = self._device.pinned(8 * count).view(torch.int64)
            self._there = torch.empty(count, dtype=torch.int64, device=self._device.where)
            # The allocator hands out memory that computing, queued earlier, may still use.
            self.begun.record("compute")
            self.begun.hold(lane)
        self._numbers.numpy()[:count] = blocks
        self._device.copy(self._there[:count], self._numbers[:count], lane)
        return self._there[:count]

    def payload(self, size: int) -> torch.Tensor:
        """Pinned float32 for `size` bytes."""
        if size > len(self._payload):
            self._payload = self._device.pinned(size)
        return self._payload[:size].view(torch.float32)


class _Transfer(msgspec.Struct, eq=False):
    name: str
    lane: KvLane
    blocks: frozenset[int]
    slots: frozenset[int]
    room: _Room
    index: torch.Tensor
    is_awaited: bool  # by whoever asked, who gives the room back


class KvTransfers:
    """Queued by one thread; `stage_write`, `end_all` and what `read` returns may be called from any."""

    def __init__(self, device: Device, kv: KvPool, host_slots: int) -> None:
        self._device, self._kv, self._slots = device, kv, host_slots
        self._lock = threading.Lock()
        held = max(1, min(kv.blocks, _ARENA_BYTES // kv.bytes_per_block))
        # Only its lane touches an arena, in the lane's order, and first after a `_Room` waited for memory of its own.
        self._arenas: dict[KvLane, torch.Tensor] = {
            lane: torch.empty(held, *kv.block_shape, device=device.where) for lane in _LANES
        }
        self._host = torch.empty(0, *kv.block_shape)
        if host_slots:
            host = device.pinned(host_slots * kv.bytes_per_block)
            self._host = host.view(torch.float32).view(host_slots, *kv.block_shape)
        self._open: dict[str, _Transfer] = {}
        self._free: list[_Room] = []
        self._count = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the transfers that have not ended, oldest first."""
        return tuple(self._open)

    @property
    def free(self) -> int:
        """Rooms that no transfer holds."""
        return len(self._free)

    def swap_out(self, blocks: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copy device blocks to host slots, pairwise."""
        with self._begun("kv_out", blocks, host_slots) as transfer:
            self._out(transfer, self._host, host_slots)

    def swap_in(self, blocks: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copy host slots to device blocks, pairwise."""
        with self._begun("kv_in", blocks, host_slots) as transfer:
            self._in(transfer, self._host, host_slots)

    def read(self, blocks: Sequence[int]) -> Callable[[], bytes]:
        """Queue a read; the returned call, made once, waits for it and gives what `KvPool.read` would.

        It raises EngineError when the device failed, or all transfers were ended before.
        """
        with self._begun("kv_out", blocks, (), is_awaited=True) as transfer:
            payload = self._payload(transfer.room, len(blocks))
            self._out(transfer, payload, range(len(blocks)))

        def wait() -> bytes:
            failure: RuntimeError | None = None
            try:
                transfer.room.ended.wait()
            except RuntimeError as error:
                failure = error
            # Without the lock, so that no launch waits for these bytes.
            found = b"" if failure else np.ascontiguousarray(payload.numpy().transpose(1, 2, 0, 3, 4, 5)).tobytes()
            with self._lock:
                if transfer.name not in self._open:
                    raise EngineError(f"{transfer.name} ended before it was done: a step failed, or the engine closed")
                self._give_back(transfer)
            if failure is not None:
                raise EngineError(f"{transfer.name} failed: {failure}") from failure
            return found

        return wait

    def write(self, blocks: Sequence[int], payload: bytes) -> None:
        """Queue the inverse of `read`. Raises EngineError for a payload of another size."""
        self.stage_write(blocks, payload)()

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]:
        """Put the payload into pinned memory, in any thread; the returned call, made once, queues the write."""
        self._kv.check_blocks(blocks)
        self._kv.check_payload(blocks, payload)
        with self._lock:
            room = self._room()
        first, layers, *rest = self._kv.block_shape
        flat = np.frombuffer(payload, np.float32).reshape(first, layers, len(blocks), *rest)
        pinned = self._payload(room, len(blocks))
        pinned.numpy()[:] = flat.transpose(2, 0, 1, 3, 4, 5)

        def queue() -> None:
            with self._begun("kv_in", blocks, (), room=room) as transfer:
                self._in(transfer, pinned, range(len(blocks)))

        return queue

    def hold_step(self, touched: Callable[[], tuple[Set[int], Set[int]]]) -> None:
        """Computing that is queued from here on follows the transfers at its blocks; `touched`: reads, writes."""
        with self._lock:
            self._collect()
            if not self._open:
                return
            reads, writes = touched()
            for transfer in self._open.values():
                if transfer.lane == "kv_in" and not transfer.blocks.isdisjoint(reads):
                    transfer.room.ended.hold("compute")
                elif transfer.lane == "kv_out" and not transfer.blocks.isdisjoint(writes):
                    transfer.room.taken.hold("compute")

    def end_all(self) -> None:
        """End every transfer, done or not, after the lanes ran dry."""
        with self._lock:
            if self._open:
                self._drain()
            for transfer in list(self._open.values()):
                self._give_back(transfer)

    @contextmanager
    def _begun(
        self,
        lane: KvLane,
        blocks: Sequence[int],
        slots: Sequence[int],
        *,
        is_awaited: bool = False,
        room: _Room | None = None,
    ) -> Iterator[_Transfer]:
        """A transfer that is open when it was queued whole, and over when that failed."""
        self._kv.check_blocks(blocks)
        if outside := [slot for slot in slots if not 0 <= slot < self._slots]:
            raise EngineError(f"host slot {outside[0]} is outside the swap space of {self._slots} slots")
        with self._lock:
            self._collect()
            self._count += 1
            room = room or self._room()
            transfer = _Transfer(
                name=f"transfer-{self._count}",
                lane=lane,
                blocks=frozenset(blocks),
                slots=frozenset(slots),
                room=room,
                index=torch.empty(0),
                is_awaited=is_awaited,
            )
            is_queued = False
            try:
                transfer.index = room.index(blocks, lane)
                yield transfer
                is_queued = True
            finally:
                self._open[transfer.name] = transfer
                if not is_queued:
                    self._drain()
                    self._give_back(transfer)

    def _out(self, transfer: _Transfer, target: torch.Tensor, rows: Sequence[int]) -> None:
        """Blocks to `rows` of pinned memory."""
        room, arena = transfer.room, self._arenas["kv_out"]
        room.begun.record("compute")
        room.begun.hold("kv_out")
        for other in self._open.values():
            if other.lane == "kv_in" and not other.blocks.isdisjoint(transfer.blocks):
                other.room.ended.hold("kv_out")
            elif other.lane == "kv_in" and not other.slots.isdisjoint(transfer.slots):
                other.room.taken.hold("kv_out")
        for start in range(0, len(rows), len(arena)):
            part = rows[start : start + len(arena)]
            with self._device.within("kv_out"):
                self._kv.gather(transfer.index[start : start + len(part)], arena[: len(part)])
            if start + len(part) == len(rows):
                room.taken.record("kv_out")
            for there, here, count in _runs(part):
                self._device.copy(target[there : there + count], arena[here : here + count], "kv_out")
        room.ended.record("kv_out")

    def _in(self, transfer: _Transfer, source: torch.Tensor, rows: Sequence[int]) -> None:
        """`rows` of pinned memory to blocks. They travel at once; only the blocks are still of use to others."""
        room, arena = transfer.room, self._arenas["kv_in"]
        room.begun.record("compute")
        for other in self._open.values():
            if other.lane == "kv_out" and not other.slots.isdisjoint(transfer.slots):
                other.room.ended.hold("kv_in")
        for start in range(0, len(rows), len(arena)):
            part = rows[start : start + len(arena)]
            for there, here, count in _runs(part):
                self._device.copy(arena[here : here + count], source[there : there + count], "kv_in")
            if start + len(part) == len(rows):
                room.taken.record("kv_in")
            if start == 0:
                self._follow_users(transfer)
            with self._device.within("kv_in"):
                self._kv.scatter(transfer.index[start : start + len(part)], arena[: len(part)])
        room.ended.record("kv_in")

    def _follow_users(self, transfer: _Transfer) -> None:
        """Blocks are written after computing, and what reads them, is done with what they held."""
        transfer.room.begun.hold("kv_in")
        for other in self._open.values():
            if other.lane == "kv_out" and not other.blocks.isdisjoint(transfer.blocks):
                other.room.taken.hold("kv_in")

    def _room(self) -> _Room:
        return self._free.pop() if self._free else _Room(self._device)

    def _payload(self, room: _Room, count: int) -> torch.Tensor:
        return room.payload(count * self._kv.bytes_per_block).view(count, *self._kv.block_shape)

    def _collect(self) -> None:
        """Give back what is over and nobody waits for."""
        for transfer in list(self._open.values()):
            if not transfer.is_awaited and transfer.room.ended.is_past():
                self._give_back(transfer)

    def _drain(self) -> None:
        with suppress(RuntimeError):  # a device that fails here works on nothing any more
            self._device.drain()

    def _give_back(self, transfer: _Transfer) -> None:
        del self._open[transfer.name]
        self._free.append(transfer.room)


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Consecutive rows as (first row, its place in `rows`, count): one copy each."""
    first = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield rows[first], first, place - first
            first = place
