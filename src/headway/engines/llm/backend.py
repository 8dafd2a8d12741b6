"""Chooses how this machine computes: which matrix products, which layer operations, and says why."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import torch

from headway.core.errors import ConfigError
from headway.core.graphs import Captures
from headway.engines.llm.captures import FUSED_ATTENTION, HOST_ATTENTION
from headway.engines.llm.config import ModelConfig
from headway.engines.llm.draw import Draw, NativeDraw, torch_draw
from headway.engines.llm.forks import Fork, in_line
from headway.engines.llm.kernels import KernelsUnavailable, load_kernels
from headway.engines.llm.linear import DeviceLinear, Linear, NativeLinear, OneDnnLinear, TorchLinear, is_row_invariant
from headway.engines.llm.ops import NativeOps, Ops, RopeTables, TorchOps, native_refusal
from headway.engines.llm.sdpa import SdpaOps

Dtype = Literal["auto", "float32", "bfloat16"]
Kernels = Literal["auto", "native", "torch"]
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]


class Backend(msgspec.Struct, frozen=True):
    """`description` goes into the start log: it says what was chosen and what was not possible."""

    make_linear: MakeLinear
    ops: Ops
    draw: Draw
    dtype: Literal["float32", "bfloat16"]
    device: torch.device
    captures: Captures
    description: str


class BackendChoice(msgspec.Struct, frozen=True):
    dtype: Dtype
    kernels: Kernels
    threads: int
    block_size: int
    cache: Path
    device: torch.device = torch.device("cpu")


def choose_backend(config: ModelConfig, rope: RopeTables, choice: BackendChoice) -> Backend:
    """Raises ConfigError where what was asked for by name cannot be had."""
    library, refusal = _library(config, choice)
    if choice.kernels == "native" and library is None:
        raise ConfigError(f"kernels = native: {refusal}; use kernels = auto or torch")
    ops: Ops
    draw: Draw = torch_draw
    if library is not None:
        draw = NativeDraw(library, choice.threads)
        ops = NativeOps(library, choice.threads, config, rope, choice.block_size)
        layers = "C++ kernels"
    else:
        ops = TorchOps(config, rope, choice.block_size)
        layers = f"torch ({refusal})"
    dtype, reason, make = _linears(library, config, choice)
    description = f"products in {dtype} by {reason}; layer operations by {layers}; {choice.threads} threads"
    return Backend(
        make_linear=make,
        ops=ops,
        draw=draw,
        dtype=dtype,
        device=choice.device,
        captures=HOST_ATTENTION,
        description=description,
    )


def device_backend(config: ModelConfig, rope: RopeTables, choice: BackendChoice, fork: Fork = in_line) -> Backend:
    """torch on `choice.device`: the same decoder and the same plans.  # never run on a device"""
    if choice.kernels == "native":
        raise ConfigError(f"kernels = native compute on the CPU, device = {choice.device}; use kernels = auto")
    dtype: Literal["float32", "bfloat16"] = "float32" if choice.dtype == "float32" else "bfloat16"
    kept = torch.float32 if dtype == "float32" else torch.bfloat16
    return Backend(
        make_linear=lambda weight, bias: DeviceLinear(weight, bias, choice.device, kept),
        ops=SdpaOps(config, rope, choice.block_size, kept, fork),
        draw=torch_draw,
        dtype=dtype,
        device=choice.device,
        captures=FUSED_ATTENTION,
        description=(
            f"products and fused attention in {dtype} on {choice.device} by torch, neither of which is batch-invariant:"
            " equal requests may differ where two tokens are nearly equally likely"
        ),
    )


def has_bfloat16_units() -> bool:
    """Whether this CPU multiplies bf16 natively; elsewhere bf16 products are several times slower than float32."""
    flags = Path("/proc/cpuinfo")
    if not flags.is_file():
        return False
    words = flags.read_text(encoding="utf-8").split()
    return "avx512_bf16" in words or "amx_bf16" in words


def _library(config: ModelConfig, choice: BackendChoice) -> tuple[ctypes.CDLL | None, str]:
    if choice.kernels == "torch":
        return None, "asked for"
    if (refusal := native_refusal(config, choice.block_size)) is not None:
        return None, refusal
    try:
        return load_kernels(choice.cache), ""
    except KernelsUnavailable as error:
        return None, str(error)


def _linears(
    library: ctypes.CDLL | None, config: ModelConfig, choice: BackendChoice
) -> tuple[Literal["float32", "bfloat16"], str, MakeLinear]:
    if choice.dtype != "float32":
        refusal = _bfloat16_refusal(config)
        if refusal is None:
            return "bfloat16", "oneDNN, prepacked", OneDnnLinear
        if choice.dtype == "bfloat16":
            raise ConfigError(f"dtype = bfloat16: {refusal}; use dtype = auto or float32")
    if library is None:
        return "float32", "torch in fixed tiles", TorchLinear
    loaded = library
    return "float32", "C++ kernels", lambda weight, bias: NativeLinear(loaded, choice.threads, weight, bias)


def _bfloat16_refusal(config: ModelConfig) -> str | None:
    """Batch invariance in bf16 is asked of the machine, on the shapes of one layer and the head (SPEC B7)."""
    if not has_bfloat16_units():
        return "this CPU has no bf16 units"
    generator = torch.Generator().manual_seed(0)
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    shapes = [
        (heads, config.hidden),
        (config.hidden, config.heads * config.head_dim),
        (2 * config.feed_forward, config.hidden),
        (config.hidden, config.feed_forward),
        (config.vocab, config.hidden),
    ]
    linears = ((OneDnnLinear(torch.randn(shape, generator=generator), None), shape[1]) for shape in shapes)
    return None if all(is_row_invariant(*pair) for pair in linears) else "rows depend on the batch in bf16 here"
