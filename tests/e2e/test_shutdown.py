"""How the server ends, and how it begins again: no answer is cut without a word, no port is held, nothing is left."""

import asyncio
import json
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.e2e.serving import Server, children, is_alive, serve, until
from tests.e2e.wire import Answer, Connection, call, request_bytes

CHAT = "/v1/chat/completions"
SLOW_STEPS = ("--engine", "synthetic", "--set", "engine.synthetic.step_us=20000")


def body(tokens: int, *, stream: bool) -> dict[str, object]:
    content = [{"role": "user", "content": "Count"}]
    return {"model": "synthetic", "messages": content, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


async def answers_after_sigterm(server: Server, tokens: int) -> tuple[Answer, Answer, float]:
    """A stream and a whole answer that run when SIGTERM comes, and how long they went on after it."""
    asked = [asyncio.create_task(call(server.url, CHAT, body(tokens, stream=stream))) for stream in (True, False)]
    while server.held().get("gateway/in_flight") != 2 or not any("kv_blocks" in name for name in server.held()):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    stream, whole = await asyncio.gather(*asked)
    return stream, whole, time.monotonic() - began


def ended_in_order(server: Server, replicas: list[int]) -> None:
    assert server.end(15) == 0
    assert not any(is_alive(pid) for pid in replicas)
    assert not [line for line in server.errors if "Traceback" in line], server.errors


def test_answers_that_fit_into_the_time_are_finished_and_no_file_is_left(tmp_path: Path) -> None:
    # SPEC A11
    with serve(*SLOW_STEPS, "--set", "server.shutdown_s=8", TMPDIR=str(tmp_path)) as server:
        assert list(tmp_path.iterdir())
        replicas = children(server)
        stream, whole, _ = asyncio.run(answers_after_sigterm(server, 60))
        assert whole.status == 200
        assert whole.json()["usage"]["completion_tokens"] == 60  # type: ignore[index]  # JSON
        assert stream.events()[-1] == "[DONE]"
        ended_in_order(server, replicas)
        assert not list(tmp_path.iterdir())


def test_answers_that_do_not_fit_end_with_a_clean_error() -> None:
    # SPEC A11
    with serve(*SLOW_STEPS, "--set", "server.shutdown_s=0.5") as server:
        replicas = children(server)
        stream, whole, went_on_s = asyncio.run(answers_after_sigterm(server, 4000))
        assert whole.complete
        assert (whole.status, whole.error()["code"]) == (503, "shutting_down")
        assert stream.status == 200
        assert stream.complete
        events = stream.events()
        assert json.loads(events[-1])["error"]["code"] == "shutting_down"
        assert "[DONE]" not in events
        assert 0.4 < went_on_s < 5
        ended_in_order(server, replicas)
        assert [line for line in server.errors if "2 answer(s) did not end in time" in line], server.errors
        assert not [line for line in server.errors if "uvicorn" in line], server.errors


def test_clients_that_read_nothing_and_idle_connections_do_not_hold_the_end() -> None:
    with serve("--engine", "synthetic", "--set", "server.shutdown_s=0.5") as server:
        replicas = children(server)

        async def hold() -> int:
            held = [await Connection.open(server.url, read_limit=1024) for _ in range(6)]
            for silent in held[:2]:
                silent.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's socket transport
                await silent.send(request_bytes(CHAT, {**body(8000, stream=True), "n": 8}))
            await held[2].send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-le")
            await held[3].send(request_bytes(CHAT, b"{", {"content-length": "100"}))
            await held[4].send(request_bytes("/health"))
            until(lambda: server.held().get("gateway/in_flight", 0) == 16, "they run")
            server.process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(server.end, 15)
            for one in held:
                one.drop()
            return code

        assert asyncio.run(hold()) == 0
        assert not any(is_alive(pid) for pid in replicas)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_the_port_is_free_for_the_next_server_at_once(number: signal.Signals) -> None:
    # SPEC M1
    async def one_stream(server: Server) -> None:
        connection = await Connection.open(server.url)
        await connection.send(request_bytes(CHAT, body(2000, stream=True)))
        await connection.reader.readuntil(b"data: ")
        server.process.send_signal(number)
        await connection.reader.read(-1)
        await connection.close()

    with serve(*SLOW_STEPS, "--set", "server.shutdown_s=0.2") as first:
        replicas = children(first)
        asyncio.run(one_stream(first))
        first.end(15)
        port = first.url.rpartition(":")[2]
        with serve("--engine", "synthetic", "--port", port) as second:
            assert second.url == first.url
            assert second.call(CHAT, body(4, stream=False))[0] == 200
        until(lambda: not any(is_alive(pid) for pid in replicas), "the first one's replicas are gone")


def test_two_servers_at_the_same_time_leave_one_that_serves() -> None:
    # SPEC M1: both can bind before either listens.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with (
        serve("--engine", "synthetic", "--port", port, wait=False) as first,
        serve("--engine", "synthetic", "--port", port) as second,
    ):
        assert first.ready.wait(30)
        assert sorted(len(server.out) for server in (first, second)) == [0, 1]
        loser, winner = sorted((first, second), key=lambda server: len(server.out))
        assert loser.end(15) == 1
        assert [line for line in loser.errors if f"cannot listen on 127.0.0.1 port {port}" in line]
        assert not [line for line in loser.errors if "Traceback" in line], loser.errors
        assert winner.call(CHAT, body(4, stream=False))[0] == 200
