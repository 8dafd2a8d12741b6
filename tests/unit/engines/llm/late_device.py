"""A `Device` for tests: computes on the CPU at once, keeps account of what was waited for, captured and replayed."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from headway.core.ports import Reserved
from headway.engines.llm.device import Lane
from headway.engines.llm.forks import Join, in_line


class LateDevice:
    where = torch.device("cpu")

    def __init__(self) -> None:
        self.fetched, self.waited, self.captured, self.replayed = 0, set[int](), 0, list[int]()

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor, lane: Lane) -> None:
        self.fetched += lane == "copy_out"
        target.copy_(source)

    def within(self, lane: Lane) -> AbstractContextManager[None]:
        return nullcontext()

    def event(self) -> "LateEvent":
        return LateEvent(self)

    def reserved(self) -> Reserved | None:
        """It computes in host memory."""
        return None

    def drain(self) -> None:
        """Nothing is ever queued."""

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """As a graph does, a replay fills the tensor that the capture returned."""
        out = compute()
        self.captured += 1

        def replay() -> torch.Tensor:
            self.replayed.append(len(out))
            return out.copy_(compute())

        return replay

    def fork(self, work: Callable[[], None]) -> Join:
        """One thing after the other is an order that branches may have."""
        return in_line(work)


class LateEvent:
    """Knows the number of the copy to the host that it stands behind."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self._number = device, -1

    def record(self, lane: Lane) -> None:
        self._number = self._device.fetched - 1 if lane == "copy_out" else -1

    def hold(self, lane: Lane) -> None:
        """Everything was done at once."""

    def wait(self) -> None:
        if self._number >= 0:
            self._device.waited.add(self._number)

    def is_past(self) -> bool:
        return True
