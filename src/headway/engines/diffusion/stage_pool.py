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
from contextlib import ExitStack, suppress
from threading import Lock
from typing import Final, Literal

import msgspec
import torch

from headway.core.errors import EngineError
from headway.engines.diffusion.families.protocol import Embedding, Frames, Size
from headway.engines.diffusion.loading import Dtype
from headway.engines.diffusion.stages import Stages, embeddings_from, frames_from, to_bytes

Role = Literal["text", "decode"]
_HEAD: Final = struct.Struct(">I")
_MODULE: Final = "headway.engines.diffusion.stage_host"
_END_S: Final = 10.0  # for a process to end by itself; it may be in the middle of loading


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
    """One stage process, seen from its pool. Raises OSError where none can be started."""

    def __init__(self, order: HostOrder) -> None:
        self._link, theirs = socket.socketpair()
        with ExitStack() as undo, theirs:
            undo.callback(self._link.close)
            command = [sys.executable, "-m", _MODULE, str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(theirs.fileno(),))
            undo.pop_all()
        stdin = self.process.stdin
        if stdin is None:
            raise EngineError("a stage process has no stdin")
        body = msgspec.msgpack.encode(order)
        with suppress(OSError):  # it is gone already: whoever asks it first finds out
            stdin.write(_HEAD.pack(len(body)) + body)
            stdin.flush()
        self._ready: Ready | None = None

    def ready(self) -> Ready | None:
        """Waits for it to load; None: it is gone."""
        if self._ready is None:
            with suppress(OSError):
                reply = self._reply()
                self._ready = reply if isinstance(reply, Ready) else None
        return self._ready

    def ask(self, message: Encode | Decode) -> Reply | None:
        """Its reply; None: it is gone. Waits for it to load first."""
        reply = None
        try:
            if self.ready() is not None:
                send(self._link, message)
                reply = self._reply()
        except OSError:
            return None
        finally:
            if reply is None:  # in the middle of a message the rest would be taken for the answer to the next one
                self._hang_up()
        return reply

    def _reply(self) -> Reply | None:
        body = receive(self._link)
        return None if body is None else msgspec.msgpack.decode(body, type=Reply)

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """The process is over, in `_END_S` at the latest, and whoever waits for its reply is told."""
        self._hang_up()
        if self.process.stdin is not None:
            with suppress(OSError):  # what it never read
                self.process.stdin.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Once nobody waits for it."""
        self._link.close()


class StagePool:
    """Processes of one stage. One call runs on one of them; as many run beside each other as there are."""

    def __init__(self, order: HostOrder, count: int) -> None:
        self._order = order
        self._lock = Lock()  # around who is there, when one is replaced
        self._is_closed = False
        self._free: queue.SimpleQueue[_Host] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, f"stage-{order.role}")
        self.hosts: list[_Host] = []
        self.replaced = self.peak_bytes = 0
        with ExitStack() as undo:
            undo.callback(self.close)
            for _ in range(count):
                self.hosts.append(_Host(order))
                self._free.put(self.hosts[-1])
            undo.pop_all()

    def held_bytes(self) -> int:
        """Of its processes, before they work. Waits for them. Raises EngineError where one died of loading."""
        held = 0
        for host in self.hosts:
            ready = host.ready()
            if ready is None:
                raise EngineError(
                    f"a process of the {self._order.role} stage died while it loaded; its words are above"
                )
            held += ready.held_bytes
        return held

    def start(self, message: Encode | Decode) -> Callable[[], bytes]:
        """Give it to the next free process; the returned call waits, and raises MemoryError or RuntimeError: what the
        stage raised there, or that processes die of this call, or that none can be started."""
        return self._threads.submit(self._run, message).result

    def _run(self, message: Encode | Decode) -> bytes:
        host = self._free.get()
        try:
            reply = host.ask(message)
            if reply is None:
                host = self._replace(host)
                reply = host.ask(message)
        except OSError as error:
            raise RuntimeError(f"a process of the {self._order.role} stage cannot be started: {error}") from error
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
        # The call's fault, so its row's: the others of the plan go on.
        raise RuntimeError(f"two processes of the {self._order.role} stage in a row died of one call")

    def _replace(self, dead: _Host) -> _Host:
        dead.end()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the {self._order.role} stage is closed")
            fresh = _Host(self._order)
            self.hosts[self.hosts.index(dead)] = fresh
            self.replaced += 1
        dead.close()
        return fresh

    def close(self) -> None:
        """End its processes; calls that wait raise RuntimeError, or are cancelled."""
        with self._lock:
            self._is_closed = True
        for host in self.hosts:
            host.end()
        self._threads.shutdown(cancel_futures=True)
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
