"""The only file that speaks to CUDA.  # never run on a device"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from headway.core.errors import ConfigError, InvariantError
from headway.core.ports import Reserved
from headway.engines.llm.device import Lane
from headway.engines.llm.forks import Forks, Join
from headway.engines.reserved import reserved_of

_WARM_RUNS = 2


class CudaDevice:
    """A `Device`: the lane `compute` is the stream that is current, each copy lane a stream of its own."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(
                "device = cuda: torch sees no CUDA device; use device = cpu, or install a torch with CUDA"
            )
        self.where = torch.device("cuda", torch.cuda.current_device())
        self._pool = torch.cuda.graph_pool_handle()
        self._copying: dict[Lane, torch.cuda.Stream] = {
            "copy_in": torch.cuda.Stream(),  # type: ignore[no-untyped-call]  # torch has no type
            "copy_out": torch.cuda.Stream(),  # type: ignore[no-untyped-call]  # torch has no type
            "kv_in": torch.cuda.Stream(),  # type: ignore[no-untyped-call]  # torch has no type
            "kv_out": torch.cuda.Stream(),  # type: ignore[no-untyped-call]  # torch has no type
        }
        self._is_capturing = False
        self._forks = Forks(self._split)
        self._sides: list[torch.cuda.Stream] = []  # for branches of captures; none has work that is not joined

    def stream(self, lane: Lane) -> torch.cuda.Stream:
        """Raises InvariantError while a graph is captured: no lane was forked into it, so a replay would not see it."""
        if self._is_capturing:
            raise InvariantError(f"lane {lane} is used within a capture")
        return torch.cuda.current_stream() if lane == "compute" else self._copying[lane]

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, lane: Lane) -> None:
        with torch.cuda.stream(self.stream(lane)):
            target.copy_(source, non_blocking=True)

    @contextmanager
    def within(self, lane: Lane) -> Iterator[None]:
        with torch.cuda.stream(self.stream(lane)):
            yield

    def event(self) -> "CudaEvent":
        return CudaEvent(self)

    def reserved(self) -> Reserved | None:
        return reserved_of(self.where)

    def drain(self) -> None:
        """The copy lanes hold work that computing waits for, and the other way round: all of the device."""
        torch.cuda.synchronize(self.where)

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        current = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no type
        aside.wait_stream(current)
        # Libraries choose algorithms and allocate in their first runs, which a graph must not hold.
        with torch.cuda.stream(aside):
            for _ in range(_WARM_RUNS):
                with self._forks.region():
                    compute()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        self._is_capturing = True
        try:
            # Other threads may use the device meanwhile; only this one's work belongs to the graph.
            with (
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
                self._forks.region(),
            ):
                out = compute()
        finally:
            self._is_capturing = False

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    def fork(self, work: Callable[[], None]) -> Join:
        return self._forks.fork(work)

    def _split(self, work: Callable[[], None]) -> Join:
        """A side stream enters the capture by waiting for the capturing one, which waits for it in turn at the join."""
        capturing = torch.cuda.current_stream()
        side = self._sides.pop() if self._sides else torch.cuda.Stream()  # type: ignore[no-untyped-call]  # no type
        side.wait_stream(capturing)

        def join() -> None:
            capturing.wait_stream(side)
            self._sides.append(side)

        is_done = False
        try:
            with torch.cuda.stream(side):
                work()
            is_done = True
        finally:
            if not is_done:
                join()
        return join


class CudaEvent:
    """An `Event` that the host waits for asleep."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has no type

    def record(self, lane: Lane) -> None:
        self._event.record(self._device.stream(lane))

    def hold(self, lane: Lane) -> None:
        self._device.stream(lane).wait_event(self._event)

    def wait(self) -> None:
        self._event.synchronize()

    def is_past(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # torch has no type
