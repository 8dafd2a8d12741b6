"""What the relay needs of the system behind it, and what both sides of a relayed request say to each other.

`live` implements `RelayServing` and `Answering`; the gateway implements `Exchange`; `adapters/upstream/pool.py` starts
an `UpstreamCall` that pours an upstream's answer into an exchange.
"""

from typing import Literal, Protocol

import msgspec

from headway.core.effects import ErrorOut
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.reports import RateLimits
from headway.core.request import TextRequest
from headway.core.units import Ns

Health = Literal["success", "neutral", "fault"]  # what the breaker learns (core.messages.Finished)
Framing = Literal["length", "chunked"]


class RelayModel(msgspec.Struct, frozen=True):
    """A name that clients use, as the relay must know it. Which replica serves it under which name is a `Target`."""

    model: ModelId  # what is routed: the name itself, or what it is an alias of
    max_tokens_default: int  # output to plan with where the client sets no limit
    bytes_per_token: float = 4.0  # of the conversation's text, learned
    lora: str | None = None  # the name is an adapter of `model`
    echo: str | None = None  # who answers, in the header `x-headway-model`: the client asked for another name


class RelayServing(Protocol):
    """The system behind the relay. Called from the event loop only; no call blocks."""

    def now_ns(self) -> Ns:
        """The run's clock."""
        ...

    def model(self, name: str) -> RelayModel | None:
        """How `name` is relayed; None when it is not: then the request goes the way of our own engines."""
        ...

    def limits(self, tenant: TenantId) -> RateLimits:
        """What is left of the tenant's quota, for the headers of its answer."""
        ...

    def submit(self, exchange: "Exchange", request: TextRequest) -> None:
        """Hand over a request. It ends by the exchange's `finish` or `fail`, called once, by whoever knows first."""
        ...

    def gone(self, request: RequestId) -> None:
        """The client left: cancel it everywhere. `closed` follows. Unknown or ended requests: nothing happens."""
        ...

    def closed(self, request: RequestId, first_byte_ns: Ns | None, input_bytes: int) -> None:
        """The last byte of the answer was handed to the transport, or never will be. Once per submitted request."""
        ...


class AnswerHead(msgspec.Struct, frozen=True):
    """The head of an upstream's answer as it goes to the client, without hop-by-hop headers."""

    status: int
    lines: bytes  # status line and header lines, each with its CRLF; with framing `length` its content-length is there
    framing: Framing
    is_event_stream: bool


class Exchange(Protocol):
    """The server side of one client request, as an upstream call and the front's End see it.

    After `finish`, `fail` or the client's departure every call is ignored.
    """

    @property
    def request(self) -> RequestId: ...

    @property
    def body(self) -> bytes:
        """The client's JSON, as it came."""
        ...

    @property
    def path(self) -> bytes:
        """`/v1/chat/completions` or `/v1/completions`."""
        ...

    @property
    def forwarded(self) -> bytes:
        """Header lines for the upstream, each with its CRLF: no hop-by-hop, no authorization, no host, no length."""
        ...

    @property
    def authorization(self) -> bytes | None:
        """The client's own credentials: for upstreams whose rule is `forward`, and nobody else (litellm#12090)."""
        ...

    @property
    def received_ns(self) -> Ns:
        """When the first byte of the request came (RequestArrived.received_ns)."""
        ...

    @property
    def body_ns(self) -> Ns:
        """When its last byte came."""
        ...

    @property
    def has_begun(self) -> bool:
        """The answer's head is on its way to the client."""
        ...

    def detach(self, call: "UpstreamCall") -> None:
        """The call is over; another one may be attached by now."""
        ...

    def attach(self, call: "UpstreamCall") -> None:
        """The call that answers now: it is paused while the client is slow, and cancelled when it leaves."""
        ...

    def begin(self, head: AnswerHead) -> None:
        """Send the head of the answer, with the first `write`, or at `flush`."""
        ...

    def write(self, part: bytes) -> None:
        """Send a part of the body; with framing `chunked` it consists of whole, well-formed chunks."""
        ...

    def flush(self) -> None:
        """Let a head leave that no part of the body has followed yet; `finish` and `fail` do so themselves."""
        ...

    def echo_model(self, name: str) -> None:
        """Nothing was sent yet: tell the client in a header which model answers in place of the one it named."""
        ...

    def finish(self, last: bytes = b"") -> None:
        """The answer is complete with this part: one write for both."""
        ...

    def fail(self, error: ErrorOut) -> None:
        """End with an error: as the answer if nothing was sent, else as the last event of the stream, without `[DONE]`;
        an answer that is cut in its body closes the connection."""
        ...


class Usage(msgspec.Struct, frozen=True):
    """What an answer cost. Tokens are None where the upstream told no usage."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    chunks: int  # parts of the answer: about one per token of an event stream
    first_byte_ns: Ns | None = None  # of the body, at our side
    last_byte_ns: Ns | None = None

    @property
    def output_tokens(self) -> int:
        """As told, else as counted."""
        return self.chunks if self.completion_tokens is None else self.completion_tokens


class Target(msgspec.Struct, frozen=True):
    """What one upstream wants to see in place of what the client wrote."""

    model: str | None = None  # its own name of the model; None: as the client wrote it
    max_tokens: int | None = None  # admission took some away; None: as the client wrote it


class Answering(Protocol):
    """Who hears how one upstream call goes. Exactly one of `done`, `refused` and `fault` ends it; none after `cancel`.

    Before `begun` nothing has reached the client, so `refused` and `fault` let the request run elsewhere. An answer
    that comes whole in one piece is `done` without having `begun`: its first byte says nothing of a first token.
    """

    def begun(self) -> None:
        """The head is on its way to the client."""
        ...

    def done(self, usage: Usage, health: Health) -> None:
        """The whole answer was handed to the exchange, which is finished. A 4xx is an answer: health neutral."""
        ...

    def refused(self, status: int, retry_after_ms: int | None) -> None:
        """429 or 503: back-pressure, not a fault. Nothing was forwarded. One of this request alone is `done`."""
        ...

    def fault(self, reason: str) -> None:
        """Another 5xx before the first byte, no connection, a timeout, or bytes that are no HTTP. After `begun`, the
        exchange waits for `fail`."""
        ...


class UpstreamCall(Protocol):
    """One request at one upstream."""

    def cancel(self) -> None:
        """Abort the connection now, so that the engine stops. Nothing is told any more."""
        ...

    def pause(self) -> None:
        """Read nothing from the upstream: the client is slow."""
        ...

    def resume(self) -> None:
        """Go on reading."""
        ...


class Pool(Protocol):
    """The connections to one upstream (`adapters/upstream/pool.py`)."""

    def start(self, exchange: Exchange, target: Target, answering: Answering) -> UpstreamCall:
        """Send the request. Nothing is told before it returns."""
        ...

    def close(self) -> None:
        """Drop idle connections; running calls go on."""
        ...
