"""A further gateway process: listens where the main one does, relays with a front and upstreams of its own.

`python -m headway.live.front_host` reads its start order from stdin. Requests that are relayed are answered here; every
other one is passed, byte for byte, to the main process. SIGTERM drains.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from headway.adapters.gateway.exchange import Receive, Scope, Send
from headway.adapters.gateway.relay.connection import relay_protocol
from headway.adapters.gateway.relay.server import RelayServer
from headway.adapters.gateway.relay.splice import Splice
from headway.core.effects import End, ErrorOut
from headway.core.errors import HeadwayError
from headway.core.events import ClientGone, Event, MessageArrived, RequestArrived
from headway.core.ids import NodeId
from headway.core.messages import Message
from headway.core.request import FinishReason
from headway.live.child import error_in, read_order, run_to_end
from headway.live.clock import Clock
from headway.live.driver import Driver, Ports
from headway.live.eventlog import open_log
from headway.live.front_news import FrontNews
from headway.live.front_spec import FrontStart
from headway.live.hub import Hub
from headway.live.link import Link, connect
from headway.live.listening import HttpServer, http_server, join, listen
from headway.live.model_names import ModelNames
from headway.live.relaying import Relaying
from headway.live.upstream_fleet import UpstreamFleet
from headway.live.upstream_ports import Surroundings
from headway.live.wire import Beat, Envelope, Failed, Frame, Hello, News, Ready, Stop, WireError
from headway.sched.nodes import FrontNode

log = logging.getLogger(__name__)

BEAT_S: Final = 1.0
UPSTREAMS_WAIT_S: Final = 5.0  # for their first health checks
SPLICED_S: Final = 1.5  # for the main process to end its answers over our connections, once the time of a stop is over


class _Outlet:
    """Messages of the front: to the control node over the link, to upstreams here."""

    def __init__(self, hub: Hub, link: Link, control: NodeId) -> None:
        self._hub, self._link, self._control = hub, link, control

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None:
        if dst == self._control:
            self._link.send(Envelope(src, dst, message))
        else:
            self._hub.send(src, dst, message)


class RelayFront:
    """The process, from its connection to its end."""

    def __init__(self, start: FrontStart, link: Link, clock: Clock) -> None:
        spec = start.spec
        self._start, self._spec, self._link, self._clock = start, spec, link, clock
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._hub = Hub(clock, {}, lambda _node, _reason: None, lambda _node, _message: None)
        self.front = FrontNode(spec.node, spec.front, spec.control, spec.fronts)
        self._news = FrontNews(link, self._standing, self._loop)
        ports = Ports(_Outlet(self._hub, link, spec.control), edge=self._news)
        event_log = open_log(spec.event_logs, f"{spec.node}-{start.incarnation}")
        self._driver = Driver(self.front, clock, ports, event_log=event_log, fault=self._broke)
        self._hub.add_local(spec.node, self._driver.feed)
        self._relaying, self._upstreams = self._relay()

    def _relay(self) -> tuple[Relaying, UpstreamFleet]:
        spec, front, now_ns = self._spec, self.front, self._clock.now_ns
        relays = spec.relays
        names = ModelNames(relays.own, relays.aliases, relays.fallbacks, relays.transfers)
        relaying = Relaying(
            names,
            now_ns,
            self._driver.feed,
            # Whether own models can is for the main process to say: a request that falls back to one goes there.
            lambda model: model in relays.own or front.router.can_serve(model, now_ns()),
            self._news.requests,
            relays.created,
        )
        relaying.limits = lambda tenant: front.book.quotas.limits(tenant, now_ns())
        relaying.count, self._news.on_end = self._news.count, relaying.end
        around = Surroundings(
            self._hub, spec.node, now_ns, relaying.exchange, relaying.is_renamed, relaying.answered, lambda _node: None
        )
        return relaying, UpstreamFleet(relays.upstreams, relays.discovery, names, around, _told)

    async def run(self) -> None:
        """Listen, announce, serve until a drain is complete or the main process says Stop."""
        start, spec, link = self._start, self._spec, self._link
        link.send(Hello(spec.node, start.incarnation))
        self._beat()
        began_ns = self._clock.now_ns()
        listener = join(spec.address.host, spec.address.port)
        await self._upstreams.start()
        await self._upstreams.heard(UPSTREAMS_WAIT_S)
        server = self._http()
        listen(listener)
        http = self._loop.create_task(server.serve(sockets=[listener]))
        await server.until_started()
        self._news.start()
        link.send(Ready(None, self._clock.now_ns() - began_ns))
        self._loop.add_signal_handler(signal.SIGTERM, self._drain, server)
        receiver = self._loop.create_task(link.each(self._receive))
        await asyncio.wait([http, receiver, self._over], return_when=asyncio.FIRST_COMPLETED)
        if receiver.done():
            receiver.result()
        if self._over.done():
            self._over.result()
        if http.done() and not receiver.done():
            await _spliced_end(server)
        self._news.flush()
        await self._upstreams.stop()
        self._driver.close()

    def _http(self) -> HttpServer:
        spec, loop = self._spec, self._loop
        door = spec.address.door
        stall_s = spec.gateway.stream.stall_timeout_s
        splice = partial(Splice, door, loop=loop, stall_timeout_s=stall_s)
        relay = RelayServer(self._relaying, spec.gateway, self._news, loop, splice)
        return http_server(_nothing, relay_protocol(relay), spec.times, "off")

    def _standing(self) -> News:
        front = self.front
        return News(
            waiting=len(front.dispatch.queue),
            in_flight=len(front.book.requests),
            accounts=front.ledger.views(),
            recoveries=tuple(front.recovery_figures()),
            at_ns=self._clock.now_ns(),
        )

    def _beat(self) -> None:
        self._link.send(Beat(self._clock.now_ns()))
        self._loop.call_later(BEAT_S, self._beat)

    def _receive(self, frame: Frame) -> bool:
        """Take a frame; False when nothing more is to be read."""
        match frame:
            case Envelope() if frame.dst == self._spec.node:
                self._driver.feed(_arrived(frame))
            case Envelope():
                self._hub.send(frame.src, frame.dst, frame.message)
            case Stop():
                return False
            case _:
                raise WireError(f"the main process sent a {type(frame).__name__}, which is for replicas")
        return True

    def _drain(self, server: HttpServer) -> None:
        """Listen no more; what runs may go on for a while. Then `serve` returns."""
        server.should_exit = True

    def fail(self, error: BaseException) -> None:
        """An error that nobody awaits (a callback's) ends the process like any other."""
        if not self._over.done():
            self._over.set_exception(error)

    def _broke(self, event: Event, error: Exception) -> None:
        """A bug in the front: its client gets an error, the others go on."""
        request = event.request.id if isinstance(event, RequestArrived) else None
        request = event.request if isinstance(event, ClientGone) else request
        log.error("event %s broke a node", type(event).__name__, exc_info=error, extra={"request": request})
        if request is not None:
            message = f"request {request}: {type(error).__name__} inside Headway; the log has the story"
            self._relaying.end(End(request, FinishReason.LOST, ErrorOut(500, "internal_error", message)))


async def _spliced_end(server: HttpServer) -> None:
    """Clients of the main process get their last words through here: it cuts them off when we would."""
    try:
        async with asyncio.timeout(SPLICED_S):
            while any(isinstance(one, Splice) for one in server.server_state.connections):
                await asyncio.sleep(0.02)  # uvicorn has no event for it
    except TimeoutError:
        log.warning("connections of the main process did not end in %g s", SPLICED_S)


def _arrived(frame: Envelope) -> Callable[[int], Event]:
    return lambda at_ns: MessageArrived(at_ns, str(frame.src), frame.src, frame.message)


def _told(node: NodeId, what: str) -> None:
    """The main process watches the same upstreams, and says so."""
    log.debug("%s: %s", node, what)


async def _nothing(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError(f"a {scope['type']} scope in a process that answers nothing itself")


async def host(start: FrontStart) -> int:
    """Connect and run; the reason of a failure goes to the supervisor before the process ends."""
    link = await connect(start.socket)
    front = RelayFront(start, link, Clock(start.run_start_ns))
    asyncio.get_running_loop().set_exception_handler(lambda _, context: front.fail(error_in(context)))
    try:
        await front.run()
    except Exception as error:  # the outer loop of the process: it ends with its story
        log.exception("gateway process %s ends", start.spec.node)
        link.send(Failed(str(error) if isinstance(error, HeadwayError) else f"{type(error).__name__}: {error}"))
        await link.flush()
        return 1
    await link.flush()
    return 0


def main() -> None:
    """The process."""
    run_to_end(host(msgspec.msgpack.decode(read_order(), type=FrontStart)))


if __name__ == "__main__":
    main()
