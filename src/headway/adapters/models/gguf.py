"""Reads a GGUF file (version 2 or 3): metadata, and tensors dequantised to float32."""

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from headway.adapters.models.errors import ModelError

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]
Floats = npt.NDArray[np.float32]
Raw = npt.NDArray[np.uint8]

_MAGIC = 0x46554747
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class TensorEntry(msgspec.Struct, frozen=True):
    """Where a tensor lies; shape in row-major order (GGUF stores it reversed)."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Format(msgspec.Struct, frozen=True):
    name: str
    block: int
    block_bytes: int
    decode: Callable[[Raw], Floats]


def _halves(raw: Raw) -> Floats:
    return raw.view(np.float16).astype(np.float32)


def _nibbles(quants: Raw) -> Floats:
    """[blocks, 16] bytes to [blocks, 32] values; low nibbles are the first half of a block."""
    return np.concatenate([quants & 0x0F, quants >> 4], axis=1).astype(np.float32)


def _f32(raw: Raw) -> Floats:
    return raw.view(np.float32).astype(np.float32)


def _bf16(raw: Raw) -> Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(raw: Raw) -> Floats:
    scale = _halves(raw[:, :2].copy())
    return scale * (_nibbles(raw[:, 2:]) - 8)


def _q4_1(raw: Raw) -> Floats:
    scale, low = _halves(raw[:, :2].copy()), _halves(raw[:, 2:4].copy())
    return scale * _nibbles(raw[:, 4:]) + low


def _q8_0(raw: Raw) -> Floats:
    return _halves(raw[:, :2].copy()) * raw[:, 2:].view(np.int8).astype(np.float32)


# ggml type numbers; block sizes from the GGUF specification.
_FORMATS = {
    0: _Format(name="F32", block=1, block_bytes=4, decode=_f32),
    1: _Format(name="F16", block=1, block_bytes=2, decode=_halves),
    2: _Format(name="Q4_0", block=32, block_bytes=18, decode=_q4_0),
    3: _Format(name="Q4_1", block=32, block_bytes=20, decode=_q4_1),
    8: _Format(name="Q8_0", block=32, block_bytes=34, decode=_q8_0),
    30: _Format(name="BF16", block=1, block_bytes=2, decode=_bf16),
}


class _Cursor:
    """Sequential reads over the mapped header."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path = path
        self._mapped = mapped
        self.at = 0

    def scalar(self, code: str) -> int | float | bool:
        size = struct.calcsize("<" + code)
        if self.at + size > len(self._mapped):
            raise ModelError(f"{self._path} ends inside its header at byte {self.at}; fetch the file again")
        value: int | float | bool = struct.unpack_from("<" + code, self._mapped, self.at)[0]
        self.at += size
        return value

    def count(self) -> int:
        return int(self.scalar("Q"))

    def string(self) -> str:
        size = self.count()
        raw = self._mapped[self.at : self.at + size]
        self.at += size
        return raw.decode("utf-8")

    def item(self, kind: int) -> Scalar:
        if kind == _STRING:
            return self.string()
        if kind not in _SCALARS:
            raise ModelError(f"{self._path} has a metadata value of unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def value(self) -> Value:
        kind = int(self.scalar("I"))
        if kind != _ARRAY:
            return self.item(kind)
        inner = int(self.scalar("I"))
        return [self.item(inner) for _ in range(self.count())]


class GgufFile:
    """A mapped GGUF file; tensors are decoded on request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as stream:
            self._mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        cursor = _Cursor(path, self._mapped)
        if cursor.scalar("I") != _MAGIC:
            raise ModelError(f"{path} is not a GGUF file")
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise ModelError(f"{path} has GGUF version {version}; versions 2 and 3 are read")
        tensors, pairs = cursor.count(), cursor.count()
        self.metadata: dict[str, Value] = {}
        for _ in range(pairs):
            key = cursor.string()
            self.metadata[key] = cursor.value()
        self.tensors = {entry.name: entry for entry in (_entry(cursor) for _ in range(tensors))}
        alignment = self.integer("general.alignment") if "general.alignment" in self.metadata else 32
        self._base = math.ceil(cursor.at / alignment) * alignment

    def integer(self, key: str) -> int:
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self._path} has {key} = {value!r}, an integer is expected")
        return value

    def number(self, key: str) -> float:
        """The shortest decimal that is the stored float32, so that 1e-05 reads as 1e-05."""
        value = self._get(key)
        if not isinstance(value, int | float):
            raise ModelError(f"{self._path} has {key} = {value!r}, a number is expected")
        return float(str(np.float32(value)))

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise ModelError(f"{self._path} has {key} = {value!r}, a string is expected")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if not isinstance(value, list):
            raise ModelError(f"{self._path} has no list under {key}")
        return [str(item) for item in value]

    def integers(self, key: str) -> list[int]:
        value = self._get(key)
        if not isinstance(value, list):
            raise ModelError(f"{self._path} has no list under {key}")
        return [int(item) for item in value]

    def tensor(self, name: str) -> Floats:
        """The named tensor as float32."""
        if name not in self.tensors:
            raise ModelError(f"{self._path} has no tensor {name}")
        entry = self.tensors[name]
        if entry.kind not in _FORMATS:
            known = ", ".join(form.name for form in _FORMATS.values())
            raise ModelError(f"{self._path}: tensor {name} has ggml type {entry.kind}; read are {known}")
        form = _FORMATS[entry.kind]
        blocks = math.prod(entry.shape) // form.block
        start = self._base + entry.offset
        if start + blocks * form.block_bytes > len(self._mapped):
            raise ModelError(f"{self._path} ends inside tensor {name}; fetch the file again")
        raw = np.frombuffer(self._mapped, np.uint8, blocks * form.block_bytes, start)
        return form.decode(raw.reshape(blocks, form.block_bytes)).reshape(entry.shape)

    def _get(self, key: str) -> Value:
        if key not in self.metadata:
            raise ModelError(f"{self._path} has no metadata {key}")
        return self.metadata[key]


def _entry(cursor: _Cursor) -> TensorEntry:
    name = cursor.string()
    rank = int(cursor.scalar("I"))
    shape = tuple(reversed([cursor.count() for _ in range(rank)]))
    return TensorEntry(name=name, shape=shape, kind=int(cursor.scalar("I")), offset=cursor.count())
