"""A `Device` for tests that does its work late: each lane is a queue, run in an order that a seed chooses.

Only events bind the lanes to each other, so work whose wait is missing meets memory that is not written yet, or that is
written again already. Tensors of the device are `OnDevice`: what torch is told to do with them, it does when its lane
comes to it. Memory holds values that fit nowhere until something is written there. A captured graph replays its
branches in a lane of their own.

Whatever the order, lanes that touch the same memory unordered raise `Race`, in the call that runs the second of them.
But a gather of pages that races returns garbage, and writes that come after it may race with it: attention gathers more
pages than it shows to a row, and what is masked may be anything.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import torch
from tests.unit.engines.llm.races import Clocks, Race, Races, Touch, merge
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from headway.core.errors import InvariantError
from headway.core.ports import Reserved
from headway.engines.llm.device import Lane
from headway.engines.llm.forks import Forks, Join

LANES = ("copy_in", "compute", "copy_out", "kv_in", "kv_out", "aside")
_INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}
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


class Work(NamedTuple):
    """Something to run, and what it touches. `gathered`: what it fills with garbage where a read of `pages` races."""

    run: Callable[[], Any]
    reads: Sequence[Touch] = ()
    writes: Sequence[Touch] = ()
    pages: Touch | None = None
    gathered: torch.Tensor | None = None


class Ticket(NamedTuple):
    """Wait until `lane` has done so much."""

    lane: str
    count: int


class StreamEvent:
    """Each record makes another ticket; `hold` and `wait` take the last."""

    def __init__(self, device: "StreamDevice") -> None:
        self._device = device
        self._ticket = Ticket("compute", 0)

    def record(self, lane: Lane) -> None:
        self._device.touch("record")
        self._ticket = Ticket(lane, self._device.given[lane])

    def hold(self, lane: Lane) -> None:
        self._device.touch("hold")
        self._device.give(lane, self._ticket)

    def wait(self) -> None:
        self._device.touch("wait")
        self._device.await_(self._ticket)

    def is_past(self) -> bool:
        return self._device.is_past(self._ticket)


class StreamDevice:
    """`mode()` must be entered wherever torch is told something; `fail`: the chance that a call raises RuntimeError."""

    where = torch.device("meta")

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"streams-{seed}")
        self.eager = {lane: self._rng.choice(_EAGERNESS) for lane in LANES}
        self.fail = 0.0
        self.replayed = self.branches = 0
        self.stalls = 0  # the host waited for computing
        self.given = dict.fromkeys(LANES, 0)
        self._done = dict.fromkeys(LANES, 0)
        self._queues: dict[str, deque[tuple[Work | Ticket, dict[str, int]]]] = {lane: deque() for lane in LANES}
        self._recording: list[tuple[str, Work | None]] | None = None  # None: the lane waits for the other
        self._lane = "compute"
        self._forks = Forks(self._split)
        self._clocks = Clocks(LANES)
        self.races = Races(self._clocks)

    def mode(self) -> TorchDispatchMode:
        return _Queueing(self)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.full((size,), 0xA5, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor, lane: Lane) -> None:
        self.touch("copy")
        there, here = (part.memory if isinstance(part, OnDevice) else part for part in (target, source))
        self.give(lane, Work(lambda: there.copy_(here), reads=[(here, None)], writes=[(there, None)]))

    def event(self) -> StreamEvent:
        return StreamEvent(self)

    def reserved(self) -> Reserved | None:
        """It computes in host memory."""
        return None

    def drain(self) -> None:
        for lane in LANES:
            self.await_(Ticket(lane, self.given[lane]))

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self._recording = recorded = []
        try:
            with self._forks.region():
                out = compute()
        finally:
            self._recording = None

        def replay() -> torch.Tensor:
            self.replayed += 1
            for lane, work in recorded:
                other = "aside" if lane == "compute" else "compute"
                self.give(lane, work or Ticket(other, self.given[other]))
            return out

        return replay

    def fork(self, work: Callable[[], None]) -> Join:
        return self._forks.fork(work)

    def _split(self, work: Callable[[], None]) -> Join:
        recording = self._recording
        assert recording is not None
        self.branches += 1
        recording.append(("aside", None))
        with self._lane_is("aside"):
            work()
        return lambda: recording.append(("compute", None))

    @contextmanager
    def within(self, lane: Lane) -> Iterator[None]:
        self.touch("within")
        with self._lane_is(lane):
            yield

    @contextmanager
    def _lane_is(self, lane: str) -> Iterator[None]:
        before, self._lane = self._lane, lane
        try:
            yield
        finally:
            self._lane = before

    def touch(self, what: str) -> None:
        """Every call that speaks to a lane comes here."""
        if self._recording is not None:
            raise InvariantError(f"{what} within a capture")
        if self._rng.random() < self.fail:
            raise RuntimeError(f"the device failed at {what}")

    def give(self, lane: str, work: Work | Ticket) -> None:
        """Queue work, or a ticket that must be reached first; then let lanes run on as they like."""
        self.given[lane] += 1
        self._queues[lane].append((work, dict(self._clocks.host)))
        for other in self._rng.sample(LANES, len(LANES)):
            while self._queues[other] and self._rng.random() < self.eager[other] and self._may_run(other):
                self._run_one(other)

    def queue(self, work: Work) -> None:
        """What torch was told to do."""
        if self._recording is not None:
            self._recording.append((self._lane, work))
        else:
            self.give(self._lane, work)

    def reach(self, lane: str, count: int) -> None:
        """Run what must have run before the lane is there, and nothing else."""
        while self._done[lane] < count:
            self._run_one(lane)

    def await_(self, ticket: Ticket) -> None:
        """The host waits, and what it gives from here on comes after."""
        self.reach(*ticket)
        merge(self._clocks.host, self._clocks.at(*ticket))

    def is_past(self, ticket: Ticket) -> bool:
        """What was seen to be over comes before all that the host gives from here on."""
        is_past = self._done[ticket.lane] >= ticket.count
        if is_past:
            merge(self._clocks.host, self._clocks.at(*ticket))
        return is_past

    def behind(self, lane: Lane) -> int:
        """What the lane was given and has not done."""
        return self.given[lane] - self._done[lane]

    def stall(self) -> None:
        """The host waits for all computing."""
        self.touch("stall")
        self.stalls += 1
        self.await_(Ticket("compute", self.given["compute"]))

    def _may_run(self, lane: str) -> bool:
        head, _ = self._queues[lane][0]
        return isinstance(head, Work) or self._done[head.lane] >= head.count

    def _run_one(self, lane: str) -> None:
        head, known = self._queues[lane][0]
        if isinstance(head, Ticket):
            self.reach(*head)
            merge(known, self._clocks.at(*head))
        self._queues[lane].popleft()
        self._done[lane] += 1
        self._clocks.tick(lane, known)
        if isinstance(head, Work):
            with torch.inference_mode(), _disable_current_modes():
                self._check(lane, head)
                head.run()
                if head.pages is not None and head.gathered is not None:
                    self.races.spoil(lane, head.pages, head.gathered)

    def _check(self, lane: str, work: Work) -> None:
        for touches, check in ((work.reads, self.races.read), (work.writes, self.races.write)):
            for touch in touches:
                if not check(lane, touch):
                    raise Race(f"{lane} {check.__name__}s {tuple(touch[0].shape)} that another lane has at that time")


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
        tensors = [part for part in _leaves((args, kwargs)) if isinstance(part, OnDevice)]
        if any(written):
            target = args[written.index(True)]
            touched: Touch = (target.memory, ("rows", taken[0][1]) if func in _INDEXED else None)
            reads: list[Touch] = [(part.memory, None) for part in tensors if part is not target]
            self._device.queue(Work(lambda: func(*taken[0], **taken[1]), reads=reads, writes=[touched]))
            return target
        outs = self._allocated(func, taken)

        def work() -> None:
            results = func(*taken[0], **taken[1])
            for out, result in zip(outs, _listed(results), strict=True):
                out.memory.copy_(result)

        writes: list[Touch] = [(out.memory, None) for out in outs]
        if func in _INDEXED:
            pages = (args[0].memory, ("rows", taken[0][1]))
            reads = [(part.memory, None) for part in tensors if part is not args[0]]
            gathered = outs[0].memory if outs[0].memory.is_floating_point() else None
            if gathered is None:
                self._device.queue(Work(work, reads=[*reads, pages], writes=writes))
            else:
                self._device.queue(Work(work, reads=reads, writes=writes, pages=pages, gathered=gathered))
        elif func is torch.ops.aten.index_select.default:
            selected: list[Touch] = [(args[0].memory, ("select", taken[0][1:])), (args[2].memory, None)]
            self._device.queue(Work(work, reads=selected, writes=writes))
        else:
            self._device.queue(Work(work, reads=[(part.memory, None) for part in tensors], writes=writes))
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
            touched: list[Touch] = [(out.memory, None) for out in outs]
            self._device.queue(Work(lambda: [_spoil(out.memory) for out in outs], writes=touched))
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


def _leaves(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for inner in part:
            yield from _leaves(inner)
    else:
        yield part


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
