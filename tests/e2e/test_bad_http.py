"""Raw bytes on the socket: what no proper client sends is answered in OpenAI's shape or dropped, and nothing hangs."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.e2e.serving import Server, serve, until
from tests.e2e.wire import Answer, Connection, request_bytes

CHAT = "/v1/chat/completions"
TOKENIZE = b'{"prompt": "abc"}'
POST = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
WEBSOCKET = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = ("limits.header_timeout_s=1", "limits.body_timeout_s=1", "limits.keep_alive_s=2")
    settings = [part for limit in (*limits, "engine.synthetic.step_us=5000") for part in ("--set", limit)]
    with serve("--engine", "synthetic", *settings) as running:
        yield running
        until(lambda: not running.held(), lambda: f"the ledger is back to zero: {running.held()}")
        assert not [line for line in running.errors if "Traceback" in line], running.errors
        assert running.process.poll() is None


def chat(tokens: int, *, stream: bool = False) -> dict[str, object]:
    content = [{"role": "user", "content": "Count"}]
    return {"model": "synthetic", "messages": content, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


def ask(server: Server, raw: bytes, method: str = "POST") -> tuple[Answer, bytes]:
    """The first answer, and what follows it up to the end of the connection."""

    async def run() -> tuple[Answer, bytes]:
        connection = await Connection.open(server.url)
        await connection.send(raw)
        answer = await connection.answer(method)
        assert answer is not None
        connection.writer.write_eof()
        rest = await asyncio.wait_for(connection.reader.read(), 10)
        await connection.close()
        return answer, rest

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x00\x01\x02\x03\r\n\r\n", 400),
        (bytes.fromhex("16030100c8010000c4"), 400),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /health HTTP/7.3\r\n\r\n", 400),
        (b"BREW /health HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost : x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: x\x00\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n", 400),
        (POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        (POST + b"content-length: -1\r\n\r\n", 400),
        (POST + b"content-length: ten\r\n\r\n", 400),
        (POST + b"content-length: 99999999999999999999999\r\n\r\n", 400),
        (POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
        (POST + b"content-length: 999999999999\r\n\r\n", 413),
        (POST + b"content-length: 99\r\n\r\n{", 408),
        (POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{", 408),
        (POST + b"content-leng", 408),
        (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nx: " + b"a" * 2_000_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % i for i in range(20_000)) + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"x: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"GET /v1/models/%ff%00%0d%0a HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + WEBSOCKET + b"\r\n", 405),
        (POST + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x8b", 415),
        (POST + b"\r\n", 400),
    ],
    ids=lambda given: repr(given[:60])[2:-1] if isinstance(given, bytes) else "",
)
def test_broken_requests_are_refused_in_openais_shape(server: Server, raw: bytes, status: int) -> None:
    # SPEC H1
    answer, rest = ask(server, raw)
    assert answer.status == status, answer.body
    assert answer.complete
    assert answer.error()
    assert answer.headers["x-request-id"]
    assert rest == b""


@pytest.mark.parametrize(
    "raw",
    [
        POST + b"content-length: 17\r\n\r\n" + TOKENIZE,
        POST + b"content-length: 17\r\nexpect: 100-continue\r\n\r\n" + TOKENIZE,
        POST + b"transfer-encoding: chunked\r\n\r\n11\r\n" + TOKENIZE + b"\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n11;ext=1\r\n" + TOKENIZE + b"\r\n0\r\nx-trailer: 1\r\n\r\n",
        POST + H2C + b"content-length: 17\r\n\r\n" + TOKENIZE,
        POST + H2C + b"transfer-encoding: chunked\r\n\r\n11\r\n" + TOKENIZE + b"\r\n0\r\n\r\n",
        POST + WEBSOCKET + b"content-length: 17\r\n\r\n" + TOKENIZE,
        b"POST http://elsewhere/tokenize?a=b HTTP/1.1\r\ncontent-length: 17\r\n\r\n" + TOKENIZE,
        b"POST /tokenize HTTP/1.0\r\ncontent-length: 17\r\n\r\n" + TOKENIZE,
        b"\r\n" + POST + b"content-length: 17\r\n\r\n" + TOKENIZE + b"\r\n",
        POST + b"content-length: 65553\r\n\r\n" + TOKENIZE + b" " * 65536,
    ],
    ids=range(11),
)
def test_unusual_requests_are_served(server: Server, raw: bytes) -> None:
    answer, rest = ask(server, raw)
    assert answer.status == 200, answer.body
    assert answer.json()["tokens"] == [97, 98, 99]
    assert rest == b""


def test_a_slow_head_and_a_slow_body_that_arrive_in_time_are_served(server: Server) -> None:
    async def run() -> Answer | None:
        connection = await Connection.open(server.url)
        for piece in (POST, H2C, b"content-length: 17\r\n", b"\r\n", TOKENIZE[:5], TOKENIZE[5:]):
            await connection.send(piece)
            await asyncio.sleep(0.05)
        answer = await connection.answer()
        await connection.close()
        return answer

    answer = asyncio.run(run())
    assert answer is not None
    assert answer.status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_pipelined_neither_changes_nor_cuts_the_answer_before_it(server: Server, stream: bool) -> None:
    raw = request_bytes(CHAT, chat(4, stream=stream), {"x-request-id": "first"})
    for behind in (request_bytes(CHAT, chat(4), {"x-request-id": "second", "x-other": "x"}), b"\x00garbage\r\n\r\n"):
        answer, rest = ask(server, raw + behind)
        assert answer.status == 200
        assert answer.complete
        assert answer.headers["x-request-id"] == "first"
        assert rest == b""
    until(lambda: not server.held(), "the ledger is back to zero")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_pipelines_and_leaves_frees_everything(server: Server, stream: bool) -> None:
    # SPEC B5
    async def run() -> None:
        connection = await Connection.open(server.url)
        await connection.send(request_bytes(CHAT, chat(8000, stream=stream)))
        while not any("kv_blocks" in name for name in server.held()):
            await asyncio.sleep(0.01)
        await connection.send(request_bytes(CHAT, chat(8000)) * 3)
        await asyncio.sleep(0.05)
        connection.drop()

    asyncio.run(run())
    until(lambda: not server.held(), lambda: f"freed: {server.held()}", 2.0)


def test_a_connection_serves_one_request_after_another(server: Server) -> None:
    async def run() -> list[int]:
        connection = await Connection.open(server.url)
        statuses = []
        for raw in (
            request_bytes("/nothing", {"a": "x" * 300_000}),  # refused before its body was read
            request_bytes("/tokenize", {"prompt": "abc"}),
            request_bytes(CHAT, chat(3, stream=True)),
            request_bytes("/tokenize", b"{"),
            request_bytes(CHAT, chat(3)),
        ):
            await connection.send(raw)
            answer = await connection.answer()
            assert answer is not None
            statuses.append(answer.status)
        await connection.close()
        return statuses

    assert asyncio.run(run()) == [404, 200, 200, 400, 200]


def test_silent_connections_are_closed(server: Server) -> None:
    async def run() -> list[bytes]:
        silent = [await Connection.open(server.url) for _ in range(3)]
        await silent[1].send(request_bytes("/health"))
        await silent[1].answer()
        rest = [await asyncio.wait_for(one.reader.read(), 10) for one in silent]
        for one in silent:
            await one.close()
        return rest

    assert asyncio.run(run()) == [b""] * 3
