"""The only file that speaks to CUDA.  # never run on a device"""

from collections.abc import Callable

import torch

from headway.core.errors import ConfigError
from headway.engines.llm.device import Array

_WARM_RUNS = 2


class CudaDevice:
    """A `Device`: one stream, so work queued later sees what was queued before without further events."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(
                "device = cuda: torch sees no CUDA device; use device = cpu, or install a torch with CUDA"
            )
        self.where = torch.device("cuda", torch.cuda.current_device())
        self._pool = torch.cuda.graph_pool_handle()

    def pinned(self, array: Array) -> torch.Tensor:
        """torch's allocator takes the memory back when the copies queued from it are done."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if array.size else tensor

    def fetch(self, tensor: torch.Tensor) -> Callable[[], Array]:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has no type
        copied.record()

        def wait() -> Array:
            copied.synchronize()
            found: Array = host.numpy()
            return found

        return wait

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        current = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no type
        aside.wait_stream(current)
        # Libraries choose algorithms and allocate in their first runs, which a graph must not hold.
        with torch.cuda.stream(aside):
            for _ in range(_WARM_RUNS):
                compute()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile; only this one's work belongs to the graph.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay
