"""Requests of the relay against h11 as the oracle: nothing is smuggled, nothing crashes (SPEC M5).

A connection is fed with mutated requests, in pieces, and a canary behind them. What the relay took for requests must be
the beginning of what h11 takes for them; all of it, unless the relay has refused, closed or handed the connection on.
"""

import asyncio
import json
import random
from collections.abc import Callable

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.config import Config
from uvicorn.server import ServerState

from headway.adapters.gateway.relay.connection import relay_protocol
from headway.adapters.gateway.relay.ports import Exchange, RelayModel
from headway.adapters.gateway.relay.prepare import Prepared
from headway.adapters.gateway.relay.server import RelayServer
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.effects import ErrorOut
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.reports import RateLimits
from headway.core.request import TextRequest

ROUTE = b"/v1/completions"
CANARY = json.dumps({"model": "m", "prompt": "canary"}).encode()


class Taker:
    """Takes every request, and answers it at once."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def now_ns(self) -> int:
        return 0

    def model(self, name: str) -> RelayModel | None:
        return RelayModel(ModelId(name), 1)

    def submit(self, exchange: Exchange, request: TextRequest) -> None:
        self.bodies.append(exchange.body)
        exchange.fail(ErrorOut(429, "queue_full", "taken"))

    def gone(self, request: RequestId) -> None: ...

    def limits(self, tenant: TenantId) -> RateLimits:
        return RateLimits()

    def closed(self, request: RequestId, first_byte_ns: int | None, input_bytes: int) -> None: ...

    def submitted(self, prepared: Prepared) -> None: ...

    def refused(self) -> None: ...


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


class Sink:
    """In the place of uvicorn's protocol, which is fuzzed elsewhere: it takes the rest of the connection."""

    is_idle = False

    def connection_made(self, transport: asyncio.Transport) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def data_received(self, data: bytes) -> None: ...


