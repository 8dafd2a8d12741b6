"""The connections to one upstream, and the calls that go over them (`gateway/relay/ports.Pool`)."""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headway.adapters.gateway.relay.ports import Answering, Exchange, Target, UpstreamCall
from headway.adapters.http1.sweep import Sweep
from headway.adapters.upstream.answer import HeadReader
from headway.adapters.upstream.call import Call
from headway.adapters.upstream.connection import UpstreamConnection
from headway.core.units import Ns

Positive = Annotated[float, Meta(gt=0)]


class PoolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How connections to an upstream are used."""

    connections_max: Annotated[int, Meta(ge=1)] = 1024  # requests beyond it wait here
    connect_timeout_s: Positive = 5.0  # also for a free connection
    first_byte_timeout_s: Positive = 600.0  # from the request to the answer's head: a long prompt, or a whole answer
    idle_timeout_s: Positive = 120.0  # between two reads of an answer
    keep_s: Positive = 4.0  # an unused connection is closed so soon: below the 5 s of vLLM's server, or they race


class Endpoint(msgspec.Struct, frozen=True):
    """Where an upstream is, and what it is told of the caller."""

    host: str
    port: int
    base: str = ""  # path before `/v1/...`
    tls: ssl.SSLContext | None = None
    # none: no credentials; forward: the client's own; any other text: this header value, such as `Bearer KEY`.
    authorization: Literal["none", "forward"] | str = "none"

    @property
    def head(self) -> bytes:
        """Header lines of every request."""
        own = "" if self.authorization in ("none", "forward") else f"authorization: {self.authorization}\r\n"
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"host: {shown}:{self.port}\r\ncontent-type: application/json\r\n{own}".encode("latin-1")


class UpstreamPool:
    """Connections of one upstream. Belongs to one event loop."""

    def __init__(self, endpoint: Endpoint, settings: PoolSettings, now_ns: Callable[[], Ns]) -> None:
        self.endpoint, self.settings, self.now_ns = endpoint, settings, now_ns
        self.head, self.base = endpoint.head, endpoint.base.encode("latin-1")
        self.loop = asyncio.get_running_loop()
        timeouts = (settings.connect_timeout_s, settings.first_byte_timeout_s, settings.idle_timeout_s, settings.keep_s)
        self.sweep = Sweep(self.loop, min(timeouts))
        self.heads = HeadReader()
        self._idle: list[UpstreamConnection] = []
        self._open: dict[UpstreamConnection, None] = {}
        self._dialling: dict[asyncio.Task[None], None] = {}
        self._waiting: deque[Call] = deque()
        self._is_closed = False

    @property
    def connections(self) -> int:
        """Open ones and those on their way."""
        return len(self._open) + len(self._dialling)

    def start(self, exchange: Exchange, target: Target, answering: Answering) -> UpstreamCall:
        """Send the request. Nothing is told before it returns."""
        call = Call(self, exchange, target, answering)
        exchange.attach(call)
        self.place(call, is_fresh=False)
        return call

    def place(self, call: Call, is_fresh: bool) -> None:
        """Give the call a connection: an idle one, unless it must be fresh; else a new one; else it waits."""
        now = self.loop.time()
        while self._idle and not is_fresh:
            connection = self._idle.pop()  # the one used last: the others may end
            if connection.is_open and connection.idle_until > now:
                call.go(connection)
                return
            connection.abort()
        if self.connections < self.settings.connections_max:
            self._dial(call)
        else:
            call.deadline = now + self.settings.connect_timeout_s
            self.sweep.add(call)
            self._waiting.append(call)

    def release(self, connection: UpstreamConnection, is_reusable: bool) -> None:
        """An answer is over."""
        connection.rest()
        if not is_reusable or self._is_closed:
            connection.abort()
            return
        while self._waiting:
            call = self._waiting.popleft()
            if not call.is_over:
                self.sweep.remove(call)
                call.go(connection)
                return
        connection.idle_until = connection.deadline = self.loop.time() + self.settings.keep_s
        self._idle.append(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection is gone; whoever waits may have a new one."""
        self._open.pop(connection, None)
        self.sweep.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and self.connections < self.settings.connections_max and not self._is_closed:
            call = self._waiting.popleft()
            self.sweep.remove(call)
            if not call.is_over:
                self._dial(call)

    def close(self) -> None:
        """Drop idle connections; running calls go on."""
        self._is_closed = True
        for connection in list(self._idle):
            connection.abort()

    def _dial(self, call: Call) -> None:
        task = self.loop.create_task(self._connect(call))
        self._dialling[task] = None

    async def _connect(self, call: Call) -> None:
        endpoint, made, reason = self.endpoint, None, ""
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                _, made = await self.loop.create_connection(
                    lambda: UpstreamConnection(self.heads, self), endpoint.host, endpoint.port, ssl=endpoint.tls
                )
        except TimeoutError:
            reason = f"no connection within {self.settings.connect_timeout_s:g} s"
        except OSError as error:  # ssl.SSLError is one
            reason = f"no connection: {connect_failure(error)}"
        finally:
            task = asyncio.current_task()
            assert task is not None  # it runs as one
            self._dialling.pop(task, None)
        if made is None:
            call.unreachable(reason)
            self._serve_waiting()
            return
        self._open[made] = None
        self.sweep.add(made)
        if not made.is_open:
            call.unreachable("it closed a new connection")
        elif call.is_over:
            self.release(made, is_reusable=True)
        else:
            call.go(made)


def connect_failure(error: OSError) -> str:
    """Why no connection was made, for clients too: without the address, which the texts of the system hold."""
    if isinstance(error, ssl.SSLError):
        return "TLS failed"
    if isinstance(error, socket.gaierror):
        return "its name is not found"
    return "none of its addresses answers" if error.errno is None else os.strerror(error.errno)
