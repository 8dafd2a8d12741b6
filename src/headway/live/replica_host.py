"""One replica as a process: its node on the main thread, its engine on another, one socket to the hub.

`python -m headway.live.replica_host` reads its start order from stdin, which then stays open: its end means that the
parent died, and this process ends at once. SIGTERM drains. SIGINT is the parent's business.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from headway.core.effects import Propose
from headway.core.errors import ConfigError, HeadwayError
from headway.core.events import Event, MessageArrived, PeerJoined, PeerLost
from headway.core.ids import NodeId
from headway.core.messages import Drain, Message
from headway.core.ports import ModelLimits
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.cost.llm import MeasuredStep
from headway.live.assemble import (
    BuiltNode,
    Recipe,
    build_node,
    load_denoiser,
    load_llm,
    open_replica_log,
    room_beside,
    warmed,
)
from headway.live.child import error_in, read_order, run_to_end
from headway.live.clock import Clock
from headway.live.denoise_thread import DenoiseThread
from headway.live.denoise_warmup import Warm, warm_up_denoiser
from headway.live.driver import Driver, LateFeed, Ports
from headway.live.engine_thread import EngineThread
from headway.live.garbage import Garbage
from headway.live.hub import proposals_event
from headway.live.link import Link, connect
from headway.live.rows_seen import ring_buckets, rows_seen, settled
from headway.live.settling import Settled
from headway.live.spec import LlmSpec, Start
from headway.live.transport import BlockTransport
from headway.live.warmup import warm_up
from headway.live.wire import (
    Beat,
    Blocks,
    Envelope,
    Failed,
    Frame,
    Gather,
    Gathered,
    Hello,
    Joined,
    Lost,
    Phase,
    Ready,
    Spans,
    StepSpan,
    Stop,
    WireError,
)

log = logging.getLogger(__name__)

BEAT_S: Final = 1.0
SPANS_S: Final = 0.2
GARBAGE_S: Final = 1.0
ROWS_S: Final = 60.0
_DRAIN_POLL_S: Final = 0.02


class SocketOutlet:
    """Messages and group proposals of this node, to the hub."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Messages to itself stay here: they are as ordered as any other pair's."""
        self._link.send(Envelope(src, dst, message))

    def propose(self, effect: Propose) -> None:
        """Contribute to the all-gather."""
        self._link.send(Gather(effect.group, effect.step, effect.proposal, effect.deadline_ns))


class Parts(msgspec.Struct, frozen=True):
    """What a replica's node is driven with."""

    ports: Ports
    limits: ModelLimits | None
    transport: BlockTransport | None
    warm: Warm | None = None
    steps: tuple[MeasuredStep, ...] = ()
    settled: Settled | None = None


