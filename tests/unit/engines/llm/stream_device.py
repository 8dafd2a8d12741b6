"""A `Device` for tests that does its work late: three lanes, each a queue, run in an order that a seed chooses.

Only events bind the lanes to each other, so work whose wait is missing meets memory that is not written yet, or that is
written again already. Tensors of the device are `OnDevice`: what torch is told to do with them, it does when the lane
`compute` comes to it. Memory holds values that fit nowhere until something is written there.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from headway.core.errors import InvariantError
from headway.engines.llm.device import Lane

LANES: tuple[Lane, ...] = ("copy_in", "compute", "copy_out")
_WAITING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}
_EAGERNESS = (0.0, 0.3, 0.9, 1.0)


class OnDevice(torch.Tensor):
    """`memory` is where it lies; the host must not look at it by itself."""

    memory: torch.Tensor

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> "OnDevice":
        # A view of a tensor made outside of inference mode must not be one made inside.
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                memory.size(),
                strides=memory.stride(),
                storage_offset=memory.storage_offset(),
                dtype=memory.dtype,
                device="meta",
                requires_grad=False,
            )
        made.memory = memory
        return made

    def __repr__(self) -> str:  # torch's own would read it
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise InvariantError(f"{func} on a tensor of a StreamDevice outside of its mode")


class StreamEvent:
    """Each record makes another ticket; `hold` and `wait` take the last."""

    def __init__(self, device: "StreamDevice") -> None:
        self._device = device
        self._ticket: tuple[Lane, int] | None = None

    def record(self, lane: Lane) -> None:
        self._device.touch("record")
        self._ticket = (lane, self._device.given[lane])

    def hold(self, lane: Lane) -> None:
        self._device.touch("hold")
        self._device.give(lane, self._ticket or ("compute", 0))

    def wait(self) -> None:
        self._device.touch("wait")
        if self._ticket is not None:
            self._device.reach(*self._ticket)


class StreamDevice:
    """`mode()` must be entered wherever torch is told something; `fail`: the chance that a call raises RuntimeError."""

    where = torch.device("meta")

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"streams-{seed}")
        self.eager = {lane: self._rng.choice(_EAGERNESS) for lane in LANES}
        self.fail = 0.0
        self.replayed = self.stalls = 0  # stalls: the host waited for computing
        self.given: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._done: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._queues: dict[Lane, deque[Callable[[], Any] | tuple[Lane, int]]] = {lane: deque() for lane in LANES}
        self._recording: list[Callable[[], Any]] | None = None

    def mode(self) -> TorchDispatchMode:
        return _Queueing(self)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.full((size,), 0xA5, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor, lane: Lane) -> None:
        self.touch("copy")
        there, here = (part.memory if isinstance(part, OnDevice) else part for part in (target, source))
        self.give(lane, lambda: there.copy_(here))

    def event(self) -> StreamEvent:
        return StreamEvent(self)

    def drain(self) -> None:
        for lane in LANES:
            self.reach(lane, self.given[lane])

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self._recording = recorded = []
        try:
            out = compute()
        finally:
            self._recording = None

        def replay() -> torch.Tensor:
            self.replayed += 1
            for work in recorded:
                self.give("compute", work)
            return out

        return replay

    def touch(self, what: str) -> None:
        """Every call that speaks to a lane comes here."""
        if self._recording is not None:
            raise InvariantError(f"{what} within a capture")
        if self._rng.random() < self.fail:
            raise RuntimeError(f"the device failed at {what}")

    def give(self, lane: Lane, work: Callable[[], Any] | tuple[Lane, int]) -> None:
        """Queue work, or a ticket that must be reached first; then let lanes run on as they like."""
        self.given[lane] += 1
        self._queues[lane].append(work)
        for other in self._rng.sample(LANES, len(LANES)):
            while self._queues[other] and self._rng.random() < self.eager[other] and self._may_run(other):
                self._run_one(other)

    def compute(self, work: Callable[[], Any]) -> None:
        if self._recording is not None:
            self._recording.append(work)
        else:
            self.give("compute", work)

    def reach(self, lane: Lane, ticket: int) -> None:
        """Run what must have run before the lane is there, and nothing else."""
        while self._done[lane] < ticket:
            self._run_one(lane)

    def stall(self) -> None:
        """The host waits for all computing."""
        self.touch("stall")
        self.stalls += 1
        self.reach("compute", self.given["compute"])

    def _may_run(self, lane: Lane) -> bool:
        head = self._queues[lane][0]
        return callable(head) or self._done[head[0]] >= head[1]

    def _run_one(self, lane: Lane) -> None:
        head = self._queues[lane][0]
        if not callable(head):
            self.reach(*head)
        self._queues[lane].popleft()
        self._done[lane] += 1
        if callable(head):
            with torch.inference_mode(), _disable_current_modes():
                head()


class _Queueing(TorchDispatchMode):
    """Hands operations on tensors of the device to its lane `compute`; those of the host alone run at once."""

    def __init__(self, device: StreamDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = (part for part in (*args, *kwargs.values()) if isinstance(part, torch.device))
        there = next(named, None)
        is_factory = there is not None and there == self._device.where
        if not is_factory and not any(_is_there(part) for part in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if func._can_decompose():
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        comes_back = there is not None and not is_factory
        if is_factory:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if comes_back or func in _WAITING:
            self._device.stall()
            return func(*_each(_memory, args), **_each(_memory, kwargs))
        if func.is_view:
            return _each(_on_device, func(*_each(_memory, args), **_each(_memory, kwargs)))
        return self._queued(func, args, kwargs)

    def _queued(self, func: Any, args: Any, kwargs: Any) -> Any:
        # A tensor of the host is read at once, as torch does with memory that is not pinned.
        taken = _each(_taken, (args, kwargs))
        written = [
            argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments
        ]
        if any(written):
            self._device.compute(lambda: func(*taken[0], **taken[1]))
            return args[written.index(True)]
        outs = self._allocated(func, taken)

        def work() -> None:
            results = func(*taken[0], **taken[1])
            for out, result in zip(outs, _listed(results), strict=True):
                out.memory.copy_(result)

        self._device.compute(work)
        return outs[0] if len(func._schema.returns) == 1 else tuple(outs)

    def _allocated(self, func: Any, taken: Any) -> list[OnDevice]:
        args, kwargs = _each(_shape_only, taken)
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        outs = []
        for shape in _listed(func(*args, **kwargs)):
            out = OnDevice(torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype))
            _spoil(out.memory)
            outs.append(out)
        if func in (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default):
            # Its last user may be queued still.
            self._device.compute(lambda: [_spoil(out.memory) for out in outs])
        return outs


def _is_there(part: Any) -> bool:
    return any(map(_is_there, part)) if isinstance(part, list) else isinstance(part, OnDevice)


def _each(change: Callable[[Any], Any], part: Any) -> Any:
    """`part` with every leaf of its lists, tuples and dicts changed."""
    if isinstance(part, (list, tuple)):
        return type(part)([_each(change, inner) for inner in part])
    if isinstance(part, dict):
        return {key: _each(change, inner) for key, inner in part.items()}
    return change(part)


def _listed(found: Any) -> Sequence[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def _memory(part: Any) -> Any:
    return part.memory if isinstance(part, OnDevice) else part


def _on_device(part: Any) -> Any:
    return OnDevice(part) if isinstance(part, torch.Tensor) else part


def _taken(part: Any) -> Any:
    if isinstance(part, OnDevice):
        return part.memory
    return part.clone() if isinstance(part, torch.Tensor) else part


def _shape_only(part: Any) -> Any:
    if not isinstance(part, torch.Tensor):
        return part
    return torch.empty_strided(part.size(), part.stride(), dtype=part.dtype, device="meta")


def _spoil(memory: torch.Tensor) -> None:
    if memory.dtype == torch.bool:
        memory.fill_(True)
    elif memory.dtype == torch.uint8:
        memory.fill_(0xA5)  # as an int32 or int64, it is no index of anything
    elif memory.dtype.is_floating_point:
        memory.fill_(torch.nan)
    else:
        memory.fill_(torch.iinfo(memory.dtype).max)
