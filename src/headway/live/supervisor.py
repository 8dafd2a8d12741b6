"""Starts processes of one kind, notices when one dies, tells the nodes, starts it again within a budget.

A process is dead when it exits, closes or breaks its link, or keeps silent. A dead process's incarnation never speaks
again: it is killed before its successor starts.
"""

import asyncio
import logging
import signal
import tempfile
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from headway.core.errors import EngineError
from headway.core.ids import NodeId
from headway.core.reports import GarbageFigures
from headway.core.units import Ns, ns_from_s
from headway.live import child
from headway.live.child import exit_words, send_signal
from headway.live.clock import Clock
from headway.live.link import Link, serve
from headway.live.spec import SupervisorSettings
from headway.live.wire import (
    Beat,
    Blocks,
    Envelope,
    Failed,
    Frame,
    Gather,
    Hello,
    News,
    Phase,
    Ready,
    Spans,
    StepSpan,
    Stop,
    WireError,
)

log = logging.getLogger(__name__)

_LAST_LINES = 20
LAST_WORDS_S: Final = 2.0  # for what an ended process had sent to be read


class Spec(Protocol):
    """One process that is kept running."""

    @property
    def node(self) -> NodeId: ...

    @property
    def what(self) -> str: ...

    @property
    def module(self) -> str: ...

    def order(self, incarnation: int, socket: str, run_start_ns: Ns) -> bytes: ...


class Switch(Protocol):
    """Who carries what the processes send (`hub.Hub`)."""

    def starting(self, node: NodeId, incarnation: int, doing: str) -> None: ...

    def join(self, node: NodeId, incarnation: int, peer: Link) -> None: ...

    def leave(self, node: NodeId, incarnation: int, reason: str) -> None: ...

    def receive(self, node: NodeId, frame: Envelope | Blocks | Gather | News) -> None: ...


class FleetWatcher(Protocol):
    """Who is told what the replicas do, beside the nodes."""

    def phase(self, node: NodeId, phase: Phase) -> None: ...

    def joined(self, node: NodeId, incarnation: int, ready: Ready) -> None: ...

    def lost(self, node: NodeId, incarnation: int, reason: str) -> None: ...

    def spans(self, node: NodeId, steps: Sequence[StepSpan]) -> None: ...

    def garbage(self, node: NodeId, figures: GarbageFigures) -> None: ...


