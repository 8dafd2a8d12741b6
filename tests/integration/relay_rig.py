"""A relaying server on a loopback socket, with one upstream behind it and no front: what is asked is sent at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uvicorn
from uvicorn.server import ServerState

from headway.adapters.gateway.relay.connection import ClientConnection, relay_protocol
from headway.adapters.gateway.relay.ports import Exchange, RelayModel, Target, Usage
from headway.adapters.gateway.relay.prepare import Prepared
from headway.adapters.gateway.relay.server import RelayServer
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.upstream.pool import Endpoint, PoolSettings, UpstreamPool
from headway.core.effects import ErrorOut
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.reports import RateLimits
from headway.core.request import TextRequest

MODEL = "model-a"
POLL_S = 0.002  # not 0: a loop that spins keeps the interpreter from the upstream's thread, 5 ms per call of its


class Heard:
    """One call's `Answering`: remembers, and answers the client as a front would."""

    def __init__(self, serving: "DirectServing", exchange: Exchange) -> None:
        self._serving, self._exchange = serving, exchange

    def begun(self) -> None:
        self._serving.told.append("begun")

    def done(self, usage: Usage, health: str) -> None:
        self._serving.told.append(f"done {health}")
        self._serving.usages.append(usage)

    def refused(self, status: int, retry_after_ms: int | None) -> None:
        self._serving.told.append(f"refused {status} {retry_after_ms}")
        self._exchange.fail(ErrorOut(429, "queue_full", "no replica has room", retry_after_ms))

    def fault(self, reason: str) -> None:
        self._serving.told.append("fault")
        self._serving.reasons.append(reason)
        self._exchange.fail(ErrorOut(502, "engine_lost", reason))


class DirectServing:
    """`RelayServing` and `Witness` without a front."""

    def __init__(self, target: Target) -> None:
        self.pool: UpstreamPool
        self.told: list[str] = []
        self.usages: list[Usage] = []
        self.reasons: list[str] = []
        self.requests: list[TextRequest] = []
        self.prepared: list[Prepared] = []
        self.ended: list[RequestId] = []
        self.first_bytes: list[int | None] = []
        self.changed = asyncio.Event()
        self._target = target

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    def model(self, name: str) -> RelayModel | None:
        return RelayModel(ModelId(name), 64) if name in (MODEL, "alias") else None

    def submit(self, exchange: Exchange, request: TextRequest) -> None:
        self.requests.append(request)
        self.pool.start(exchange, self._target, Heard(self, exchange))
        self.changed.set()

    def gone(self, request: RequestId) -> None:
        self.told.append("gone")
        self.changed.set()

    def limits(self, tenant: TenantId) -> RateLimits:
        return RateLimits()

    def closed(self, request: RequestId, first_byte_ns: int | None, input_bytes: int) -> None:
        self.ended.append(request)
        self.first_bytes.append(first_byte_ns)
        self.changed.set()

    def submitted(self, prepared: Prepared) -> None:
        self.prepared.append(prepared)

    def refused(self) -> None:
        self.told.append("bad request")

    async def until(self, count: int) -> None:
        """Wait until so many requests have ended."""
        async with asyncio.timeout(10):
            while len(self.ended) < count:
                self.changed.clear()
                await self.changed.wait()


async def other_app(scope: Any, receive: Any, send: Any) -> None:  # ASGI's own types
    """What our own routes would answer: method, path and body."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = json.dumps({"app": [scope["method"], scope["path"], body.decode()]}).encode()
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


class Rig(msgspec.Struct):
    """A running server."""

    port: int
    serving: DirectServing
    relay: RelayServer
    state: ServerState


@asynccontextmanager
async def rig(
    upstream_port: int,
    *,
    settings: GatewaySettings = GatewaySettings(),  # noqa: B008  frozen
    pool: PoolSettings = PoolSettings(),  # noqa: B008  frozen
    target: Target = Target(),  # noqa: B008  frozen
    authorization: str = "none",
) -> AsyncIterator[Rig]:
    loop = asyncio.get_running_loop()
    serving = DirectServing(target)
    serving.pool = UpstreamPool(Endpoint("127.0.0.1", upstream_port, authorization=authorization), pool, serving.now_ns)
    relay = RelayServer(serving, settings, serving, loop)
    config = uvicorn.Config(other_app, http=relay_protocol(relay), ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    made = config.http_protocol_class
    server = await loop.create_server(lambda: made(config=config, server_state=state, app_state={}), "127.0.0.1", 0)
    try:
        yield Rig(server.sockets[0].getsockname()[1], serving, relay, state)
    finally:
        server.close()
        for connection in list(state.connections):
            transport = connection._transport if isinstance(connection, ClientConnection) else connection.transport
            transport.abort()
        serving.pool.close()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await server.wait_closed()
        # A transport that was aborted is closed a turn later, and the upstream's another turn after its client's.
        async with asyncio.timeout(10):
            while state.connections or serving.pool.connections:
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(POLL_S)


def request(body: object, *, headers: str = "", path: str = "/v1/chat/completions", chunked: bool = False) -> bytes:
    """One POST as bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    if chunked:
        half = len(raw) // 2
        framed = b"%x\r\n%b\r\n%x;ext=1\r\n%b\r\n0\r\n\r\n" % (half, raw[:half], len(raw) - half, raw[half:])
        return f"POST {path} HTTP/1.1\r\nhost: x\r\n{headers}transfer-encoding: chunked\r\n\r\n".encode() + framed
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(raw)}\r\n\r\n".encode() + raw


class Answered(msgspec.Struct):
    """One answer off the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: int = 0


async def read_answer(reader: asyncio.StreamReader) -> Answered:
    """Read one answer."""
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(start.split(" ")[1])
        if headers.get("transfer-encoding") == "chunked":
            return await _read_chunks(reader, status, headers)
        if "content-length" in headers:
            return Answered(status, headers, await reader.readexactly(int(headers["content-length"])))
        return Answered(status, headers, await reader.read() if status >= 200 else b"")


async def _read_chunks(reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> Answered:
    body, chunks = b"", 0
    while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
        chunks += 1
    assert await reader.readexactly(2) == b"\r\n"
    return Answered(status, headers, body, chunks)


async def ask(port: int, *requests: bytes) -> list[Answered]:
    """Send requests over one connection, pipelined; return their answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"".join(requests))
        return [await read_answer(reader) for _ in requests]
    finally:
        writer.close()
        await writer.wait_closed()
