"""One decoder layer as its parts, and all layers of a CPU model as one call of the C++ kernels."""

import ctypes
from collections.abc import Sequence

import msgspec
import torch

from headway.engines.llm.config import ModelConfig
from headway.engines.llm.kv import KvPool
from headway.engines.llm.linear import Linear, NativeLinear
from headway.engines.llm.ops import HeadNorms, NativeOps, Rows


class Layer(msgspec.Struct, frozen=True):
    input_norm: torch.Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class _Product(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "panels", "is_bf16")),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("input_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, _Product) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
    ]


_SCRATCH = ("x", "qkv", "attended", "gate_up", "active", "delta")
_POINTERS = (
    *("residual", *_SCRATCH, "cosines", "sines"),
    *("positions", "tables", "owners", "contexts", "starts", "slots"),
)
_SIZES = ("rows", "tiles", "table_stride", "hidden", "feed_forward", "heads", "kv_heads", "head_dim", "block")


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("kept", ctypes.c_void_p),
        ("kept_rows", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
    ]


class NativeStack:
    """The layers of a model whose every product and operation is a C++ kernel: the same operations, one call."""

    def __init__(self, config: ModelConfig, ops: NativeOps, layers: Sequence[Layer]) -> None:
        self._config, self._ops, self._layers = config, ops, layers
        self._array = (_Layer * len(layers))()
        for filled, layer in zip(self._array, layers, strict=True):
            filled.input_norm, filled.mlp_norm = layer.input_norm.data_ptr(), layer.mlp_norm.data_ptr()
            if layer.head_norms is not None:
                filled.q_norm, filled.k_norm = layer.head_norms.query.data_ptr(), layer.head_norms.key.data_ptr()
            for name, linear in _products(layer).items():
                setattr(filled, name, _Product(*linear.parts()))
        first = _products(layers[0])
        self._widths = (
            *(config.hidden, first["qkv"].width, config.heads * config.head_dim),
            *(first["gate_up"].width, config.feed_forward, first["down"].width),
        )
        self._step = _Step(
            cosines=ops.rope.cosines.data_ptr(),
            sines=ops.rope.sines.data_ptr(),
            hidden=config.hidden,
            feed_forward=config.feed_forward,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block=ops.block_size,
            eps=config.norm_eps,
            scale=config.head_dim**-0.5,
            threads=ops.threads,
        )
        self._scratch: tuple[torch.Tensor, ...] = ()
        self._kv: KvPool | None = None

    @staticmethod
    def suits(layers: Sequence[Layer]) -> bool:
        return bool(layers) and all(
            isinstance(linear, NativeLinear)
            for layer in layers
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)
        )

    def run(
        self, residual: torch.Tensor, rows: Rows, kv: KvPool, kept: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual of the rows `kept` (int64, ascending), and what is left to add to it; KV of all rows is stored.

        `residual` [rows, hidden] is used up. The second result is valid until the next run: it lies in buffers that
        stand from step to step.
        """
        if self._kv is not kv:
            for filled, (keys, values) in zip(self._array, kv.layers, strict=True):
                filled.keys, filled.values = keys.data_ptr(), values.data_ptr()
            self._kv = kv
        count, step = len(residual), self._step
        if not self._scratch or len(self._scratch[0]) < count:
            self._grow(residual)
        step.residual = residual.data_ptr()
        for name, tensor in _of_rows(rows):
            setattr(step, name, tensor.data_ptr())
        step.rows, step.tiles = count, rows.tile_starts.shape[0] - 1
        step.table_stride = rows.tables.stride(0)
        step.kept, step.kept_rows = kept.data_ptr(), len(kept)
        library = self._ops.library
        library.hw_layers(ctypes.addressof(self._array), len(self._array), ctypes.addressof(step))
        return residual[: len(kept)], self._scratch[-1][: len(kept), : self._config.hidden]

    def _grow(self, residual: torch.Tensor) -> None:
        """Buffers that hold as many rows; fresh ones every step would cost page faults, or ask for another malloc."""
        self._scratch = tuple(residual.new_empty(len(residual), width) for width in self._widths)
        for name, tensor in zip(_SCRATCH, self._scratch, strict=True):
            setattr(self._step, name, tensor.data_ptr())


def _of_rows(rows: Rows) -> tuple[tuple[str, torch.Tensor], ...]:
    return (
        *(("positions", rows.positions), ("tables", rows.tables), ("owners", rows.owners)),
        *(("contexts", rows.contexts), ("starts", rows.tile_starts), ("slots", rows.slots)),
    )


def _products(layer: Layer) -> dict[str, NativeLinear]:
    named = {"qkv": layer.qkv, "out": layer.out, "gate_up": layer.gate_up, "down": layer.down}
    return {name: linear for name, linear in named.items() if isinstance(linear, NativeLinear)}
