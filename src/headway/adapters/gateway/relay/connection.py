"""One client connection of a server that relays: generation requests for upstream models are read here.

Everything else (other routes, models of our own engines, bodies that cannot be read) is handed, byte for byte or
written anew, to uvicorn's protocol on the same connection, and taken back when its answer is complete. One request at
a time; what is pipelined behind it waits, within bounds.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from headway.adapters.gateway.errors import error_out, shutting_down
from headway.adapters.gateway.exchange import LINGER_S
from headway.adapters.gateway.protocol import BROKEN
from headway.adapters.gateway.relay.exchange import RelayExchange, error_answer
from headway.adapters.gateway.relay.prepare import Arrival
from headway.adapters.gateway.relay.reader import BodyTooLarge, HeadTooLarge, RequestReader, Whole
from headway.adapters.gateway.relay.server import Foreign, RelayServer
from headway.adapters.http1.chunks import BadChunk
from headway.adapters.http1.heads import BadHead
from headway.adapters.http1.sweep import NEVER
from headway.core.effects import ErrorOut
from headway.core.errors import RequestError
from headway.core.units import Ns

PIPELINED_MAX: Final = 64 * 1024  # bytes kept behind a request that runs; more, and the connection ends with its answer
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """Made by uvicorn for each connection; `relay_protocol` sets `relay` on a class of it."""

    relay: ClassVar[RelayServer]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # uvicorn's own type
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.deadline = NEVER
        self.is_stuck = False
        self._relay, self._config, self._state, self._app_state = self.relay, config, server_state, app_state
        self._loop = _loop or asyncio.get_event_loop()
        self._transport: asyncio.Transport
        self._reader = RequestReader(self.relay.limits)
        self._exchange: RelayExchange | None = None
        self._other: Foreign | None = None
        self._is_deaf = False  # what comes is dropped; the connection closes soon
        self._received_ns: Ns | None = None  # first byte of the request that is read
        self._ends_at = NEVER  # the request's own time limit
        self._drain: asyncio.Task[None] | None = None

    # The transport's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # any stream's is one
        self._transport = transport
        self._state.connections.add(self)  # type: ignore[arg-type]  # uvicorn calls its `shutdown`, nothing else
        self._relay.sweep.add(self)
        self.deadline = self._loop.time() + self._relay.limits.header_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline = NEVER
        self._is_deaf = True
        self._relay.sweep.remove(self)
        self._state.connections.discard(self)
        other, self._other = self._other, None
        if other is not None:
            other.connection_lost(exc)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.left()
        if self._drain is not None:
            self._drain.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        other = self._other
        if other is not None:
            if not other.is_idle:
                other.data_received(data)
                return
            self._take_back(other)
        reader = self._reader
        reader.add(data)
        if self._exchange is None:
            self._read()
        elif reader.held > PIPELINED_MAX:
            self._is_deaf = True
            self._exchange.close_after()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause_writing()
            return
        self.is_stuck = True
        self.deadline = min(self._ends_at, self._loop.time() + self._relay.stall_timeout_s)
        if self._exchange is not None:
            self._exchange.stuck()

    def resume_writing(self) -> None:
        self.is_stuck = False  # also when what was stuck is an answer from before the connection was handed on
        if self._other is not None:
            self._other.resume_writing()
            return
        if self._exchange is not None:
            self.deadline = self._ends_at
            self._exchange.unstuck()
        elif not self._is_deaf:
            self.deadline = self._loop.time() + self._relay.limits.keep_alive_s

    # Reading

    def _read(self) -> None:
        """Take the next request, when it is complete."""
        reader, relay = self._reader, self._relay
        try:
            if self._received_ns is None and reader.held:
                self._received_ns = relay.serving.now_ns()
                self.deadline = self._loop.time() + relay.limits.header_timeout_s
            before = reader.head
            whole = reader.next()
        except HeadTooLarge:
            limit = relay.limits.header_bytes
            self._refuse(ErrorOut(431, "headers_too_large", f"The headers exceed the limit of {limit} bytes."))
        except BodyTooLarge:
            limit = relay.limits.body_bytes
            self._refuse(ErrorOut(413, "body_too_large", f"The body is larger than the limit of {limit} bytes."))
        except (BadHead, BadChunk):
            self._refuse(BROKEN)
        else:
            if whole is not None:
                self._answer(whole)
            elif reader.is_foreign:
                self._hand_over(reader.take_all())
            elif reader.head is not None and before is None:
                self._await_body()

    def _await_body(self) -> None:
        head = self._reader.head
        assert head is not None  # it was read
        self.deadline = self._loop.time() + self._relay.limits.body_timeout_s
        if head.minor == 1 and head.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(CONTINUE)

    def _answer(self, whole: Whole) -> None:
        relay = self._relay
        received_ns, self._received_ns = self._received_ns, None
        now_ns = relay.serving.now_ns()
        arrival = Arrival(whole.head, whole.body, whole.route, received_ns or now_ns, now_ns)
        try:
            prepared = relay.prepare(arrival)
        except RequestError as error:
            relay.refused()
            keep_alive = whole.head.keep_alive
            self._transport.write(error_answer(error_out(error), relay.id_lines(arrival), keep_alive))
            self.answered(keep_alive)
            return
        if prepared is None:
            self._hand_over(whole.rewritten() + self._reader.take_all())
            return
        self._ends_at = self.deadline = self._loop.time() + relay.limits.request_timeout_s
        exchange = self._exchange = RelayExchange(relay.serving, self, arrival, prepared)
        relay.remember(prepared)
        relay.serving.submit(exchange, prepared.request)

    # For the exchange (`Wire`)

    @property
    def send(self) -> Callable[[bytes], None]:
        """Writes, without waiting: the transport's own method, once per chunk without a call of ours."""
        return self._transport.write

    def answered(self, keep_alive: bool) -> None:
        """The answer is complete."""
        self._exchange, self._ends_at = None, NEVER
        if not keep_alive or self._is_deaf:
            self._is_deaf = True
            self.deadline = self._loop.time() + self._relay.stall_timeout_s
            self._transport.close()
        elif self._reader.held:
            self.deadline = NEVER
            self._loop.call_soon(self._read_on)  # not deeper into the stack with every pipelined request
        else:
            self.deadline = self._loop.time() + self._relay.limits.keep_alive_s

    def _read_on(self) -> None:
        if not self._is_deaf and self._exchange is None and self._other is None:
            self._read()

    def cut(self) -> None:
        """Drop the connection: its answer cannot be completed."""
        self._exchange, self._is_deaf = None, True
        self._transport.abort()

    # For the sweep

    def late(self) -> None:
        """A deadline has passed: of a head, a body, an idle connection, a stuck client, or the request itself."""
        exchange, limits = self._exchange, self._relay.limits
        if self._other is not None:
            return  # it has timers of its own
        if exchange is not None and self._loop.time() >= self._ends_at:
            limit = limits.request_timeout_s
            self._relay.serving.gone(exchange.request)
            exchange.fail(ErrorOut(408, "request_timeout", f"The request took longer than the limit of {limit:g} s."))
        elif exchange is not None or self._is_deaf or self.is_stuck:
            self._transport.abort()  # it takes nothing
        elif self._reader.head is not None:
            limit = limits.body_timeout_s
            self._refuse(ErrorOut(408, "body_timeout", f"The body did not arrive within {limit:g} s."))
        elif self._reader.held:
            limit = limits.header_timeout_s
            self._refuse(ErrorOut(408, "header_timeout", f"The headers did not arrive within {limit:g} s."))
        else:
            self._transport.close()

    def _refuse(self, error: ErrorOut) -> None:
        """Answer, and close once the client had time to read it."""
        self._is_deaf, self.deadline = True, NEVER
        self._transport.write(error_answer(error, self._relay.minted_lines(), keep_alive=False))
        # A socket that closes with unread input resets the connection, and the client may lose the answer.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(LINGER_S, self._transport.close)

    # Beside uvicorn's protocol

    def _hand_over(self, data: bytes) -> None:
        self.deadline, self._received_ns = NEVER, None
        other = self._relay.foreign(self._config, self._state, self._app_state, self._loop)
        self._other = other
        other.connection_made(self._transport)
        other.data_received(data)

    def _take_back(self, other: Foreign) -> None:
        self._other = None
        other.leave()

    # For uvicorn

    def shutdown(self) -> None:
        """The server stops: close when idle, else after the answer."""
        if self._other is not None:
            return  # it is among uvicorn's connections itself
        if self._exchange is None:
            self._transport.close()
            return
        self._exchange.close_after()
        task = self._loop.create_task(self._give_up_when_told())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)
        self._drain = task

    async def _give_up_when_told(self) -> None:
        """uvicorn cancels its tasks when the time of its shutdown is over; then the client is told."""
        try:
            await self._loop.create_future()
        except asyncio.CancelledError:
            if (exchange := self._exchange) is not None:
                self._relay.serving.gone(exchange.request)
                exchange.fail(shutting_down())


def relay_protocol(relay: RelayServer) -> type[asyncio.Protocol]:
    """Return the class for `uvicorn.Config(http=...)`."""
    return type("RelayingConnection", (ClientConnection,), {"relay": relay})