class _Life(msgspec.Struct):
    """One incarnation."""

    node: NodeId
    incarnation: int
    process: asyncio.subprocess.Process
    heard_ns: Ns
    link: Link | None = None
    is_ready: bool = False
    reason: str | None = None
    last_lines: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    heard: asyncio.Future[None] = msgspec.field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Supervisor:
    """The processes of one host."""

    def __init__(
        self, specs: Sequence[Spec], hub: Switch, watcher: FleetWatcher, settings: SupervisorSettings, clock: Clock
    ) -> None:
        self._specs, self._hub, self._watcher, self._settings, self._clock = specs, hub, watcher, settings, clock
        self._folder = tempfile.TemporaryDirectory(prefix="headway-")  # mode 0700: nobody else connects
        self.socket = Path(self._folder.name) / "hub.sock"
        self._server: asyncio.Server | None = None
        self._lives: dict[NodeId, _Life] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._started: dict[NodeId, asyncio.Future[None]] = {}
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Start every replica and wait until all are ready. Raises EngineError with the reason when one cannot."""
        self._server = await serve(self.socket, self._accept)
        loop = asyncio.get_running_loop()
        self._started = {spec.node: loop.create_future() for spec in self._specs}
        self._keepers = [loop.create_task(self._keep(spec), name=f"keep-{spec.node}") for spec in self._specs]
        await asyncio.gather(*self._started.values())

    async def run(self) -> None:
        """Return never, or raise EngineError when no replica is left that may be started again."""
        await asyncio.gather(*self._keepers)
        if not self._stopping.is_set():
            raise EngineError("no replica is left: every one used up its restarts", status=503, code="no_replica")

    async def stop(self, grace_s: float) -> None:
        """Let the replicas finish what runs, at most `grace_s`; then end them."""
        self._stopping.set()
        lives = list(self._lives.values())
        for life in lives:
            send_signal(life.process, signal.SIGTERM)
        waits = [asyncio.ensure_future(life.process.wait()) for life in lives]
        if waits:
            await asyncio.wait(waits, timeout=grace_s)
        for life in lives:
            if life.link is not None:
                life.link.send(Stop())
            send_signal(life.process, signal.SIGKILL)
        if heard := [life.heard for life in lives if life.link is not None]:
            await asyncio.wait(heard, timeout=LAST_WORDS_S)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, *waits, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        self._folder.cleanup()

    def kill(self, node: NodeId, reason: str) -> None:
        """End a replica's process because of `reason`; it is started again."""
        life = self._lives.get(node)
        if life is not None:
            life.reason = life.reason or reason
            send_signal(life.process, signal.SIGKILL)

    def pids(self) -> dict[NodeId, int]:
        """Process ids of the running replicas."""
        return {node: life.process.pid for node, life in self._lives.items()}

    async def _keep(self, spec: Spec) -> None:
        started = self._started[spec.node]
        failures: deque[Ns] = deque()
        which, incarnation, settings = {"replica": spec.node}, 0, self._settings
        while not self._stopping.is_set():
            incarnation += 1
            self._hub.starting(spec.node, incarnation, "its process starts")
            try:
                reason = (await self._live(spec, incarnation)).reason or "no reason known"
            except Exception as error:  # outer loop: no descriptor, or a pipe that closed under the start order
                reason = f"its process could not be started: {type(error).__name__}: {error}"
                self._hub.leave(spec.node, incarnation, reason)
            if self._stopping.is_set():
                return
            if not started.done():
                started.set_exception(EngineError(f"{spec.what} {spec.node} cannot start: {reason}", status=503))
                return
            log.error("%s %s (incarnation %d) was lost: %s", spec.what, spec.node, incarnation, reason, extra=which)
            now_ns = self._clock.now_ns()
            failures.append(now_ns)
            while failures and now_ns - failures[0] > ns_from_s(settings.restart_window_s):
                failures.popleft()
            if len(failures) > settings.restarts_max:
                log.error("%s %s stays down: lost %d times in a row", spec.what, spec.node, len(failures), extra=which)
                return
            backoff_s = min(settings.restart_backoff_s * 2 ** (len(failures) - 1), settings.restart_backoff_s_max)
            self._hub.starting(spec.node, incarnation + 1, f"its process starts in {backoff_s:g} s, after a loss")
            await asyncio.sleep(backoff_s)

    async def _live(self, spec: Spec, incarnation: int) -> _Life:
        """Start one incarnation and stay with it to its end."""
        process = await child.start(spec.module)
        life = _Life(spec.node, incarnation, process, self._clock.now_ns())
        self._lives[spec.node] = life
        relay = asyncio.ensure_future(self._relay(life))
        watch = asyncio.ensure_future(self._watch(life))
        try:
            child.hand_over(process, spec.order(incarnation, str(self.socket), self._clock.start_ns))
            code = await process.wait()
            await relay
            if self._stopping.is_set() and life.link is not None:
                await asyncio.wait([life.heard], timeout=LAST_WORDS_S)
        finally:
            watch.cancel()
            relay.cancel()
            send_signal(process, signal.SIGKILL)
            if life.link is not None:
                life.link.abort()
            del self._lives[spec.node]
        if life.reason is None:
            tail = " | ".join(life.last_lines)
            life.reason = f"its process ended with {exit_words(code)}" + (f": {tail}" if tail else "")
        if not self._stopping.is_set():  # an end that was asked for is no loss
            self._hub.leave(spec.node, incarnation, life.reason)
            self._watcher.lost(spec.node, incarnation, life.reason)
        return life

    async def _relay(self, life: _Life) -> None:
        """Pass on what the process prints; its last lines explain its death."""
        if life.process.stdout is not None:
            async for level, text in child.lines(life.process.stdout):
                life.last_lines.append(text)
                log.log(level, "%s: %s", life.node, text, extra={"replica": life.node})

    async def _watch(self, life: _Life) -> None:
        settings = self._settings
        while True:
            await asyncio.sleep(settings.heartbeat_timeout_s / 4)
            silent_ns = self._clock.now_ns() - life.heard_ns
            limit_s = settings.heartbeat_timeout_s if life.is_ready else settings.start_timeout_s
            if silent_ns > ns_from_s(limit_s):
                self.kill(life.node, f"it was silent for {silent_ns / 1e9:.1f} s")

    async def _accept(self, link: Link) -> None:
        life: _Life | None = None
        reason = "it closed its link"
        try:
            life = self._identify(await link.receive())
            life.link = link
            await link.each(partial(self._receive, life, link))
            if self._lives.get(life.node) is not life:
                return  # its loss was told
        except WireError as error:
            reason = str(error)
            log.error("link of %s: %s", "a stranger" if life is None else life.node, error)
        except Exception as error:  # the outer loop of a link: one broken peer must not end the others
            reason = f"{type(error).__name__}: {error}"
            log.exception("link of %s", "a stranger" if life is None else life.node)
        finally:
            link.abort()
            if life is not None:
                life.heard.set_result(None)
        if life is not None and not self._stopping.is_set():
            # Its exit says more than the end of its link, when that is the cause; leave it a moment to happen.
            await asyncio.wait([asyncio.ensure_future(life.process.wait())], timeout=1.0)
            if life.process.returncode is None:
                self.kill(life.node, reason)

    def _identify(self, frame: Frame | None) -> _Life:
        if not isinstance(frame, Hello):
            raise WireError(f"the first frame is {type(frame).__name__}, not Hello")
        life = self._lives.get(frame.node)
        if life is None or life.incarnation != frame.incarnation or life.link is not None:
            raise WireError(f"{frame.node} incarnation {frame.incarnation} is not awaited")
        return life

    def _receive(self, life: _Life, link: Link, frame: Frame) -> bool:
        """Take a frame; False when nothing more is to be read."""
        if self._lives.get(life.node) is not life:
            return False  # what it had sent before its loss was told must not come after that
        life.heard_ns = self._clock.now_ns()
        match frame:
            case Envelope() | Blocks() | Gather() | News():
                self._hub.receive(life.node, frame)
            case Spans():
                self._watcher.spans(life.node, frame.steps)
            case Phase():
                self._watcher.phase(life.node, frame)
                self._hub.starting(life.node, life.incarnation, frame.words)
            case Ready():
                life.is_ready = True
                self._watcher.joined(life.node, life.incarnation, frame)
                self._hub.join(life.node, life.incarnation, link)
                if not self._started[life.node].done():
                    self._started[life.node].set_result(None)
            case Failed():
                life.reason = frame.reason
            case Beat():
                if frame.garbage is not None:
                    self._watcher.garbage(life.node, frame.garbage)
            case _:
                raise WireError(f"{life.node} sent a {type(frame).__name__}, which only a hub sends")
        return True
