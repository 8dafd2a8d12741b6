"""A `Device` for tests that captures as a graph does: operators and addresses, not the Python that queued them."""

from collections.abc import Callable
from typing import Any

import torch
from tests.unit.engines.llm.late_device import LateDevice
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

# They wait for the device, or give shapes that depend on values.
UNCAPTURABLE = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.item")


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not str(func).startswith(UNCAPTURABLE), f"{func} in a capture"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class RecordedDevice(LateDevice):
    """What a capture read from outside is read again at each replay from where it lay then, moved or not."""

    def capture(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        with _Recorder() as recorder:
            out = compute()
        assert recorder.calls
        self.captured += 1

        def replay() -> torch.Tensor:
            self.replayed.append(len(out))
            made: dict[int, torch.Tensor] = {}

            def now(tensor: torch.Tensor) -> torch.Tensor:
                return made.get(id(tensor), tensor)

            for func, args, kwargs, outs in recorder.calls:
                again = func(*tree_map_only(torch.Tensor, now, args), **tree_map_only(torch.Tensor, now, kwargs))
                olds, news = (value if isinstance(value, list | tuple) else [value] for value in (outs, again))
                for old, new in zip(olds, news, strict=True):
                    if isinstance(old, torch.Tensor):
                        made[id(old)] = new
            return out if now(out).data_ptr() == out.data_ptr() else out.copy_(now(out))

        return replay
