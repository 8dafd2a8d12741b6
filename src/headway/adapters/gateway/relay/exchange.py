"""The server side of one relayed request (`ports.Exchange`): what leaves for the client, and how it ends."""

from collections.abc import Callable
from typing import Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headway.adapters.gateway.errors import error_body, error_headers
from headway.adapters.gateway.rate_headers import rate_headers
from headway.adapters.gateway.relay.ports import AnswerHead, RelayServing, UpstreamCall
from headway.adapters.gateway.relay.prepare import Arrival, Prepared, echo_line
from headway.adapters.gateway.render import error_event
from headway.adapters.http1.chunks import LAST_CHUNK, framed, payload_of
from headway.core.effects import ErrorOut
from headway.core.ids import RequestId
from headway.core.units import Ns

CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"  # HTTP/1.0 clients that asked for it wait to be told
CHUNKED: Final = b"transfer-encoding: chunked\r\n"


class Wire(Protocol):
    """The client's connection, as its exchange uses it."""

    @property
    def send(self) -> Callable[[bytes], None]:
        """Writes, without waiting."""
        ...

    @property
    def is_stuck(self) -> bool:
        """The client takes less than it is sent."""
        ...

    def answered(self, keep_alive: bool) -> None:
        """The answer is complete; the next request may come, or the connection closes."""
        ...

    def cut(self) -> None:
        """Drop the connection: its answer cannot be completed."""
        ...


class RelayExchange:
    """One request and its answer."""

    def __init__(self, serving: RelayServing, wire: Wire, arrival: Arrival, prepared: Prepared) -> None:
        self.body, self.path = arrival.body, arrival.head.target.encode()
        self.forwarded, self.authorization = prepared.forwarded, prepared.authorization
        self.received_ns: Ns = arrival.received_ns
        self.body_ns: Ns = arrival.arrived_ns
        self.has_begun = False
        self.is_over = False
        self._serving, self._wire = serving, wire
        self._send = wire.send
        self._id = prepared.request.id
        self._own_lines, self._tenant = prepared.own_lines, prepared.request.tenant
        self._keep_alive, self._is_old = arrival.head.keep_alive, arrival.head.minor == 0
        self._head: AnswerHead | None = None
        self._call: UpstreamCall | None = None
        self._first_byte_ns: Ns | None = None
        self._held = b""

    @property
    def request(self) -> RequestId:
        """Its id."""
        return self._id

    # From the upstream and the front

    def detach(self, call: UpstreamCall) -> None:
        """The call is over; another one may be attached by now."""
        if self._call is call:
            self._call = None

    def attach(self, call: UpstreamCall) -> None:
        """The call that answers now."""
        self._call = call
        if self._wire.is_stuck:
            call.pause()

    def echo_model(self, name: str) -> None:
        """Tell the client which model answers."""
        self._own_lines = _without_echo(self._own_lines) + echo_line(name)

    def begin(self, head: AnswerHead) -> None:
        """Send the head of the answer."""
        if self.is_over:
            return
        self.has_begun, self._head = True, head
        lines = head.lines
        if self._is_old and head.framing == "chunked":  # HTTP/1.0 knows no chunks: the end of the connection ends it
            lines, self._keep_alive = lines.replace(CHUNKED, b""), False
        ending = CLOSE
        if self._keep_alive:
            ending = KEEP if self._is_old else b""
        self._held = lines + self._own_lines + self._limit_lines() + ending + b"\r\n"

    def write(self, part: bytes) -> None:
        """Send a part of the body."""
        if self.is_over:
            return
        if self._first_byte_ns is None:  # the head may have left before it (`flush`)
            self._first_byte_ns = self._serving.now_ns()
        if self._held:
            part, self._held = self._held + self._shaped(part), b""
        elif self._is_old:
            part = self._shaped(part)
        self._send(part)

    def _shaped(self, part: bytes) -> bytes:
        return payload_of(part) if self._is_old and self._is_chunked else part

    def flush(self) -> None:
        """Let a head leave that no part of the body has followed yet."""
        if self._held and not self.is_over:
            held, self._held = self._held, b""
            self._send(held)

    @property
    def _is_chunked(self) -> bool:
        return self._head is not None and self._head.framing == "chunked"

    def finish(self, last: bytes = b"") -> None:
        """The answer is complete."""
        if self.is_over:
            return
        if self._first_byte_ns is None and last:
            self._first_byte_ns = self._serving.now_ns()
        ending = LAST_CHUNK if self._is_chunked and not self._is_old else b""
        self._send(self._held + self._shaped(last) + ending)
        self._end()
        self._wire.answered(self._keep_alive)

    def fail(self, error: ErrorOut) -> None:
        """End with an error."""
        if self.is_over:
            return
        head = self._head
        self._drop_call()
        self.flush()
        if head is None:
            self._send(error_answer(error, self._own_lines + self._limit_lines(), self._keep_alive))
            self._end()
            self._wire.answered(self._keep_alive)
        elif head.framing == "chunked" and head.is_event_stream:
            event = error_event(error)
            self._send(event if self._is_old else framed(event) + LAST_CHUNK)
            self._end()
            self._wire.answered(self._keep_alive)
        else:
            self._end()
            self._wire.cut()

    def _limit_lines(self) -> bytes:
        return b"".join(b"%b: %b\r\n" % header for header in rate_headers(self._serving.limits(self._tenant)))

    # From the client's connection

    def left(self) -> None:
        """The client is gone: stop the engine now, then tell the front."""
        if not self.is_over:
            self._drop_call()
            self._serving.gone(self._id)
            self._end()

    def close_after(self) -> None:
        """Close the connection behind this answer."""
        self._keep_alive = False

    def stuck(self) -> None:
        """The client is slow."""
        if self._call is not None:
            self._call.pause()

    def unstuck(self) -> None:
        """The client has caught up."""
        if self._call is not None:
            self._call.resume()

    def _drop_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._call = None
        self._serving.closed(self._id, self._first_byte_ns, len(self.body))


def _without_echo(lines: bytes) -> bytes:
    kept = [line for line in lines.splitlines(keepends=True) if not line.startswith(b"x-headway-model:")]
    return b"".join(kept)


def error_answer(error: ErrorOut, own_lines: bytes, keep_alive: bool) -> bytes:
    """Return a whole answer in OpenAI's shape."""
    body = error_body(error)
    lines = b"".join(b"%b: %b\r\n" % header for header in error_headers(error))
    return b"%bcontent-type: application/json\r\ncontent-length: %d\r\n%b%b%b\r\n%b" % (
        STATUS_LINE[error.status],
        len(body),
        own_lines,
        lines,
        b"" if keep_alive else CLOSE,
        body,
    )
