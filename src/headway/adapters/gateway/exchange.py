"""One HTTP exchange over ASGI: headers, a bounded body, a plain response or a stream, and the client's departure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qs

from headway.adapters.gateway.errors import Headers, error_body, error_headers
from headway.core.effects import ErrorOut
from headway.core.errors import InvariantError, RequestError
from headway.core.units import NS_PER_MS, Ns

Scope = MutableMapping[str, Any]  # ASGI's own types
AsgiMessage = MutableMapping[str, Any]  # ASGI's own types
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]

JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream; charset=utf-8"
# A closed socket with unread input resets the connection and the client may lose the answer; so input is read on
# for this long after an early refusal.
LINGER_S: Final = 2.0
LAST_WORD_S: Final = 1.0  # for a client to take what ends its answer when the server stops
# An ASGI extension of our protocol: drop the connection and what it holds, where a close would wait for the client.
ABORT: Final = "headway.abort"
# Another: write a part of the answer that runs without waiting, which `is_free` says can be done.
PROMPT: Final = "headway.prompt"


class ClientLeft(Exception):
    """The client closed the connection; nobody reads an answer."""


class Exchange:
    """One request and its response. `write` may be called from several tasks."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, now_ns: Callable[[], Ns]) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.received_ns = now_ns()
        self._now_ns = now_ns
        self.body_bytes = 0
        self.started = False
        self.finished = False
        self.own_headers: Headers = []  # go out with every response
        self.sent_at: float | None = None  # loop time of the last completed write of a stream
        self.writing_since: float | None = None
        self._receive, self._send = receive, send
        extensions = scope.get("extensions", {})
        self._abort: Callable[[], None] | None = extensions.get(ABORT, {}).get("abort")
        self._is_free: Callable[[], bool] = extensions.get(PROMPT, {}).get("is_free", _never)
        self._write_now: Callable[[bytes], None] = extensions.get(PROMPT, {}).get("write", _unwritten)
        self._lock = asyncio.Lock()
        self._body_read = False
        self._loop = asyncio.get_running_loop()

    async def read_body(self, limit: int, timeout_s: float) -> bytes:
        """Return the body. Raises RequestError 408 or 413 (also before the body came), ClientLeft."""
        return b"".join([part async for part in self.parts(limit, timeout_s)])

    async def parts(self, limit: int, timeout_s: float) -> AsyncIterator[bytes]:
        """The body as it comes; raises what `read_body` does."""
        length = self.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        until = self._loop.time() + timeout_s
        while not self._body_read:
            try:
                async with asyncio.timeout_at(until):
                    part = await self._read_part()
            except TimeoutError:
                message = f"The body did not arrive within {timeout_s:g} s."
                raise RequestError(message, status=408, code="body_timeout") from None
            if self.body_bytes > limit:
                raise _too_large(limit)
            yield part

    async def left(self) -> None:
        """Return when the client is gone. Only after the body was read."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def respond(
        self, status: int, body: bytes, headers: Headers | None = None, content_type: bytes = JSON
    ) -> None:
        """Send a whole response."""
        self.finished = True
        early = status in (408, 413)
        await self._start(
            status, [(b"content-length", str(len(body)).encode()), *(headers or [])], content_type, close=early
        )
        await self._send({"type": "http.response.body", "body": body, "more_body": early})
        if early:
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: ErrorOut, headers: Headers | None = None) -> None:
        """Send an error as the response."""
        await self.respond(error.status, error_body(error), [*error_headers(error), *(headers or [])])

    async def begin(self, content_type: bytes) -> None:
        """Start a body of unknown length that is no event stream; `write` and `finish` follow."""
        await self._start(200, [], content_type, close=False)

    async def write(self, body: bytes) -> None:
        """Send a part of a stream; the first one sends the response's start. Waits while the client is slow."""
        async with self._lock:
            if self.finished:
                return  # a ping that lost the race with the end
            self.writing_since = self._loop.time()
            if not self.started:
                await self._start(200, [(b"cache-control", b"no-cache")], EVENTS, close=False)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self.sent_at, self.writing_since = self._loop.time(), None

    @property
    def is_prompt(self) -> bool:
        """`write_now` may be called in this turn of the loop."""
        return self.started and not self.finished and self.writing_since is None and self._is_free()

    def write_now(self, body: bytes) -> None:
        """Send a part of a stream that has begun, to a client that takes what comes."""
        self._write_now(body)
        self.sent_at = self._loop.time()

    async def abort(self) -> None:
        """Drop a connection whose client takes nothing, where the server can."""
        if self._abort is not None:
            self._abort()
            await asyncio.sleep(0)  # the server learns of it in its next turn, before this request returns

    async def last(self, saying: Awaitable[None]) -> None:
        """Say a last word, for which nobody waits long: a client that takes nothing is dropped."""
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await saying
        except TimeoutError:
            await self.abort()

    async def finish(self, body: bytes) -> None:
        """Send the last part of an event stream."""
        async with self._lock:
            self.finished = True
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, headers: Headers, content_type: bytes, *, close: bool) -> None:
        self.started = True
        ending = [(b"connection", b"close")] if close else []
        took_ms = (self._now_ns() - self.received_ns) // NS_PER_MS
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", content_type),
                    (b"openai-processing-ms", str(took_ms).encode()),
                    *self.own_headers,
                    *headers,
                    *ending,
                ],
            }
        )

    async def _read_part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        self.body_bytes += len(part)
        self._body_read = not message.get("more_body", False)
        return part

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(LINGER_S):
                while not self._body_read:
                    await self._read_part()
        except (TimeoutError, ClientLeft):
            return


def _never() -> bool:
    return False


def _unwritten(body: bytes) -> None:
    raise InvariantError(f"{len(body)} bytes are written at once on a server that cannot")


def _too_large(limit: int) -> RequestError:
    return RequestError(f"The body is larger than the limit of {limit} bytes.", status=413, code="body_too_large")
