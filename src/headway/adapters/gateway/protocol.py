"""The HTTP/1.1 protocol of uvicorn with limits on the head of a request, and refusals in OpenAI's shape.

uvicorn itself waits for headers for ever, buffers them without bound, and answers broken requests in plain text.
"""

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headway.adapters.gateway.errors import error_body
from headway.adapters.gateway.exchange import ABORT
from headway.adapters.gateway.settings import LimitSettings
from headway.core.effects import ErrorOut

BROKEN: Final = ErrorOut(400, "invalid_http", "The request is not valid HTTP/1.1.")


class BoundedHead(HttpToolsProtocol):
    """One connection. `http_protocol` sets `limits` on a class, because uvicorn makes the instances."""

    limits: ClassVar[LimitSettings] = LimitSettings()
    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # What came after the head in the same read is body, and no longer counts.
        if self._in_head and self._head_bytes > self.limits.header_bytes and not self.transport.is_closing():
            self._refuse(
                ErrorOut(431, "headers_too_large", f"The headers exceed the limit of {self.limits.header_bytes} bytes.")
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
        self._in_head = True
        self._await_head()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn words it in plain text
        self._refuse(BROKEN)

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

    def _refuse(self, error: ErrorOut) -> None:
        body = error_body(error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()


def http_protocol(limits: LimitSettings) -> type[HttpToolsProtocol]:
    """Return the class for `uvicorn.Config(http=...)`."""
    return type("LimitedHead", (BoundedHead,), {"limits": limits})
