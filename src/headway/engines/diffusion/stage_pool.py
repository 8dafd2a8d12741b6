"""Text encode and VAE decode in processes of their own, each stage with its own count (SPEC G1).

A pool starts its processes itself (`stage_host`) and talks to each over a socket pair; tensors travel as safetensors.
Stages are pure functions, so what a process that died was doing is done once more by the one that replaces it.
"""

import queue
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import msgspec
import torch

from headway.core.errors import EngineError
from headway.engines.diffusion.families.protocol import Embedding, Frames, Size
from headway.engines.diffusion.loading import Dtype
from headway.engines.diffusion.stages import Stages, embeddings_from, frames_from, to_bytes

Role = Literal["text", "decode"]
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


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Pool -> process: frames of these latents."""

    grid: bytes
    size: Size
    counts: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Process -> pool: loaded, and holding so much."""

    held_bytes: int


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Process -> pool: embeddings, or frames."""

    body: bytes
    peak_bytes: int = 0  # more than before, where it was to count


class Sorry(msgspec.Struct, frozen=True, tag=True):
    """Process -> pool: this one failed; the process goes on."""

    words: str
    is_out_of_memory: bool


Reply = Ready | Answer | Sorry


def send(link: socket.socket, message: Encode | Decode | Reply) -> None:
    """Write one message."""
    body = msgspec.msgpack.encode(message)
    link.sendall(_HEAD.pack(len(body)) + body)


def receive(link: socket.socket) -> bytes | None:
    """Read one message; None: the other end is gone."""
    head = _exactly(link, _HEAD.size)
    return None if head is None else _exactly(link, _HEAD.unpack(head)[0])


def _exactly(link: socket.socket, count: int) -> bytes | None:
    body = bytearray()
    while len(body) < count:
        part = link.recv(min(count - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return bytes(body)


class _Host:
    """One stage process, seen from its pool."""

    def __init__(self, order: HostOrder) -> None:
        self._link, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "headway.engines.diffusion.stage_host", str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(theirs.fileno(),))
        stdin = self.process.stdin
        if stdin is None:
            raise EngineError("a stage process has no stdin")
        body = msgspec.msgpack.encode(order)
        stdin.write(_HEAD.pack(len(body)) + body)
        stdin.flush()
        self._ready: Ready | None = None

    def ready(self) -> Ready | None:
        """Waits for it to load; None: it is gone."""
        if self._ready is None:
            reply = self._reply()
            self._ready = reply if isinstance(reply, Ready) else None
        return self._ready

    def ask(self, message: Encode | Decode) -> Reply | None:
        """Its reply; None: it is gone. Waits for it to load first."""
        try:
            if self.ready() is None:
                return None
            send(self._link, message)
            return self._reply()
        except OSError:
            return None

    def _reply(self) -> Reply | None:
        body = receive(self._link)
        return None if body is None else msgspec.msgpack.decode(body, type=Reply)

    def close(self) -> None:
        self._link.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


class StagePool:
    """Processes of one stage. One call runs on one of them; as many run beside each other as there are."""

    def __init__(self, order: HostOrder, count: int) -> None:
        self._order = order
        self._free: queue.SimpleQueue[_Host] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, f"stage-{order.role}")
        self.hosts = [_Host(order) for _ in range(count)]
        self.replaced = self.peak_bytes = 0
        for host in self.hosts:
            self._free.put(host)

    def held_bytes(self) -> int:
        """Of its processes, before they work. Waits for them."""
        found = [host.ready() for host in self.hosts]
        return sum(ready.held_bytes for ready in found if ready is not None)

    def start(self, message: Encode | Decode) -> Callable[[], bytes]:
        """Give it to the next free process; the returned call waits. Raises what the stage raised there."""
        return self._threads.submit(self._run, message).result

    def _run(self, message: Encode | Decode) -> bytes:
        host = self._free.get()
        try:
            reply = host.ask(message)
            if reply is None:
                host = self._replace(host)
                reply = host.ask(message)
        finally:
            self._free.put(host)
        match reply:
            case Answer(body, peak_bytes):
                self.peak_bytes = max(self.peak_bytes, peak_bytes)
                return body
            case Sorry(words, True):
                raise MemoryError(words)
            case Sorry(words):
                raise RuntimeError(words)
        raise EngineError(f"two {self._order.role} processes in a row died of one call")

    def _replace(self, dead: _Host) -> _Host:
        dead.close()
        fresh = _Host(self._order)
        self.hosts[self.hosts.index(dead)] = fresh
        self.replaced += 1
        return fresh

    def close(self) -> None:
        """End its processes."""
        self._threads.shutdown()
        for host in self.hosts:
            host.close()


class SplitStages:
    """Stages of which some have processes of their own; the others are the engine's."""

    def __init__(self, here: Stages, text: StagePool | None, decode: StagePool | None, device: torch.device) -> None:
        self._here, self._text, self._decode, self._device = here, text, decode, device
        counts = [0 if pool is None else len(pool.hosts) for pool in (text, decode)]
        self.where = f"{counts[0]} processes encode text, {counts[1]} decode"
        self.decodes_max = max(1, counts[1])
        self._counts = False

    def held_bytes(self) -> int:
        """Of all processes, before they work."""
        return sum(pool.held_bytes() for pool in (self._text, self._decode) if pool is not None)

    def watch(self) -> None:
        """Processes count from now on."""
        self._counts = True
        for pool in (self._text, self._decode):
            if pool is not None:
                pool.peak_bytes = 0

    def seen(self) -> tuple[int, int]:
        """Most of one call since then, of text and of decode."""
        self._counts = False
        text, decode = (0 if pool is None else pool.peak_bytes for pool in (self._text, self._decode))
        return text, decode

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        """Embeddings of prompts."""
        if self._text is None:
            return self._here.encode(prompts)
        return embeddings_from(self._text.start(Encode(tuple(prompts), self._counts))(), self._device)

    def decoding(self, grid: torch.Tensor, size: Size) -> Callable[[], Frames]:
        """Begin a decode; the returned call waits for its frames."""
        if self._decode is None:
            return self._here.decoding(grid, size)
        answer = self._decode.start(Decode(to_bytes({"grid": grid}), size, self._counts))
        return lambda: frames_from(answer())

    def close(self) -> None:
        """End the processes."""
        for pool in (self._text, self._decode):
            if pool is not None:
                pool.close()
