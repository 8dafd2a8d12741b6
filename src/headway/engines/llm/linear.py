"""Matrix products with fixed weights whose rows do not depend on each other (SPEC B7).

On a CPU three ways, one interface: our own kernel; oneDNN in bf16 where the CPU has units for it; torch in tiles of
fixed size. On an accelerator plain torch, which promises no invariance.
"""

import ctypes
from typing import Protocol

import torch
from torch.nn import functional

from headway.engines.llm.kernels import pointer

_PANEL = 16
TILE_ROWS = 16
_PROBE_ROWS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 32, 48, 64, 100, 256)


class Linear(Protocol):
    """y = x @ weight.T + bias; x is float32 [rows, in], y float32 [rows, out] (a view may be wider in memory)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class NativeLinear:
    """Our kernel: float32 products in ascending k, weights kept as bf16 or float32 panels of 16 outputs."""

    def __init__(self, library: ctypes.CDLL, threads: int, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        kept = weight if weight.dtype == torch.bfloat16 else weight.float()
        self._out, self._in = kept.shape
        self._panels = -(-self._out // _PANEL)
        padding = kept.new_zeros(self._panels * _PANEL - self._out, self._in)
        padded = torch.cat([kept, padding]) if len(padding) else kept
        panels = padded.view(self._panels, _PANEL, self._in)
        if kept.dtype == torch.bfloat16:  # outputs n and n + 8 of a panel share a word
            panels = panels.view(self._panels, 2, _PANEL // 2, self._in).transpose(1, 2).reshape(panels.shape)
        self._weight = panels.transpose(1, 2).contiguous()
        self._pointer = self._weight.data_ptr()  # asked once: 150 products a step
        self._bias = None if bias is None else bias.float()
        self._kernel = library.hw_linear_bf16 if kept.dtype == torch.bfloat16 else library.hw_linear_f32
        self._threads = threads

    @property
    def width(self) -> int:
        """Of a result row in memory."""
        return self._panels * _PANEL

    def parts(self) -> tuple[int, int | None, int, int, int, bool]:
        """weight, bias (addresses), inputs, outputs, panels, whether the weight is bf16."""
        is_bf16 = self._weight.dtype == torch.bfloat16
        return self._pointer, pointer(self._bias), self._in, self._out, self._panels, is_bf16

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        out = x.new_empty(rows, self.width)
        self._kernel(x.data_ptr(), self._pointer, out.data_ptr(), rows, self._in, self._panels, self._threads)
        y = out[:, : self._out]
        return y if self._bias is None else y.add_(self._bias)


class OneDnnLinear:
    """oneDNN with weights packed once; inputs and products in `dtype`, sums in float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype = torch.bfloat16) -> None:
        # Private operators of torch: 1.8 times F.linear at one row on a CPU with bf16 units.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), None)
        self._bias = None if bias is None else bias.to(dtype)
        self._dtype = dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        packed = torch.ops.mkldnn._linear_pointwise
        y: torch.Tensor = packed(x.to(self._dtype), self._weight, self._bias, "none", [], "")
        return y.float()


class TorchLinear:
    """F.linear in float32 on tiles of exactly TILE_ROWS rows, because its kernels differ by the number of rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.float()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        tiles = -(-rows // TILE_ROWS)
        padded = functional.pad(x, (0, 0, 0, tiles * TILE_ROWS - rows))
        cuts = torch.split(padded, TILE_ROWS)
        parts = [functional.linear(tile, self._weight, self._bias) for tile in cuts]
        return torch.cat(parts)[:rows]


class DeviceLinear:
    """F.linear on an accelerator in `dtype`; rows may depend on the batch there.  # never run on a device"""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._weight = weight.to(device, dtype)
        self._bias = None if bias is None else bias.to(device, dtype)
        self._dtype = dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.to(self._dtype), self._weight, self._bias).float()


def is_row_invariant(linear: Linear, width: int) -> bool:
    """Whether rows come out equal to the bit however many neighbours they have."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(max(_PROBE_ROWS) + 3, width, generator=generator)
    whole = linear(x)
    return all(torch.equal(linear(x[3 : 3 + rows].contiguous()), whole[3 : 3 + rows]) for rows in _PROBE_ROWS)
