"""Bytes in, bytes out: what a relayed answer looks like to its client, and what an upstream's faults become."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.integration.relay_rig import MODEL, POLL_S, Rig, ask, read_answer, request, rig
from tests.upstream_server import Fault, Script, Upstream

from headway.adapters.gateway.relay.ports import Target
from headway.adapters.gateway.settings import ApiKey, AuthSettings, GatewaySettings, LimitSettings, StreamSettings
from headway.adapters.http1.chunks import payload_of
from headway.adapters.upstream.pool import PoolSettings
from headway.live.loop import run_loop

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}  # JSON
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
KEY = "sha256:2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # of `key`


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream(Script(tokens=6)) as server:
        yield server


def run(upstream: Upstream, test: Callable[[Rig], Awaitable[None]], **options: Any) -> None:  # of `rig`
    async def main() -> None:
        async with asyncio.timeout(15), rig(upstream.port, **options) as made:
            await test(made)

    run_loop(main())


def text_of(stream: bytes) -> str:
    events = [json.loads(line[6:]) for line in stream.decode().split("\n\n") if line.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])


def test_relays_an_answer_byte_for_byte(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT))
        assert answer.status == 200
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == upstream.expected(CHAT)
        assert upstream.seen[-1].raw == json.dumps(CHAT).encode()
        assert made.serving.told == ["done success"]

    run(upstream, test)


def test_relays_a_stream_chunk_by_chunk_with_its_usage(upstream: Upstream) -> None:
    upstream.script = Script(tokens=6, token_ms=3)

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(STREAM))
        assert text_of(answer.body) == upstream.expected(STREAM)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert answer.chunks >= 6  # nothing was coalesced
        assert made.serving.told == ["begun", "done success"]
        usage = made.serving.usages[0]
        assert usage.completion_tokens == 6
        assert usage.prompt_tokens is not None

    run(upstream, test)


def test_a_chunked_request_arrives_whole(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT, chunked=True))
        assert answer.status == 200
        assert upstream.seen[-1].body == CHAT

    run(upstream, test)


def test_a_query_is_relayed_with_its_request(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT, path="/v1/chat/completions?api-version=2024"))
        assert answer.status == 200
        assert upstream.targets[-1] == "/v1/chat/completions?api-version=2024"

    run(upstream, test)


def test_pipelined_requests_are_answered_in_turn(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        bodies = [{**CHAT, "messages": [{"role": "user", "content": f"n{n}"}]} for n in range(4)]
        answers = await ask(made.port, *(request(body) for body in bodies))
        said = [json.loads(answer.body)["choices"][0]["message"]["content"] for answer in answers]
        assert said == [upstream.expected(body) for body in bodies]

    run(upstream, test)


def test_what_is_not_relayed_goes_to_our_own_routes_on_the_same_connection(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        own = {**CHAT, "model": "own-model"}
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        for sent, expected in (
            (request(CHAT), None),
            (request(own, chunked=True), ["POST", "/v1/chat/completions", json.dumps(own)]),
            (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", ["GET", "/v1/models", ""]),
            (request(b"{broken"), ["POST", "/v1/chat/completions", "{broken"]),
            (request(CHAT), None),
        ):
            writer.write(sent)
            answer = await read_answer(reader)
            assert answer.status == 200
            if expected is not None:
                assert json.loads(answer.body) == {"app": expected}
            else:
                assert "choices" in json.loads(answer.body)
        writer.close()

    run(upstream, test)


def test_a_client_that_leaves_stops_the_upstream_at_once(upstream: Upstream) -> None:
    # smg#2136
    upstream.inject(Fault("half_open"))

    async def test(made: Rig) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(request(STREAM))
        async with asyncio.timeout(10):
            while not upstream.counts.connections_open:
                await asyncio.sleep(POLL_S)
        writer.close()
        await made.serving.until(1)
        assert made.serving.told == ["gone"]
        async with asyncio.timeout(10):
            while upstream.counts.connections_open:
                await asyncio.sleep(POLL_S)

    run(upstream, test)


@pytest.mark.parametrize(("told", "believed"), [("999999", "60000"), ("-5", "None"), ("1e3", "None"), ("0.25", "250")])
def test_a_retry_after_is_believed_within_reason(upstream: Upstream, told: str, believed: str) -> None:
    upstream.inject(Fault("status", status=429, retry_after=told))

    async def test(made: Rig) -> None:
        await ask(made.port, request(CHAT))
        assert made.serving.told == [f"refused 429 {believed}"]

    run(upstream, test)


@pytest.mark.parametrize("status", [429, 503])
def test_back_pressure_of_an_upstream_is_told_and_not_forwarded(upstream: Upstream, status: int) -> None:
    # sglang#39464
    upstream.inject(Fault("status", status=status, retry_after="2"))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT))
        assert made.serving.told == [f"refused {status} 2000"]
        assert (answer.status, answer.headers["retry-after-ms"]) == (429, "2000")

    run(upstream, test)


def test_an_upstream_error_before_the_first_byte_is_told_and_not_forwarded(upstream: Upstream) -> None:
    upstream.inject(Fault("status", status=500))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT))
        assert made.serving.told == ["fault"]
        assert made.serving.reasons[0].startswith("status 500")
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "engine_lost")

    run(upstream, test)


def test_a_4xx_is_the_answer_and_says_nothing_of_health(upstream: Upstream) -> None:
    # sglang#25811, vllm-router#60
    upstream.inject(Fault("status", status=422))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT))
        assert answer.status == 422
        assert made.serving.told == ["done neutral"]

    run(upstream, test)


@pytest.mark.parametrize("kind", ["truncate", "reset", "garbage", "no_done"])
def test_a_stream_that_fails_ends_with_an_error_event_and_no_done(upstream: Upstream, kind: Any) -> None:
    # semantic-router#3063
    upstream.script = Script(tokens=6, token_ms=2)
    upstream.inject(Fault(kind, after=3))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(STREAM))
        *_, last, empty = answer.body.split(b"\n\n")
        assert empty == b""
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_lost"
        assert b"data: [DONE]" not in answer.body
        assert made.serving.told == ["begun", "fault"]
        assert len(made.serving.ended) == 1

    run(upstream, test)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"transfer-encoding: chunked\r\n", b'16\r\ndata: {"choices":[]}\n\n\r\n0\r\n\r\n'),
        (b"transfer-encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"content-length: 22\r\n", b'data: {"choices":[]}\n\n'),
        (b"content-length: 0\r\n", b""),
    ],
)
def test_a_stream_that_is_whole_in_one_read_and_ended_in_silence_reaches_nobody(head: bytes, body: bytes) -> None:
    # Nothing had begun, so that it is run again elsewhere: what was sent of it would stand before the other's head.
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + head + b"\r\n" + body)
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, rig(server.sockets[0].getsockname()[1]) as made:
            [answer] = await ask(made.port, request(STREAM))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "engine_lost")
            assert made.serving.told == ["fault"]

    run_loop(main())


@pytest.mark.parametrize("kind", ["truncate", "wrong_length"])
def test_a_json_answer_that_is_cut_closes_the_connection(upstream: Upstream, kind: Any) -> None:
    upstream.inject(Fault(kind, after=0))

    async def test(made: Rig) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(request(CHAT, headers="connection: close\r\n"))
        try:
            data = await reader.read()
        except ConnectionResetError:
            data = b""
        head, _, body = data.partition(b"\r\n\r\n")
        assert not data or b" 502 " in head or f"content-length: {len(body)}".encode() not in head
        await made.serving.until(1)
        writer.close()

    run(upstream, test)


def test_garbage_in_place_of_a_head_is_a_fault_and_reaches_nobody(upstream: Upstream) -> None:
    upstream.inject(Fault("garbage", after=0))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(STREAM))
        assert answer.status == 502
        assert made.serving.told == ["fault"]

    run(upstream, test)


def test_a_stale_connection_is_replaced_without_the_client_seeing_it(upstream: Upstream) -> None:
    # sglang#9926
    upstream.inject(Fault("close_idle", times=3))

    async def test(made: Rig) -> None:
        for _ in range(6):
            [answer] = await ask(made.port, request(CHAT))
            assert answer.status == 200
        assert made.serving.told == ["done success"] * 6

    run(upstream, test)


def test_connections_to_the_upstream_are_kept(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        for _ in range(5):
            await ask(made.port, request(CHAT))
        assert upstream.counts.connections == 1

    run(upstream, test)


def test_requests_beyond_connections_max_wait_for_one(upstream: Upstream) -> None:
    upstream.script = Script(tokens=4, token_ms=2)

    async def test(made: Rig) -> None:
        answers = await asyncio.gather(*(ask(made.port, request(STREAM)) for _ in range(6)))
        assert all(answer.status == 200 for [answer] in answers)
        assert upstream.counts.connections == 2

    run(upstream, test, pool=PoolSettings(connections_max=2))


def test_nobody_waits_for_a_connection_beyond_the_timeout(upstream: Upstream) -> None:
    upstream.inject(Fault("half_open"))

    async def test(made: Rig) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(request(CHAT))
        async with asyncio.timeout(10):
            while not made.serving.requests:
                await asyncio.sleep(POLL_S)
        [answer] = await ask(made.port, request(CHAT))
        assert answer.status == 429
        assert made.serving.told == ["refused 503 None"]
        writer.close()
        await made.serving.until(2)

    run(upstream, test, pool=PoolSettings(connections_max=1, connect_timeout_s=0.1))


def test_an_upstream_that_says_nothing_is_given_up(upstream: Upstream) -> None:
    upstream.inject(Fault("slow_first_byte"))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT))
        assert answer.status == 502
        assert made.serving.reasons == ["it sent nothing for 0.1 s"]

    run(upstream, test, pool=PoolSettings(first_byte_timeout_s=0.1))


def test_a_stream_that_stalls_is_given_up(upstream: Upstream) -> None:
    upstream.inject(Fault("stall", after=2))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(STREAM))
        assert b'"engine_lost"' in answer.body
        assert made.serving.reasons == ["it sent nothing for 0.1 s"]

    run(upstream, test, pool=PoolSettings(idle_timeout_s=0.1))


def test_an_upstream_that_is_not_there_is_a_fault() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def main() -> None:
            async with rig(port) as made:
                [answer] = await ask(made.port, request(CHAT))
                assert answer.status == 502
                assert made.serving.told == ["fault"]

        run_loop(main())


def test_the_client_credentials_reach_the_upstream_by_rule_only(upstream: Upstream) -> None:
    # litellm#12090, vllm-router#155
    lines = "authorization: Bearer key\r\ncookie: c\r\nx-own: kept\r\nconnection: x-secret\r\nx-secret: s\r\n"

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT, headers=lines))
        assert answer.status == 200

    for rule, expected in (("none", None), ("forward", "Bearer key"), ("Bearer own", "Bearer own")):
        run(upstream, test, authorization=rule)
        seen = upstream.seen[-1].headers
        assert seen.get("authorization") == expected
        assert seen["x-own"] == "kept"
        assert not {"cookie", "x-secret"} & seen.keys()


def test_the_upstream_gets_its_own_name_of_the_model(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        body = {"model": "alias", "messages": [{"role": "user", "content": '{"model": "alias"}'}], "max_tokens": 5}
        [answer] = await ask(made.port, request(body))
        assert answer.status == 200
        assert upstream.seen[-1].body == {**body, "model": MODEL, "max_tokens": 3}

    run(upstream, test, target=Target(MODEL, 3))


def test_an_unknown_key_is_refused_without_asking_an_upstream(upstream: Upstream) -> None:
    settings = GatewaySettings(auth=AuthSettings(keys=(ApiKey(KEY, "team"),)))

    async def test(made: Rig) -> None:
        good, bad, none = await ask(
            made.port,
            request(CHAT, headers="authorization: Bearer key\r\n"),
            request(CHAT, headers="authorization: Bearer other\r\nx-request-id: mine\r\n"),
            request(CHAT),
        )
        assert (good.status, bad.status, none.status) == (200, 401, 401)
        assert json.loads(bad.body)["error"]["code"] == "invalid_api_key"
        assert bad.headers["x-request-id"] == "mine"
        assert len(upstream.seen) == 1
        assert made.serving.requests[0].tenant == "team"

    run(upstream, test, settings=settings)


def test_the_request_id_and_the_trace_go_to_both_sides(upstream: Upstream) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT, headers=f"x-request-id: mine\r\ntraceparent: {parent}\r\n"))
        span = answer.headers["traceparent"]
        assert answer.headers["x-request-id"] == upstream.seen[-1].headers["x-request-id"] == "mine"
        assert upstream.seen[-1].headers["traceparent"] == span
        assert span.startswith(f"00-{'a' * 32}-")
        assert span != parent

    run(upstream, test)


def test_a_client_that_waits_for_100_continue_is_told_to_go_on(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        head, _, body = request(CHAT, headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(head + b"\r\n\r\n")
        assert (await read_answer(reader)).status == 100
        writer.write(body)
        assert (await read_answer(reader)).status == 200
        writer.close()

    run(upstream, test)


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(request(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
        async with asyncio.timeout(10):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert text_of(body) == upstream.expected(STREAM)
        writer.close()

    run(upstream, test)


def test_http_1_0_keeps_a_connection_that_it_asked_for(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        old = request(CHAT, headers="connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
        first, second = await ask(made.port, old, old)
        assert first.headers["connection"] == second.headers["connection"] == "keep-alive"
        assert (first.status, second.status) == (200, 200)

    run(upstream, test)


LIMITS = LimitSettings(header_bytes=2048, body_bytes=4096, header_timeout_s=0.2, body_timeout_s=0.2, keep_alive_s=0.2)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 4000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 4000, 431, "headers_too_large"),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 4097\r\n\r\n", 413, "body_too_large"),
        (request(b" " * 5000, chunked=True), 413, "body_too_large"),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx:", 408, "header_timeout"),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{", 408, "body_timeout"),
        (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx : y\r\n\r\n", 400, "invalid_http"),
        (request(CHAT, headers="transfer-encoding: chunked\r\n"), 400, "invalid_http"),
    ],
)
def test_limits_are_kept_and_told_in_openai_shape(upstream: Upstream, sent: bytes, status: int, code: str) -> None:
    # SPEC M5
    async def test(made: Rig) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(sent)
        answer = await read_answer(reader)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
        assert answer.headers["connection"] == "close"
        assert await reader.read() == b""
        assert not upstream.seen
        writer.close()

    run(upstream, test, settings=GatewaySettings(limits=LIMITS))


def test_an_idle_connection_is_closed_after_keep_alive(upstream: Upstream) -> None:
    async def test(made: Rig) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(request(CHAT))
        assert (await read_answer(reader)).status == 200
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        assert not made.state.connections
        writer.close()

    run(upstream, test, settings=GatewaySettings(limits=LIMITS))


def test_a_slow_client_holds_the_upstream_back_and_one_that_takes_nothing_is_cancelled(upstream: Upstream) -> None:
    upstream.script = Script(tokens=60_000)
    settings = GatewaySettings(stream=StreamSettings(stall_timeout_s=0.3))

    async def test(made: Rig) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", made.port))
            await loop.sock_sendall(client, request({**STREAM, "max_tokens": 60_000}))
            await made.serving.until(1)  # nothing was read: it is stuck
        assert made.serving.told == ["begun", "gone"]

    run(upstream, test, settings=settings)


def test_a_client_that_was_slow_gets_everything(upstream: Upstream) -> None:
    upstream.script = Script(tokens=40_000)
    body = {**STREAM, "max_tokens": 40_000}

    async def test(made: Rig) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", made.port))
            await loop.sock_sendall(client, request(body, headers="connection: close\r\n"))
            async with asyncio.timeout(10):
                while not any(connection.is_stuck for connection in made.state.connections):
                    await asyncio.sleep(POLL_S)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            parts = []
            while part := await loop.sock_recv(client, 1 << 20):
                parts.append(part)
        _, _, stream = b"".join(parts).partition(b"\r\n\r\n")
        assert stream.endswith(b"\r\n0\r\n\r\n")
        assert text_of(payload_of(stream[:-5])) == upstream.expected(body)
        assert made.serving.told == ["begun", "done success"]

    run(upstream, test)


def test_a_request_that_takes_too_long_is_ended(upstream: Upstream) -> None:
    upstream.inject(Fault("half_open"))

    async def test(made: Rig) -> None:
        [answer] = await ask(made.port, request(CHAT))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (408, "request_timeout")
        assert made.serving.told == ["gone"]

    run(upstream, test, settings=GatewaySettings(limits=LimitSettings(request_timeout_s=0.2)))


def test_shutdown_lets_answers_end_and_then_tells_their_clients(upstream: Upstream) -> None:
    upstream.inject(Fault("half_open"))

    async def test(made: Rig) -> None:
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", made.port)
        idle.write(request({**CHAT, "model": "own"}))
        await read_answer(idle_reader)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(request(CHAT))
        async with asyncio.timeout(10):
            while not made.serving.requests:
                await asyncio.sleep(POLL_S)
        for connection in list(made.state.connections):
            connection.shutdown()
        assert await idle_reader.read() == b""
        await asyncio.sleep(0)
        for task in list(made.state.tasks):
            task.cancel()
        answer = await read_answer(reader)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "shutting_down")
        assert answer.headers["connection"] == "close"
        writer.close()
        idle.close()

    run(upstream, test)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ({"max_tokens": 10**30}, "invalid_value"),
        ({"session_id": "s" * 257}, "invalid_value"),
        ({"stream": "yes"}, "invalid_type"),
        ({"priority": 0.5}, "invalid_type"),
        ({"n": [1]}, "invalid_type"),
    ],
)
def test_a_field_that_decides_something_must_have_its_type_and_size(
    upstream: Upstream, field: dict[str, Any], code: str
) -> None:
    async def test(made: Rig) -> None:
        bad, good = await ask(made.port, request({**CHAT, **field}), request(CHAT))
        assert (bad.status, json.loads(bad.body)["error"]["code"]) == (400, code)
        assert next(iter(field)) in json.loads(bad.body)["error"]["message"]
        assert good.status == 200
        assert len(upstream.seen) == 1

    run(upstream, test)


def test_a_client_that_closes_its_sending_side_has_left(upstream: Upstream) -> None:
    upstream.inject(Fault("half_open"))

    async def test(made: Rig) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(request(STREAM))
        async with asyncio.timeout(10):
            while not upstream.counts.connections_open:
                await asyncio.sleep(0)
        writer.write_eof()
        assert await reader.read() == b""
        await made.serving.until(1)
        assert made.serving.told == ["gone"]
        writer.close()

    run(upstream, test)


def test_a_body_that_comes_after_its_head_has_a_first_byte() -> None:
    # SPEC I1
    head_is_there, body_is_there = asyncio.Event(), asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        await head_is_there.wait()
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n")
        await body_is_there.wait()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(upstream, "127.0.0.1", 0)
        async with asyncio.timeout(15), server, rig(server.sockets[0].getsockname()[1]) as made:
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
            writer.write(request(STREAM))
            await reader.readuntil(b"\r\n\r\n")
            head_is_there.set()
            await reader.readuntil(b"[DONE]\n\n\r\n")
            body_is_there.set()
            await reader.readuntil(b"0\r\n\r\n")
            while not made.serving.first_bytes:
                await asyncio.sleep(POLL_S)
            assert made.serving.first_bytes[0] is not None
            writer.close()

    run_loop(main())
