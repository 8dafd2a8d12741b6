"""Protocols that adapters, engines and nodes implement. Kept small; each stands beside what the ring needs of it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import msgspec

from headway.core.artifacts import Denoised, StagePeaks
from headway.core.effects import Effect
from headway.core.events import Event, StepDone
from headway.core.ids import NodeId
from headway.core.plans import DenoisePlan, StepPlan


class Node(Protocol):
    """A state owner. Drivers call `handle` with events in `at_ns` order and perform what it returns."""

    @property
    def id(self) -> NodeId: ...

    def handle(self, event: Event) -> list[Effect]: ...

    def check_invariants(self) -> None: ...


class ModelLimits(msgspec.Struct, frozen=True):
    """What an engine can hold, known after load."""

    model: str
    vocab_size: int
    max_model_len: int
    block_size: int
    kv_blocks: int
    kv_bytes_per_block: int
    host_slots: int  # swap space, in blocks
    layers: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str


class LlmEngine(Protocol):
    """Performs StepPlans in order on one model. Called from one thread."""

    @property
    def limits(self) -> ModelLimits: ...

    def run(self, plan: StepPlan) -> StepDone:
        """Run one step to its end and return its results. Raises EngineError; the batch is then void."""
        ...

    def launch(self, plan: StepPlan) -> Callable[[], StepDone]:
        """Start a step; the returned call waits for its results. On a synchronous device it has already run."""
        ...

    def read_blocks(self, blocks: Sequence[int]) -> bytes:
        """KV of these blocks, for a hand-off or migration."""
        ...

    def launch_read(self, blocks: Sequence[int]) -> Callable[[], bytes]:
        """Start `read_blocks`; the returned call, made once and in any thread, waits for the bytes."""
        ...

    def write_blocks(self, blocks: Sequence[int], payload: bytes) -> None:
        """Write KV read elsewhere by `read_blocks` of the same layout."""
        ...

    def stage_write(self, blocks: Sequence[int], payload: bytes) -> Callable[[], None]:
        """Begin `write_blocks`, in any thread; the returned call, made once and in the engine's, does the rest."""
        ...

    def close(self) -> None: ...


class DenoiseEngine(Protocol):
    """Performs DenoisePlans in order on one model. Called from one thread."""

    def run(self, plan: DenoisePlan) -> Denoised:
        """Run one plan to its end. Rows that fail by themselves are told; any exception voids the whole plan."""
        ...


class DeviceMemory(msgspec.Struct, frozen=True):
    """Of one device, in bytes: all of it, what this process holds of it, and what nobody holds."""

    total: int
    held: int
    free: int


class Reserved(msgspec.Struct, frozen=True):
    """What a device's caching allocator has for this process: bytes that it holds now, and all bytes and segments that
    it ever asked the device for. The latter two never fall, so equal ones tell that nothing new was taken."""

    held: int
    taken: int
    segments: int


@runtime_checkable
class ReservesMemory(Protocol):
    """An engine that may compute on a device with a caching allocator."""

    def reserved(self) -> Reserved | None:
        """None: its device has no such allocator."""
        ...


@runtime_checkable
class CountsMemory(Protocol):
    """A DenoiseEngine that can tell what its work holds."""

    @property
    def tile_pixels(self) -> int | None:
        """Of a frame, most that is decoded at once; None: whole frames."""
        ...

    @property
    def joined_tokens_max(self) -> int | None:
        """Latent tokens of a pass up to which both passes of a guided step are one; None: they always are."""
        ...

    def device_memory(self) -> DeviceMemory | None:
        """Of an accelerator; None: it computes in the memory of its host."""
        ...

    @property
    def encodes_max(self) -> int:
        """Requests whose pictures are encoded beside each other."""
        ...

    @property
    def decodes_max(self) -> int:
        """Requests that are decoded beside each other."""
        ...

    @property
    def joined_pixels_max(self) -> int:
        """Pixels of requests that are decoded in one pass; 0: each is by itself."""
        ...

    def stage_bytes(self) -> int:
        """What processes of stages hold before they work. Waits until they have loaded their weights."""
        ...

    def run_counted(self, plan: DenoisePlan) -> tuple[Denoised, StagePeaks]:
        """`run`, counting what its stages hold. Slow: for a warm-up."""
        ...


class Span(Protocol):
    """Opens a trace range; a no-op where nobody listens."""

    def __call__(self, name: str, **attributes: int | str) -> AbstractContextManager[None]: ...
