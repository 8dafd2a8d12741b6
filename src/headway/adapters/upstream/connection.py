"""One connection to an upstream: one request at a time, its answer poured into the client's exchange."""

import asyncio
import socket
from typing import Final, Protocol

from headway.adapters.http1.sweep import NEVER
from headway.adapters.upstream.answer import Answer, HeadReader

UNACKED_MS_MAX: Final = 10_000
COPY_MAX: Final = 16 * 1024  # below it one copy is cheaper than a second write


class Listener(Protocol):
    """The call that a connection works for."""

    def heard(self, connection: "UpstreamConnection", piece: bytes) -> None:
        """Bytes came."""
        ...

    def broke(self, connection: "UpstreamConnection", reason: str) -> None:
        """The connection was closed."""
        ...

    def silent(self) -> None:
        """Nothing came in time."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """Owned by its pool. While nobody listens it is idle: anything that it reads then makes it unusable."""

    def __init__(self, heads: HeadReader, lost: "Lost") -> None:
        self.deadline = NEVER  # of the sweep: the next byte, or the end of idling
        self.uses = 0  # requests before this one
        self.idle_until = 0.0
        self.is_open = False
        self.has_heard = False  # anything since the request went out
        self._heads, self._lost = heads, lost
        self._listener: Listener | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # any stream's is one
        self._transport, self.is_open = transport, True
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            # Nagle's algorithm holds small requests back for 40 ms (ray#61468); asyncio and uvloop set this too.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a peer whose machine is gone acknowledges nothing
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS_MAX)

    def send(self, listener: Listener, head: bytes, body: bytes) -> Answer:
        """Send one request; return what will read its answer."""
        assert self._transport is not None
        assert self._listener is None  # the pool gives out idle connections only
        self._listener, self.has_heard = listener, False
        if len(body) < COPY_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return Answer(self._heads)

    def data_received(self, data: bytes) -> None:
        listener = self._listener
        self.has_heard = True
        if listener is None:
            self.abort()  # an answer to nothing
        else:
            listener.heard(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open, self.deadline = False, NEVER
        listener, self._listener = self._listener, None
        self._lost.lost(self)
        if listener is not None:
            listener.broke(self, "it closed the connection" if exc is None else f"{type(exc).__name__}: {exc}")

    def late(self) -> None:
        """Nothing came in time."""
        listener = self._listener
        if listener is None:
            self.abort()
        else:
            listener.silent()

    def rest(self) -> None:
        """The answer is over; nobody listens."""
        self._listener = None
        self.uses += 1

    def abort(self) -> None:
        """Drop the connection at once: the upstream must notice now, not after what is buffered."""
        self._listener, self.is_open, self.deadline = None, False, NEVER
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read nothing for a while."""
        if self._transport is not None and self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()


class Lost(Protocol):
    """Who keeps count of connections."""

    def lost(self, connection: UpstreamConnection) -> None:
        """It is gone."""
        ...
