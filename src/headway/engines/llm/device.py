"""What the engine asks of a device that works on by itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import numpy.typing as npt
import torch

from headway.core.ports import Reserved
from headway.engines.llm.forks import Join

Array = npt.NDArray[Any]  # int32, int64, float32 or float64


Lane = Literal["copy_in", "compute", "copy_out", "kv_in", "kv_out"]


class Event(Protocol):
    """A point in a lane's work. It may be recorded again: whoever waits, waits for the last point before it asked."""

    def record(self, lane: Lane) -> None:
        """The point behind all that the lane was given so far."""
        ...

    def hold(self, lane: Lane) -> None:
        """What the lane is given from here on waits for the point."""
        ...

    def wait(self) -> None:
        """The host waits for the point. Raises RuntimeError when the device failed."""
        ...

    def is_past(self) -> bool:
        """Whether the lane is beyond the point; waits for nothing. Raises RuntimeError when the device failed."""
        ...


class Device(Protocol):
    """Works on by itself, in lanes: each in its own order, and among lanes in none but that of events.

    What torch is told to do with tensors of the device is work of the lane `compute`, but `within` another.
    """

    @property
    def where(self) -> torch.device: ...

    def pinned(self, size: int) -> torch.Tensor:
        """uint8 [size] of host memory that the device can read and write by itself."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, lane: Lane) -> None:
        """Queue a copy between pinned and device memory."""
        ...

    def within(self, lane: Lane) -> AbstractContextManager[None]:
        """What torch is told in here is work of this lane, which alone may touch what is allocated for it."""
        ...

    def event(self) -> Event: ...

    def reserved(self) -> Reserved | None:
        """What its caching allocator has taken; None: it has none."""
        ...

    def drain(self) -> None:
        """Wait until no lane has work left. Raises RuntimeError when the device failed."""
        ...

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Record the work of `compute`; the returned call queues it again and returns the same, refilled tensor.

        `compute` may `fork`. Raises InvariantError when it leaves a branch that it did not join, and when it uses a
        copy lane or an event: a replay would not repeat that.
        """
        ...

    def fork(self, work: Callable[[], None]) -> Join:
        """Within a capture: the work on a stream of its own, from here until the returned call. Elsewhere: in line."""
        ...