class Outcome:
    """What the relay made of the bytes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.bodies: list[bytes] = []
        self.is_open = True  # and its own
        asyncio.run(self._feed(pieces))

    async def _feed(self, pieces: list[bytes]) -> None:
        taker, wire, loop = Taker(), Wire(), asyncio.get_running_loop()
        broken: list[object] = []
        loop.set_exception_handler(lambda _, context: broken.append(context))
        relay = RelayServer(taker, GatewaySettings(), taker, loop)

        def foreign(*_: object) -> Sink:
            self.is_open = False
            return Sink()

        relay.foreign = foreign  # type: ignore[method-assign,assignment]
        made = relay_protocol(relay)(config=Config("x"), server_state=ServerState(), app_state={}, _loop=loop)  # type: ignore[call-arg]
        made.connection_made(wire)
        for piece in pieces:
            if wire.closed:
                break
            made.data_received(piece)
            for _ in range(12):
                await asyncio.sleep(0)  # the next pipelined request begins in a turn of its own
        self.is_open = self.is_open and not wire.closed
        self.bodies = taker.bodies
        made.connection_lost(None)
        relay.sweep._timer.cancel()  # type: ignore[union-attr]
        assert not broken


def by_h11(data: bytes) -> tuple[list[bytes], bool]:
    """The bodies of the requests, and whether the connection was still in order at the end.

    h11 refuses empty lines before a request, which servers should ignore (RFC 9112, 2.2): they are taken away.
    """
    bodies: list[bytes] = []
    while True:
        while data.startswith(b"\r\n"):
            data = data[2:]
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(data)
        body = b""
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                    return bodies, event is h11.NEED_DATA
                if isinstance(event, h11.Data):
                    body += event.data
        except h11.RemoteProtocolError:
            return bodies, False
        bodies.append(body)
        if connection.their_state is h11.MUST_CLOSE:
            return bodies, False
        data, _ = connection.trailing_data


def check(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    ours, (theirs, in_order) = Outcome(pieces), by_h11(data)
    assert ours.bodies == theirs[: len(ours.bodies)], data
    if ours.is_open and in_order:
        assert ours.bodies == theirs, data


def post(body: bytes, lines: bytes = b"", framing: bytes | None = None) -> bytes:
    if framing is None:
        framing = b"content-length: %d\r\n" % len(body)
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%b%b\r\n%b" % (ROUTE, lines, framing, body)


def chunks(body: bytes, sizes: list[int], ext: bytes = b"", trailer: bytes = b"") -> bytes:
    out, at = b"", 0
    for size in sizes:
        part = body[at : at + size]
        at += size
        if part:
            out += b"%x%b\r\n%b\r\n" % (len(part), ext, part)
    if body[at:]:
        out += b"%X\r\n%b\r\n" % (len(body[at:]), body[at:])
    return out + b"0\r\n" + trailer + b"\r\n"


CHUNKED = b"transfer-encoding: chunked\r\n"
BODY = json.dumps({"model": "m", "prompt": "x" * 40}).encode()
SMUGGLED = post(b'{"model":"m","prompt":"smuggled"}')
ODD = [
    post(SMUGGLED, framing=b"content-length: 0\r\n"),
    post(chunks(BODY, [5]) + SMUGGLED, framing=b"content-length: 6\r\n" + CHUNKED),
    post(chunks(BODY, [5]), framing=CHUNKED + b"content-length: 6\r\n"),
    post(b"0\r\n\r\n" + SMUGGLED, framing=CHUNKED),
    post(chunks(BODY, [5]), framing=b"Transfer-Encoding: xchunked\r\n"),
    post(chunks(BODY, [5]), framing=b"Transfer-Encoding : chunked\r\n"),
    post(chunks(BODY, [5]), framing=b"Transfer-Encoding:\tchunked\r\n"),
    post(chunks(BODY, [5]), framing=b"Transfer-Encoding: gzip, chunked\r\n"),
    post(chunks(BODY, [5]), framing=b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
    post(chunks(BODY, [5]), framing=b"Transfer-Encoding: \x0bchunked\r\n"),
    post(chunks(BODY, [5]), framing=b"X: y\nTransfer-Encoding: chunked\r\n"),
    post(chunks(BODY, [5]), framing=b"Transfer-Encoding:\r\n chunked\r\n"),
    post(BODY, framing=b"content-length: %d\r\ncontent-length: %d\r\n" % (len(BODY), len(BODY))),
    post(BODY, framing=b"content-length: %d, %d\r\n" % (len(BODY), len(BODY))),
    post(BODY, framing=b"content-length: +%d\r\n" % len(BODY)),
    post(BODY, framing=b"content-length: 0x%x\r\n" % len(BODY)),
    post(BODY, framing=b"content-length: 00%d\r\n" % len(BODY)),
    post(BODY, framing=b"content-length: -1\r\n"),
    post(BODY, framing=b"content-length: \r\n"),
    post(BODY, b"x: a\r\n b\r\n"),
    post(BODY, b": empty\r\n"),
    post(BODY, b"x\r\n"),
    post(BODY, b"x: \x00\r\n"),
    post(BODY, b"x: caf\xe9\r\n"),
    post(BODY).replace(b"\r\n", b"\n"),
    post(BODY).replace(b"host: x\r\n", b""),
    post(BODY).replace(b"host: x\r\n", b"host: x\r\nhost: y\r\n"),
    post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"),
    post(BODY).replace(b"HTTP/1.1", b"HTTP/2.0"),
    post(BODY).replace(b" HTTP", b"  HTTP"),
    post(chunks(BODY, [3, 4], ext=b";a=b"), framing=CHUNKED),
    post(chunks(BODY, [3, 4], ext=b" ;a=\x00"), framing=CHUNKED),
    post(chunks(BODY, [3, 4], ext=b"\n"), framing=CHUNKED),
    post(chunks(BODY, [3, 4], trailer=b"x: y\r\ncontent-length: 9\r\n"), framing=CHUNKED),
    post(chunks(BODY, [3, 4], trailer=b"content-length:\xee9\r\n"), framing=CHUNKED),
    post(chunks(BODY, [3, 4], trailer=b"x y\r\n"), framing=CHUNKED),
    post(b"0x5\r\nabcde\r\n0\r\n\r\n", framing=CHUNKED),
    post(b"5_0\r\nabcde\r\n0\r\n\r\n", framing=CHUNKED),
    post(b"5\r\nabcdef\r\n0\r\n\r\n", framing=CHUNKED),
    post(b"-5\r\nabcde\r\n0\r\n\r\n", framing=CHUNKED),
    post(b"ffffffffffffffffff\r\nabcde\r\n0\r\n\r\n", framing=CHUNKED),
    post(chunks(BODY, [5]), framing=CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0"),
    post(BODY, b"connection: close\r\n"),
    post(BODY, b"expect: 100-continue\r\n"),
    b"\r\n\r\n" + post(BODY),
    post(BODY) + b"\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_requests_are_read_as_h11_reads_them_or_refused(number: int) -> None:
    data = ODD[number] + post(CANARY)
    check([data])
    check([data[at : at + 1] for at in range(len(data))])


def test_a_request_split_at_every_byte_is_the_same_request() -> None:
    for data in (post(BODY) + post(CANARY), post(chunks(BODY, [1, 7, 20]), framing=CHUNKED) + post(CANARY)):
        for at in range(1, len(data)):
            assert Outcome([data[:at], data[at:]]).bodies == [BODY, CANARY]


def _mutated(data: bytes, rng: random.Random) -> bytes:
    """Change a few bytes near the framing: that is where parsers differ."""
    pieces: list[Callable[[], bytes]] = [
        lambda: b"\r\n",
        lambda: b"\n",
        lambda: b"\r",
        lambda: b" ",
        lambda: b"\t",
        lambda: b":",
        lambda: b"0",
        lambda: b"\x00",
        lambda: bytes([rng.randrange(256)]),
        lambda: b"content-length: %d\r\n" % rng.randrange(60),
        lambda: CHUNKED,
        lambda: SMUGGLED,
    ]
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(3):
            case 0:
                out[at:at] = rng.choice(pieces)()
            case 1:
                del out[at : at + rng.randrange(1, 4)]
            case _:
                out[at : at + 1] = rng.choice(pieces)()
    return bytes(out)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 3))
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_requests_are_never_smuggled(seed: int, count: int) -> None:
    rng = random.Random(seed)
    data = b""
    for _ in range(count):
        base = rng.choice([post(BODY), post(chunks(BODY, [rng.randrange(1, 20), 9]), framing=CHUNKED), *ODD])
        data += _mutated(base, rng) if rng.random() < 0.8 else base
    data += post(CANARY)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
    check([data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)])
