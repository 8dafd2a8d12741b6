"""When a request cannot be served: which code, which status, which headers, and that nothing stays held."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from tests.e2e.serving import Server, children, serve, until
from tests.e2e.wire import Answer, Connection, call, request_bytes

CHAT = "/v1/chat/completions"
CONFIG = """
[engine]
kv_blocks = 16
[engine.synthetic]
step_us = 5000
[scheduler]
max_seqs = 1
[front.admission]
type = "bounded"
params = {queue_max = 3}
[front.room]
engine_queue_ms = 0.01
[front.patience]
replica_wait_s = 0.5
start_wait_s = 0.5
[supervisor]
restart_backoff_s = 2
[limits]
request_timeout_s = 2
[stream]
ping_s = 0.1
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("limits") / "headway.toml"
    path.write_text(CONFIG)
    with serve("--engine", "synthetic", "--config", str(path)) as running:
        yield running
        until(lambda: not running.held(), lambda: f"the ledger is back to zero: {running.held()}")
        assert not [line for line in running.errors if "Traceback" in line or "broke a node" in line], running.errors


def body(tokens: int, *, stream: bool = False) -> dict[str, object]:
    content = [{"role": "user", "content": "Count"}]
    return {"model": "synthetic", "messages": content, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


def ask(server: Server, asked: dict[str, object], headers: Mapping[str, str] | None = None) -> Answer:
    return asyncio.run(call(server.url, CHAT, asked, headers))


@contextlib.asynccontextmanager
async def streams(server: Server, count: int) -> AsyncIterator[list[Connection]]:
    """Open streams, and drop them at the end."""
    opened = [await Connection.open(server.url) for _ in range(count)]
    for one in opened:
        await one.send(request_bytes(CHAT, body(300, stream=True)))
        while server.held().get("gateway/in_flight", 0) == opened.index(one):
            await asyncio.sleep(0.005)
    try:
        yield opened
    finally:
        for one in opened:
            one.drop()


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    """The engine process stands still."""
    (pid,) = children(server)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_no_replica_can_hold_is_unservable(server: Server) -> None:
    # SPEC A7
    for stream in (False, True):
        answer = ask(server, body(4000, stream=stream))
        assert (answer.status, answer.error()["code"]) == (400, "unservable")
        assert "KV blocks" in str(answer.error()["message"])
        assert "x-should-retry" not in answer.headers
    assert ask(server, body(300)).status == 200


def test_a_full_queue_is_a_429_that_says_when_to_come_again(server: Server) -> None:
    # SPEC A7
    async def run() -> list[Answer]:
        return await asyncio.gather(*(call(server.url, CHAT, body(300)) for _ in range(30)))

    with stopped(server):
        answers = asyncio.run(run())
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) >= 6
    assert {answer.status for answer in answers} == {429, 408}  # those in the queue ran out of time
    for answer in refused:
        assert answer.error()["code"] == "queue_full"
        assert answer.error()["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after-ms"]) > 0
        assert int(answer.headers["retry-after"]) > 0
        assert answer.headers["x-should-retry"] == "true"
    until(lambda: not server.held(), lambda: f"freed: {server.held()}", 2)
    assert ask(server, body(5)).status == 200


def test_who_waits_is_told_that_the_request_lives(server: Server) -> None:
    async def run() -> bytes:
        async with streams(server, 2) as (_, waiting):
            await waiting.reader.readuntil(b"\r\n\r\n")
            return await asyncio.wait_for(waiting.reader.readuntil(b": ping\n\n"), 5)

    assert b"data:" not in asyncio.run(run())
    until(lambda: not server.held(), lambda: f"freed: {server.held()}", 2)


def test_a_deadline_that_passes_in_the_engine_is_told(server: Server) -> None:
    # SPEC L-4
    with stopped(server):
        whole = ask(server, body(5), {"x-slo-e2e-ms": "400", "x-request-id": "late"})
        assert (whole.status, whole.error()["code"]) == (408, "deadline_passed")
        assert whole.headers["x-should-retry"] == "false"
    assert ask(server, body(5)).status == 200


def test_a_deadline_that_passes_in_a_stream_ends_it_with_the_error(server: Server) -> None:
    # SPEC L-4
    async def run() -> Answer | None:
        connection = await Connection.open(server.url)
        await connection.send(request_bytes(CHAT, body(60, stream=True), {"x-slo-e2e-ms": "1200"}))
        while not any("kv_blocks" in name for name in server.held()):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        with stopped(server):
            answer = await connection.answer()
        await connection.close()
        return answer

    answer = asyncio.run(run())
    assert answer is not None
    assert answer.complete
    events = answer.events()
    assert json.loads(events[-1])["error"]["code"] == "deadline_passed"
    assert len(events) > 2
    assert "[DONE]" not in events
    until(lambda: not server.held(), lambda: f"freed: {server.held()}", 5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(server: Server, stream: bool) -> None:
    with stopped(server):
        answer = ask(server, body(5, stream=stream))
    assert answer.complete
    error = json.loads(answer.events()[-1])["error"] if stream else answer.error()
    assert error["code"] == "request_timeout"
    assert answer.status == (200 if stream else 408)  # a stream had its pings
    until(lambda: not server.held(), lambda: f"freed: {server.held()}", 5)


def test_without_a_replica_the_answer_is_503_until_one_is_back(server: Server) -> None:
    # SPEC A11
    os.kill(children(server)[0], signal.SIGKILL)
    until(lambda: server.call("/ready")[0] == 503, "it is not ready")
    answer = ask(server, body(5))
    assert (answer.status, answer.error()["code"]) == (503, "no_replica")
    assert "rep-0 is starting" in str(answer.error()["message"])
    assert answer.headers["x-should-retry"] == "true"
    assert int(answer.headers["retry-after-ms"]) > 0
    assert server.call("/health")[0] == 200
    until(lambda: server.call("/ready")[0] == 200, "it is ready again")
    assert ask(server, body(5)).status == 200