class Replica:
    """The process, from its connection to its end."""

    def __init__(self, start: Start, link: Link, clock: Clock) -> None:
        spec, self._sizes = settled(start.spec)
        self._start, self._link, self._clock = msgspec.structs.replace(start, spec=spec), link, clock
        self._spans: list[StepSpan] = []
        self._rows = rows_seen(start.spec)
        self._garbage: Garbage | None = None  # until it is ready
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Load, announce, serve until the hub closes the link or says Stop, or a drain is complete."""
        start, link = self._start, self._link
        link.send(Hello(start.spec.node, start.incarnation))
        self._every(BEAT_S, self._beat)
        began_ns = self._clock.now_ns()
        feed = LateFeed()
        llm = start.spec.llm
        parts = await (self._load_diffusion(feed) if llm is None else self._load_llm(llm, feed))
        recipe = Recipe(start.spec, start.incarnation, parts.limits, steps=parts.steps)
        if parts.warm is not None:
            recipe = warmed(recipe, parts.warm)
        built = build_node(recipe)
        driver = Driver(built.node, self._clock, parts.ports, event_log=open_replica_log(recipe))
        feed.target = driver.feed
        self._loop.add_signal_handler(signal.SIGTERM, self._drain, driver, built)
        self._every(SPANS_S, self._send_spans)
        self._garbage = garbage = Garbage(self._clock)
        garbage.settle()
        self._every(GARBAGE_S, lambda: garbage.look(is_idle=built.is_idle()))
        link.send(Ready(parts.limits, self._clock.now_ns() - began_ns, built.step_cost, parts.settled))
        receiver = asyncio.ensure_future(link.each(partial(self._receive, driver, parts.transport)))
        await asyncio.wait([receiver, self._over], return_when=asyncio.FIRST_COMPLETED)
        if receiver.done():
            receiver.result()
        garbage.close()
        driver.close()
        self._send_spans()
        if self._rows is not None:
            self._rows.save()

    async def _load_llm(self, llm: LlmSpec, feed: LateFeed) -> Parts:
        spec, clock = self._start.spec, self._clock
        if self._rows is not None:
            self._tell("load", 0.0, self._sizes)
            self._every(ROWS_S, self._rows.save)
        engine = await self._loop.run_in_executor(None, load_llm, spec, llm, clock.now_ns, self._tell)
        limits = engine.limits
        thread = EngineThread(engine, clock, feed, self._spans.append, is_asynchronous=limits.device != "cpu")
        self._tell("warm-up", 0.0, "")
        scheduler = llm.scheduler
        sizes = ring_buckets(llm), scheduler.max_seqs, scheduler.step_tokens, llm.executor.settle_passes_max
        warm = await thread.call(lambda: warm_up(engine, *sizes))
        self._tell("warm-up", 1.0, warm.settled.words)
        outlet = SocketOutlet(self._link)
        transport = BlockTransport(spec.node, engine, thread, self._link.send, feed, limits.kv_bytes_per_block)
        ports = Ports(outlet, steps=thread, transport=transport, group=outlet)
        return Parts(ports, limits, transport, steps=warm.steps, settled=warm.settled)

    async def _load_diffusion(self, feed: LateFeed) -> Parts:
        spec, clock = self._start.spec, self._clock
        engine = await self._loop.run_in_executor(None, load_denoiser, spec, clock.now_ns, self._tell)
        thread = DenoiseThread(engine, clock, feed, self._spans.append)
        warm = None
        if spec.diffusion is not None and spec.diffusion.probes is not None and spec.diffusion.cost is not None:
            probes, start = spec.diffusion.probes, spec.diffusion.cost
            self._tell("warm-up", 0.0, "")
            pipeline = spec.diffusion.pipeline
            room = None if pipeline is None else room_beside(pipeline, engine)  # before anything has run
            told = self._timed("warm-up")
            warm = await thread.call(lambda: warm_up_denoiser(engine, probes, start, room=room, tell=told))
            if pipeline is not None:
                warm = warm.within(room, pipeline.pictures_max)
            self._tell("warm-up", 1.0, warm.words)
        rest = None if warm is None else warm.settled
        return Parts(Ports(SocketOutlet(self._link), denoise=thread), None, None, warm, settled=rest)

    def fail(self, error: BaseException) -> None:
        """An error that nobody awaits (a callback's) ends the process like any other."""
        if not self._over.done():
            self._over.set_exception(error)

    async def finished(self) -> None:
        """Raise what `fail` was told."""
        if self._over.done():
            self._over.result()

    def _receive(self, driver: Driver, transport: BlockTransport | None, frame: Frame) -> bool:
        """Take a frame; False when nothing more is to be read."""
        match frame:
            case Envelope():
                driver.feed(_arrived(frame))
            case Blocks() if transport is not None:
                transport.arrived(frame)
            case Gathered():
                driver.feed(proposals_event(frame))
            case Joined():
                driver.feed(_joined(frame))
            case Lost():
                driver.feed(_lost(frame))
            case Stop():
                return False
            case _:
                raise WireError(f"the hub sent a {type(frame).__name__}, which only a replica sends")
        return True

    def _tell(self, phase: str, done: float, note: str) -> None:
        """Report a phase of loading, from any thread."""
        self._loop.call_soon_threadsafe(self._link.send, Phase(phase, done, self._clock.now_ns(), note))

    def _timed(self, phase: str) -> Callable[[str], None]:
        """What tells of a part of a phase, and of the time since the part before."""
        before_ns = self._clock.now_ns()

        def tell(part: str) -> None:
            nonlocal before_ns
            since_ns, before_ns = before_ns, self._clock.now_ns()
            self._tell(phase, 0.0, f"{part}: {s_from_ns(before_ns - since_ns):.1f} s")

        return tell

    def _every(self, interval_s: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self._loop.call_later(interval_s, again)

        again()

    def _beat(self) -> None:
        garbage = None if self._garbage is None else self._garbage.figures
        self._link.send(Beat(self._clock.now_ns(), garbage))

    def _send_spans(self) -> None:
        if self._spans:
            if self._rows is not None:
                self._rows.count(self._spans)
            self._link.send(Spans(tuple(self._spans)))
            self._spans.clear()

    def _drain(self, driver: Driver, built: BuiltNode) -> None:
        """Take nothing new; end when nothing runs or the time is over."""
        node = self._start.spec.node
        driver.feed(lambda at_ns: MessageArrived(at_ns, "SIGTERM", node, Drain("SIGTERM")))
        deadline_ns = self._clock.now_ns() + ns_from_s(self._start.spec.drain_s)

        def look() -> None:
            if self._over.done():
                return
            if built.is_idle() or self._clock.now_ns() >= deadline_ns:
                self._over.set_result(None)

        self._every(_DRAIN_POLL_S, look)


def _arrived(frame: Envelope) -> Callable[[Ns], Event]:
    return lambda at_ns: MessageArrived(at_ns, str(frame.src), frame.src, frame.message)


def _joined(frame: Joined) -> Callable[[Ns], Event]:
    return lambda at_ns: PeerJoined(at_ns, "hub", frame.node, frame.incarnation)


def _lost(frame: Lost) -> Callable[[Ns], Event]:
    return lambda at_ns: PeerLost(at_ns, "hub", frame.node, frame.incarnation)


async def host(start: Start) -> int:
    """Connect and run; the reason of a failure goes to the supervisor before the process ends."""
    link = await connect(start.socket)
    replica = Replica(start, link, Clock(start.run_start_ns))
    asyncio.get_running_loop().set_exception_handler(lambda _, context: replica.fail(error_in(context)))
    try:
        await replica.run()
        await replica.finished()
    except Exception as error:  # the outer loop of the process: it ends with its story
        if not isinstance(error, ConfigError):
            log.exception("replica %s ends", start.spec.node)
        words = str(error) if isinstance(error, HeadwayError) else f"{type(error).__name__}: {error}"
        link.send(Failed(words))
        await link.flush()
        return 1
    await link.flush()
    return 0


def main() -> None:
    """The process."""
    start = msgspec.msgpack.decode(read_order(), type=Start)
    run_to_end(host(start))


if __name__ == "__main__":
    main()
