"""What a stage pool and its processes say to each other over a socket pair: a length, then msgpack (SPEC G1)."""

import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Final, Literal

import msgspec

from headway.engines.diffusion.families.protocol import Size
from headway.engines.diffusion.loading import Dtype, Role

_HEAD: Final = struct.Struct(">I")


class HostOrder(msgspec.Struct, frozen=True):
    """What a stage process is told at its start, on its stdin; it ends when that closes."""

    folder: str
    role: Role
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Dtype = "auto"
    threads: int = 1
    tile_pixels: int | None = None


class Encode(msgspec.Struct, frozen=True, tag=True):
    """Pool -> process: embed these prompts."""

    prompts: tuple[str, ...]
    counts: bool = False  # what it holds while it does


class EncodePicture(msgspec.Struct, frozen=True, tag=True):
    """Pool -> process: clean latents of this picture. `pixels`: it, prepared, and `states` [draws, bytes] of the
    generators that draw them, which the answer holds as they are afterwards, beside `latents`."""

    pixels: bytes
    counts: bool = False


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Pool -> process: frames of these latents."""

    grid: bytes
    size: Size
    counts: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Process -> pool: loaded, and holding so much."""

    held_bytes: int


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Process -> pool: embeddings, latents, or frames."""

    body: bytes
    peak_bytes: int = 0  # more than before, where it was to count


class Sorry(msgspec.Struct, frozen=True, tag=True):
    """Process -> pool: this one failed; the process goes on."""

    words: str
    is_out_of_memory: bool


Work = Encode | EncodePicture | Decode
Reply = Ready | Answer | Sorry


def framed(message: msgspec.Struct) -> bytes:
    """One message as it is sent."""
    body = msgspec.msgpack.encode(message)
    return _HEAD.pack(len(body)) + body


def send(link: socket.socket, message: Work | Reply) -> None:
    """Write one message."""
    link.sendall(framed(message))


def receive(link: socket.socket, left_s: Callable[[], float | None] = lambda: None) -> bytes | None:
    """Read one message; None: the other end is gone. `left_s`: seconds that it may take from now; None: any. Raises
    TimeoutError once that is over, in the middle of a message too."""
    head = _exactly(link, _HEAD.size, left_s)
    return None if head is None else _exactly(link, _HEAD.unpack(head)[0], left_s)


def _exactly(link: socket.socket, count: int, left_s: Callable[[], float | None]) -> bytes | None:
    body = bytearray()
    while len(body) < count:
        link.settimeout(left_s())
        part = link.recv(min(count - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return bytes(body)


class Deadline:
    """Seconds that are left of some that began now; None: any number, for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else monotonic() + seconds

    def left_s(self) -> float | None:
        """Above 0, as sockets want it."""
        return None if self._ends is None else max(1e-6, self._ends - monotonic())
