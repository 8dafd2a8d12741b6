"""Heads of requests over real sockets: bounded in size and time, refused in OpenAI's shape."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from tests.integration.small_sockets import small_socket
from tests.unit.adapters.gateway.fakes import MODEL, FakeServing, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.protocol import http_protocol
from headway.adapters.gateway.settings import GatewaySettings, LimitSettings, StreamSettings

TOY = toy_tokenizer()
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


def talk(conversation: Talk, *, header_timeout_s: float = 20.0) -> bytes:
    """Run a conversation with the protocol on a socket, inside one loop."""
    settings = GatewaySettings(limits=LimitSettings(header_bytes=2000, header_timeout_s=header_timeout_s))

    async def run() -> bytes:
        app = build_app(FakeServing(TOY), {MODEL: TOY}, settings)
        config = uvicorn.Config(app, http=http_protocol(settings), log_level="critical", lifespan="off")
        config.load()
        state = uvicorn.server.ServerState()

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(config=config, server_state=state, app_state={})

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            return await conversation(reader, writer)
        finally:
            writer.close()
            server.close()
            await asyncio.gather(*state.tasks)

    return asyncio.run(run())


def sends(raw: bytes) -> Talk:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(raw)
        return await reader.read()

    return conversation


def refusal(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert b"connection: close" in head
    return int(head.split()[1]), error["code"]


@pytest.mark.parametrize("raw", [b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"])
def test_what_is_not_http_is_refused_in_openais_shape(raw: bytes) -> None:
    # SPEC H1
    assert refusal(talk(sends(raw))) == (400, "invalid_http")


@pytest.mark.parametrize("raw", [b"GET /health HTTP/1.1\r\nx: " + b"y" * 5000, b"GET /" + b"y" * 5000])
def test_a_head_without_end_is_refused(raw: bytes) -> None:
    # SPEC M5
    assert refusal(talk(sends(raw))) == (431, "headers_too_large")


def test_a_head_that_does_not_come_is_refused() -> None:
    raw = b"GET /health HTTP/1.1\r\nx: "
    assert refusal(talk(sends(raw), header_timeout_s=0.01)) == (408, "header_timeout")


def test_a_silent_connection_is_closed() -> None:
    assert talk(sends(b""), header_timeout_s=0.01) == b""


def test_a_body_does_not_count_as_head_and_later_requests_have_their_own_limits() -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        out = b""
        for _ in range(3):
            body = json.dumps({"model": MODEL, "prompt": "a " * 900}).encode()
            writer.write(b"POST /tokenize HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            await reader.readexactly(length)
            out += head.split()[1]
        return out

    assert talk(conversation) == b"200200200"


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n"])
def test_who_takes_nothing_of_a_whole_answer_is_dropped_with_what_waits_for_it(more: bytes) -> None:
    # SPEC M5
    async def run() -> None:
        settings = GatewaySettings(stream=StreamSettings(stall_timeout_s=0.02))
        app, lost = build_app(FakeServing(TOY), {MODEL: TOY}, settings), asyncio.Event()

        class Watched(http_protocol(settings)):  # type: ignore[misc]  # made at run time
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                lost.set()

        config = uvicorn.Config(app, http=Watched, log_level="critical", lifespan="off")
        config.load()
        state = uvicorn.server.ServerState()
        listener, client = small_socket(), small_socket()
        listener.bind(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Watched(config=config, server_state=state, app_state={}), sock=listener
        )
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n" + more + b"\r\n")
        await asyncio.wait_for(lost.wait(), 20)
        client.close()
        server.close()
        assert not state.connections

    asyncio.run(run())
