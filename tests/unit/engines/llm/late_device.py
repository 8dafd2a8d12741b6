"""A `Device` for tests: computes on the CPU at once, keeps account of what was waited for, captured and replayed."""

from collections.abc import Callable

import torch

from headway.engines.llm.device import Array


class LateDevice:
    where = torch.device("cpu")

    def __init__(self) -> None:
        self.fetched, self.waited, self.captured, self.replayed = 0, set[int](), 0, list[int]()

    def pinned(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array.copy())

    def fetch(self, tensor: torch.Tensor) -> Callable[[], Array]:
        host, number = tensor.clone(), self.fetched
        self.fetched += 1

        def wait() -> Array:
            self.waited.add(number)
            return host.numpy()

        return wait

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """As a graph does, a replay fills the tensor that the capture returned."""
        out = compute()
        self.captured += 1

        def replay() -> torch.Tensor:
            self.replayed.append(len(out))
            return out.copy_(compute())

        return replay
