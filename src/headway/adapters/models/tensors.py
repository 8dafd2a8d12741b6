"""Writes float32 arrays as a bfloat16 safetensors file, without torch."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt


class Planned(msgspec.Struct, frozen=True):
    """A tensor to be written: its name and shape, known before its values are."""

    name: str
    shape: tuple[int, ...]


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even, as torch does; values must be finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def write_bfloat16(path: Path, plan: list[Planned], values: Iterator[npt.NDArray[np.float32]]) -> None:
    """Write the tensors of `plan`, whose values come in the same order, one in memory at a time."""
    header: dict[str, dict[str, object]] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in plan:
        size = 2 * int(np.prod(tensor.shape))
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little"))
        stream.write(encoded)
        for tensor, array in zip(plan, values, strict=True):
            if array.shape != tensor.shape:
                raise ValueError(f"{tensor.name} has shape {array.shape}, planned was {tensor.shape}")
            stream.write(bfloat16_bits(array).tobytes())
