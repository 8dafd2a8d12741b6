"""One stage process, seen from its pool: how long it may take, and that it ends (SPEC G1)."""

import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Lock
from typing import Final

import msgspec

from headway.core.errors import EngineError
from headway.cost.means import Mean
from headway.engines.diffusion.stage_wire import (
    Deadline,
    Decode,
    Encode,
    EncodePicture,
    HostOrder,
    Ready,
    Reply,
    Work,
    framed,
    receive,
)

_MODULE: Final = "headway.engines.diffusion.stage_host"
_END_S: Final = 10.0  # for the system to take a killed process away
_MEMORY: Final = 50  # calls, after which one weighs a third of the estimate
_SIZES_MAX: Final = 64  # of which the oldest is forgotten


class Patience(msgspec.Struct, frozen=True):
    """When a stage process counts as hung (`live.config_diffusion`). A first call may compile: it has `load_s` too."""

    factor: float = 5.0
    floor_s: float = 30.0
    load_s: float = 120.0


class StageHung(RuntimeError):
    """A stage process was killed because it did not answer in time."""


class Pace:
    """What calls of one stage are estimated to take, by those that were answered: of their size, or in proportion to
    the largest that was seen. Called from several threads."""

    def __init__(self, patience: Patience | None) -> None:
        self._patience, self._lock = patience, Lock()
        self._took_s: dict[int, Mean] = {}  # by size

    def limit_s(self, message: Work) -> float | None:
        """Seconds that a call may take; None: any."""
        patience, size = self._patience, _size(message)
        if patience is None:
            return None
        with self._lock:
            largest = max(self._took_s, default=None)
            if largest is None:
                return max(patience.floor_s, patience.load_s)
            known = self._took_s.get(size)
            estimate_s = self._took_s[largest].value * max(1.0, size / largest) if known is None else known.value
        return max(patience.floor_s, patience.factor * estimate_s)

    def took(self, message: Work, seconds: float) -> None:
        """A call was answered. One that was counted says nothing of others."""
        size = _size(message)
        if message.counts:
            return
        with self._lock:
            if size not in self._took_s and len(self._took_s) >= _SIZES_MAX:
                del self._took_s[next(iter(self._took_s))]
            self._took_s.setdefault(size, Mean()).observe(seconds, _MEMORY)


def _size(message: Work) -> int:
    """Prompts, or bytes of a picture or of latents."""
    match message:
        case Encode(prompts):
            return max(1, len(prompts))
        case EncodePicture(body) | Decode(body):
            return max(1, len(body))


class StageProcess:
    """Raises OSError where none can be started."""

    def __init__(self, order: HostOrder, load_s: float | None = None) -> None:
        self._link, theirs = socket.socketpair()
        with ExitStack() as undo, theirs:
            undo.callback(self._link.close)
            command = [sys.executable, "-m", _MODULE, str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(theirs.fileno(),))
            undo.pop_all()
        stdin = self.process.stdin
        if stdin is None:
            raise EngineError("a stage process has no stdin")
        with suppress(OSError):  # it is gone already: whoever asks it first finds out
            stdin.write(framed(order))
            stdin.flush()
        self._role, self._load_s, self._loads = order.role, load_s, Deadline(load_s)
        self._ready: Ready | None = None

    def ready(self) -> Ready | None:
        """Waits for it to load; None: it is gone. Raises StageHung."""
        if self._ready is None:
            with suppress(OSError):
                reply = self._waited(self._loads.left_s, f"did not load in {self._load_s} s")
                self._ready = reply if isinstance(reply, Ready) else None
        return self._ready

    def ask(self, message: Work, limit_s: float | None = None) -> Reply | None:
        """Its reply; None: it is gone. Waits for it to load first. Raises StageHung where the rest takes longer than
        `limit_s`; it is killed then."""
        reply = None
        try:
            if self.ready() is not None:
                deadline = Deadline(limit_s)
                words = f"gave no answer in {limit_s:.1f} s" if limit_s is not None else "gave no answer"
                reply = self._waited(deadline.left_s, words, framed(message))
        except OSError:
            return None
        finally:
            if reply is None:  # in the middle of a message the rest would be taken for the answer to the next one
                self._hang_up()
        return reply

    def _waited(self, left_s: Callable[[], float | None], words: str, body: bytes = b"") -> Reply | None:
        """Send what there is to send, and read the reply."""
        try:
            self._link.settimeout(left_s())
            self._link.sendall(body)
            reply = receive(self._link, left_s)
        except TimeoutError as error:
            self.kill()
            raise StageHung(f"process {self.process.pid} of the {self._role} stage {words}, and was killed") from error
        return None if reply is None else msgspec.msgpack.decode(reply, type=Reply)

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """It ends now, whatever it does or does not do, and whoever waits for its reply is told. It holds nothing that
        it would have to put away."""
        self._hang_up()
        self.process.kill()

    def end(self) -> None:
        """The process is over, and has left the system's table; in `_END_S` at the latest nobody waits any longer."""
        self.kill()
        if self.process.stdin is not None:
            with suppress(OSError):  # what it never read
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)

    def close(self) -> None:
        """Once nobody waits for it."""
        self._link.close()
