"""Text encode, VAE encode and VAE decode in processes of their own, each stage with its own count (SPEC G1).

A pool starts its processes itself (`stage_host`) and talks to each over a socket pair; tensors travel as safetensors.
Stages are pure functions, so what a process that died was doing is done once more by the one that replaces it. One that
hangs, longer than `stage_process.Patience` allows, is killed and replaced too; pictures and decodes, before which work
was done, are then done once more.
"""

import logging
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from time import monotonic
from typing import Final

import msgspec
import torch

from headway.core.errors import EngineError
from headway.engines.diffusion.families.protocol import Embedding, Frames, Size
from headway.engines.diffusion.stage_process import Pace, Patience, StageHung, StageProcess
from headway.engines.diffusion.stage_wire import Answer, Decode, Encode, EncodePicture, HostOrder, Reply, Sorry, Work
from headway.engines.diffusion.stages import (
    Seen,
    Stages,
    embeddings_from,
    frames_from,
    latents_from,
    picture_to,
    to_bytes,
)

log = logging.getLogger(__name__)
_TRIES: Final = 2  # of a call, where its process died


class StagePool:
    """Processes of one stage. One call runs on one of them; as many run beside each other as there are. `patience`
    None: a call may take for ever."""

    def __init__(self, order: HostOrder, count: int, patience: Patience | None = None) -> None:
        self._order = order
        self._load_s = None if patience is None else patience.load_s
        self._pace = Pace(patience)
        self._hung_max = 1 if order.role == "text" else _TRIES
        self._lock = Lock()  # around who is there, when one is replaced
        self._is_closed = False
        self._free: queue.SimpleQueue[StageProcess] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, f"stage-{order.role}")
        self.hosts: list[StageProcess] = []
        self.replaced = self.peak_bytes = 0
        with ExitStack() as undo:
            undo.callback(self.close)
            for _ in range(count):
                self.hosts.append(StageProcess(order, self._load_s))
                self._free.put(self.hosts[-1])
            undo.pop_all()

    def held_bytes(self) -> int:
        """Of its processes, before they work. Waits for them. Raises EngineError where one died of loading, or hung."""
        held = 0
        for host in self.hosts:
            try:
                ready = host.ready()
            except StageHung as error:
                raise EngineError(f"{error}; raise stage_watchdog.load_s if it needs longer") from error
            if ready is None:
                raise EngineError(
                    f"a process of the {self._order.role} stage died while it loaded; its words are above"
                )
            held += ready.held_bytes
        return held

    def start(self, message: Work) -> Callable[[], bytes]:
        """Give it to the next free process; the returned call waits, and raises MemoryError or RuntimeError: what the
        stage raised there, or that processes die of this call or hang in it, or that none can be started."""
        return self._threads.submit(self._run, message).result

    def _run(self, message: Work) -> bytes:
        match self._reply(message):
            case Answer(body, peak_bytes):
                self.peak_bytes = max(self.peak_bytes, peak_bytes)
                return body
            case Sorry(words, True):
                raise MemoryError(words)
            case Sorry(words):
                raise RuntimeError(words)
        # The call's fault, so its row's: the others of the plan go on.
        raise RuntimeError(f"two processes of the {self._order.role} stage in a row died of one call")

    def _reply(self, message: Work) -> Reply | None:
        """None: processes died of it. Raises RuntimeError, or StageHung where the last one that tried hung."""
        host, hung = self._free.get(), 0
        try:
            for _ in range(_TRIES):
                late: StageHung | None = None
                try:
                    reply = self._answered(host, message)
                except StageHung as error:
                    reply, late, hung = None, error, hung + 1
                if reply is not None:
                    return reply
                host = self._replace(host, "it died" if late is None else str(late))
                if late is not None and hung == self._hung_max:
                    raise late
        except OSError as error:
            raise RuntimeError(f"a process of the {self._order.role} stage cannot be started: {error}") from error
        finally:
            self._free.put(host)
        return None

    def _answered(self, host: StageProcess, message: Work) -> Reply | None:
        """None: it is gone."""
        if host.ready() is None:  # its load is no part of the call
            return None
        began = monotonic()
        reply = host.ask(message, self._pace.limit_s(message))
        if isinstance(reply, Answer):
            self._pace.took(message, monotonic() - began)
        return reply

    def _replace(self, dead: StageProcess, why: str) -> StageProcess:
        dead.end()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the {self._order.role} stage is closed")
            fresh = StageProcess(self._order, self._load_s)
            self.hosts[self.hosts.index(dead)] = fresh
            self.replaced += 1
        dead.close()
        log.warning("a process of the %s stage is replaced: %s", self._order.role, why)
        return fresh

    def close(self) -> None:
        """End its processes, at once; calls that wait raise RuntimeError, or are cancelled."""
        with self._lock:
            self._is_closed = True
        for host in self.hosts:
            host.kill()
        for host in self.hosts:
            host.end()
        self._threads.shutdown(cancel_futures=True)
        for host in self.hosts:
            host.close()


class Pools(msgspec.Struct, frozen=True):
    """Of each stage; None: it has no processes of its own."""

    text: StagePool | None = None
    encode: StagePool | None = None
    decode: StagePool | None = None

    @property
    def there(self) -> list[StagePool]:
        """Those that are."""
        return [pool for pool in (self.text, self.encode, self.decode) if pool is not None]


class SplitStages:
    """Stages of which some have processes of their own; the others are the engine's."""

    def __init__(self, here: Stages, pools: Pools, device: torch.device) -> None:
        self._here, self.pools, self._device = here, pools, device
        text, encode, decode = (
            0 if pool is None else len(pool.hosts) for pool in (pools.text, pools.encode, pools.decode)
        )
        self.where = f"processes of stages: {text} text encode, {encode} VAE encode, {decode} VAE decode"
        self.encodes_max, self.decodes_max = max(1, encode), max(1, decode)
        self._counts = False

    def held_bytes(self) -> int:
        """Of all processes, before they work."""
        return sum(pool.held_bytes() for pool in self.pools.there)

    def watch(self) -> None:
        """Processes count from now on."""
        self._counts = True
        for pool in self.pools.there:
            pool.peak_bytes = 0

    def seen(self) -> Seen:
        """Most of one call since then."""
        self._counts = False
        pools = self.pools
        return Seen(*(0 if pool is None else pool.peak_bytes for pool in (pools.text, pools.encode, pools.decode)))

    def encode(self, prompts: Sequence[str]) -> list[Embedding]:
        """Embeddings of prompts."""
        pool = self.pools.text
        if pool is None:
            return self._here.encode(prompts)
        return embeddings_from(pool.start(Encode(tuple(prompts), self._counts))(), self._device)

    def encoding(self, pixels: torch.Tensor, generators: Sequence[torch.Generator]) -> Callable[[], torch.Tensor]:
        """Begin to encode a picture; the returned call waits for its latents."""
        pool = self.pools.encode
        if pool is None:
            return self._here.encoding(pixels, generators)
        answer = pool.start(EncodePicture(picture_to(pixels, generators), self._counts))
        return lambda: latents_from(answer(), self._device, generators)

    def decoding(self, grid: torch.Tensor, size: Size) -> Callable[[], Frames]:
        """Begin a decode; the returned call waits for its frames."""
        pool = self.pools.decode
        if pool is None:
            return self._here.decoding(grid, size)
        answer = pool.start(Decode(to_bytes({"grid": grid}), size, self._counts))
        return lambda: frames_from(answer())

    def close(self) -> None:
        """End the processes."""
        for pool in self.pools.there:
            pool.close()
