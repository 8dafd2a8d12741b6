"""The HTTP/1.1 protocol of uvicorn with limits on the head of a request, and refusals in OpenAI's shape.

uvicorn itself waits for headers for ever, buffers them without bound, answers broken requests in plain text (also in
the middle of an answer), loses the body of a request that offers an upgrade, and tells a running request nothing of
its client's end once another request was pipelined behind it.
"""

import asyncio
import secrets
from typing import ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headway.adapters.gateway.errors import error_body
from headway.adapters.gateway.exchange import ABORT, LINGER_S, PROMPT
from headway.adapters.gateway.settings import GatewaySettings, LimitSettings, StreamSettings
from headway.adapters.gateway.unread import Unread
from headway.core.effects import ErrorOut

BROKEN: Final = ErrorOut(400, "invalid_http", "The request is not valid HTTP/1.1.")
_UPGRADE: Final = (b"connection", b"upgrade", b"http2-settings")


class BoundedHead(HttpToolsProtocol):
    """One connection. `http_protocol` sets `limits` on a class, because uvicorn makes the instances.

    One request at a time: what comes behind a request that runs is dropped, and the connection closes after the answer.
    """

    limits: ClassVar[LimitSettings] = LimitSettings()
    stall_timeout_s: ClassVar[float] = StreamSettings().stall_timeout_s
    _in_head = True
    _in_body = False
    _is_upgrade = False  # the head that was read offers one
    _is_deaf = False  # what comes is dropped; the connection closes soon
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._unread = Unread(self.loop, transport, self.stall_timeout_s)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unread.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.watch()

    def resume_writing(self) -> None:
        self._unread.stop()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unread.watch()  # uvicorn closes an idle connection, which waits for who does not read

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_deaf:
            return
        if self._is_running and not self._in_body:
            self._drop_pipelined(data)
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if self._is_running and not self._in_body:
                self._drop_pipelined(data)  # broken behind a whole request
            else:
                self._refuse(BROKEN)
        # What came after the head in the same read is body, and no longer counts.
        if self._in_head and self._head_bytes > self.limits.header_bytes:
            self._refuse_head()

    @property
    def _is_running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_idle(self) -> bool:
        """The last answer is complete, and nothing of another request has come."""
        is_over = self.cycle is not None and self.cycle.response_complete
        return is_over and not (self._in_head or self._in_body or self._is_deaf)

    def leave(self) -> None:
        """Another protocol goes on with the connection: no timer of this one may close it."""
        self._unset_keepalive_if_required()
        self._stop_timer()
        self._unread.stop()
        self.connections.discard(self)

    def _is_free(self) -> bool:
        """A part of the answer that runs would go out at once."""
        return not self.flow.write_paused and self._is_running and bool(self.cycle.chunked_encoding)

    def _write_now(self, body: bytes) -> None:
        """As uvicorn writes a part, without a message and a task."""
        if not self.cycle.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def _drop_pipelined(self, data: bytes) -> None:
        """uvicorn would stop reading here, and then never see the client leave."""
        if data.strip(b"\r\n"):  # an empty line behind a body is harmless
            self._is_deaf = True
            self.cycle.keep_alive = False

    # The parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._is_running:
            return
        self._unread.stop()  # it has taken the last answer, whose rest would no longer be told from this one's
        prompt: dict[object, object] = {"is_free": self._is_free, "write": self._write_now}
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}, PROMPT: prompt}
        self._in_head = True
        self._await_head()

    def on_headers_complete(self) -> None:
        if self._is_running:
            self._drop_pipelined(b"pipelined")
            return
        self._in_head, self._head_bytes, self._in_body = False, 0, True
        self._stop_timer()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self.limits.header_bytes:
            self._refuse_head()
        self._is_upgrade = self.parser.should_upgrade()
        if not self._is_deaf and not self._is_upgrade:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_deaf and not self._is_upgrade:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_deaf and not self._is_upgrade:
            self._in_body = False
            super().on_message_complete()

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Read the request again as one that offers no upgrade: a server may ignore the offer (RFC 9110, 7.8)."""
        self._is_upgrade = False
        method = self.parser.get_method()
        if self._is_deaf or method == b"CONNECT":
            self._refuse(BROKEN)
            return
        kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _UPGRADE]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            kept.append(b"connection: close\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self.url, b"".join(kept)) + rest)

    # Refusals

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            limit = self.limits.header_timeout_s
            self._refuse(ErrorOut(408, "header_timeout", f"The headers did not arrive within {limit:g} s."))
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_head(self) -> None:
        limit = self.limits.header_bytes
        self._refuse(ErrorOut(431, "headers_too_large", f"The headers exceed the limit of {limit} bytes."))

    def _refuse(self, error: ErrorOut) -> None:
        """Answer, unless an answer is under way, and close."""
        if self._is_deaf:
            return
        self._is_deaf = True
        self._stop_timer()
        if self._is_running:
            self.cycle.disconnected = True  # its body will never be complete
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        body = error_body(error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head % (len(body), secrets.token_hex(16).encode()) + body)
        # A socket that closes with unread input resets the connection, and the client may lose the answer.
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def http_protocol(settings: GatewaySettings) -> type[HttpToolsProtocol]:
    """Return the class for `uvicorn.Config(http=...)`."""
    own = {"limits": settings.limits, "stall_timeout_s": settings.stream.stall_timeout_s}
    return type("LimitedHead", (BoundedHead,), own)
