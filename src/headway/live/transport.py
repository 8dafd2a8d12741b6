"""Copies KV blocks between replicas: read in the engine's thread, sent as frames through the hub, written there."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from headway.core.effects import AbortCopy
from headway.core.errors import EngineError
from headway.core.events import CopyArrived, CopyDone, Event
from headway.core.ids import NodeId, TransferId
from headway.core.plans import CopyPlan
from headway.core.units import Ns
from headway.live.wire import Blocks, Frame, copies

T = TypeVar("T")


class BlockStore(Protocol):
    """The part of an engine that gives and takes KV (`core.ports.LlmEngine`)."""

    def launch_read(self, blocks: Sequence[int]) -> Callable[[], bytes]: ...

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]: ...


class EngineCalls(Protocol):
    """Runs a function in the engine's thread, after the plans queued so far (`EngineThread`)."""

    def call(self, function: Callable[[], T]) -> "asyncio.Future[T]": ...

    def fetch(self, function: Callable[[], Callable[[], T]]) -> "asyncio.Future[T]":
        """As `call`, then what the function returned, where waiting for it holds up no plan."""
        ...

    def bring(self, function: Callable[[], Callable[[], T]]) -> "asyncio.Future[T]":
        """Call `function` where it holds up no plan, then as `call` what it returned; in the order of these calls."""
        ...


class BlockTransport:
    """Both ends of the copies of one replica.

    The engine's queue orders everything: a read comes after the step that wrote its blocks (that plan was handed over
    before), a write before the step that uses them.
    """

    def __init__(
        self,
        node: NodeId,
        store: BlockStore,
        engine: EngineCalls,
        send: Callable[[Frame], None],
        feed: Callable[[Callable[[Ns], Event]], None],
        block_bytes: int,
    ) -> None:
        self._node, self._store, self._engine, self._send, self._feed = node, store, engine, send, feed
        self._block_bytes = block_bytes
        self._outgoing: dict[TransferId, list[asyncio.Task[None]]] = {}
        self._aborted: dict[TransferId, None] = {}
        self._unwritten: dict[tuple[TransferId, int, int], None] = {}  # until their last frame

    def start_copy(self, plan: CopyPlan) -> None:
        """Begin one stage."""
        task = asyncio.get_running_loop().create_task(self._copy(plan))
        self._outgoing.setdefault(plan.transfer, []).append(task)
        task.add_done_callback(lambda done: self._forget(plan.transfer, done))

    def abort_copy(self, effect: AbortCopy) -> None:
        """Stop a transfer; CopyDone(ok=False) follows when its last frame is out."""
        transfer = effect.transfer
        if self._outgoing.get(transfer):
            self._aborted[transfer] = None
        else:
            self._feed(lambda at_ns: CopyDone(at_ns, f"abort-{transfer}", transfer, -1, -1, ok=False))

    def arrived(self, frame: Blocks) -> None:
        """Blocks from a peer: write them, and say so after the last of the stage."""
        written = self._engine.bring(partial(self._store.stage_write, frame.blocks, frame.payload))
        written.add_done_callback(lambda future: self._written(frame, future))

    def _written(self, frame: Blocks, future: "asyncio.Future[None]") -> None:
        """A stage that could not be written whole is never acknowledged; its sender times out."""
        stage = (frame.transfer, frame.stage, frame.layer)
        if future.exception() is not None:
            self._unwritten[stage] = None
        if frame.last:
            is_whole = stage not in self._unwritten
            self._unwritten.pop(stage, None)
            if not is_whole:
                return
            self._feed(
                lambda at_ns: CopyArrived(at_ns, f"blocks-{frame.src}", frame.transfer, frame.stage, frame.layer)
            )

    async def _copy(self, plan: CopyPlan) -> None:
        parts = copies(plan, self._block_bytes)
        ok = True
        for number, (source, destination) in enumerate(parts):
            try:
                payload = await self._engine.fetch(partial(self._store.launch_read, source))
            except EngineError:
                ok = False
            ok = ok and plan.transfer not in self._aborted
            if not ok:
                break
            last = number == len(parts) - 1
            frame = Blocks(self._node, plan.peer, plan.transfer, plan.stage, plan.layer, destination, payload, last)
            self._send(frame)
        self._feed(lambda at_ns: CopyDone(at_ns, f"copy-{plan.transfer}", plan.transfer, plan.stage, plan.layer, ok=ok))

    def _forget(self, transfer: TransferId, task: "asyncio.Task[None]") -> None:
        tasks = self._outgoing[transfer]
        tasks.remove(task)
        if not tasks:
            del self._outgoing[transfer]
            self._aborted.pop(transfer, None)
