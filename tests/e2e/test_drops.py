"""Clients that leave at any point, or stay and read nothing: everything is freed, and memory is bounded."""

import asyncio
import random
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.serving import Server, serve, until
from tests.e2e.wire import Answer, Connection, call, request_bytes

CHAT = "/v1/chat/completions"
FREED_S = 2.0  # CONTRACT's promise, from the last departure


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    few = ("--set", "scheduler.max_seqs=8")
    with serve("--engine", "synthetic", "--set", "engine.synthetic.step_us=5000", *few) as running:
        yield running
        freed(running)
        assert not [line for line in running.errors if "Traceback" in line or "broke a node" in line], running.errors
        assert running.process.poll() is None


def body(number: int, *, stream: bool, tokens: int = 4000, **more: object) -> dict[str, object]:
    content = [{"role": "user", "content": f"{number} long poem " * 20}]
    asked = {"model": "synthetic", "messages": content, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return asked | more


def memory_kb(server: Server) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def freed(server: Server) -> None:
    until(lambda: not server.held(), lambda: f"freed within {FREED_S} s: {server.held()}", FREED_S)


async def in_head(connection: Connection, raw: bytes, draw: random.Random) -> None:
    await connection.send(raw[: draw.randrange(raw.index(b"\r\n\r\n") + 3)])


async def in_body(connection: Connection, raw: bytes, draw: random.Random) -> None:
    await connection.send(raw[: draw.randrange(raw.index(b"\r\n\r\n") + 4, len(raw))])


async def after_the_body(connection: Connection, raw: bytes, draw: random.Random) -> None:
    await connection.send(raw)
    await asyncio.sleep(draw.uniform(0, 0.2))


async def in_the_stream(connection: Connection, raw: bytes, draw: random.Random) -> None:
    await connection.send(raw)
    for _ in range(draw.randrange(1, 20)):
        try:
            await asyncio.wait_for(connection.reader.readuntil(b"\n\n"), 0.5)
        except TimeoutError:
            return  # it waits for its turn, or is no stream


Point = Callable[[Connection, bytes, random.Random], Awaitable[None]]
POINTS: list[Point] = [in_head, in_body, after_the_body, in_the_stream]


async def leave(server: Server, number: int, draw: random.Random) -> None:
    connection = await Connection.open(server.url)
    raw = request_bytes(CHAT, body(number, stream=draw.random() < 0.5, n=draw.choice([1, 1, 3])))
    await draw.choice(POINTS)(connection, raw, draw)
    match draw.randrange(3):
        case 0:
            connection.drop()
        case 1:
            connection.writer.write_eof()  # a half-close counts as leaving
            await asyncio.wait_for(connection.reader.read(), 10)
            await connection.close()
        case _:
            await connection.close()


async def leave_all(server: Server, count: int, draw: random.Random) -> None:
    await asyncio.gather(*(leave(server, number, draw) for number in range(count)))


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_clients_that_leave_at_random_points_leave_nothing_behind(server: Server, rounds: int) -> None:
    # SPEC B5, L-2
    draw = random.Random(f"drops {rounds}")
    asyncio.run(leave_all(server, 60, draw))
    freed(server)
    before, files = memory_kb(server), open_files(server)
    for _ in range(rounds):
        asyncio.run(leave_all(server, 60, draw))
        freed(server)
    assert memory_kb(server) - before < 16_000
    until(lambda: open_files(server) <= files, lambda: f"{open_files(server)} files are open, {files} were before")
    answer = asyncio.run(call(server.url, CHAT, body(1, stream=False, tokens=4)))
    assert answer.status == 200


def test_those_who_stay_get_their_whole_text_while_others_leave(server: Server) -> None:
    # SPEC B5, B7
    bodies = [body(1000 + number, stream=False, tokens=40, temperature=0) for number in range(6)]

    async def ask() -> list[object]:
        answers: list[Answer] = await asyncio.gather(*(call(server.url, CHAT, one) for one in bodies))
        return [answer.json()["choices"] for answer in answers]

    async def disturbed() -> list[object]:
        asked = asyncio.create_task(ask())
        await leave_all(server, 30, random.Random("others"))
        return await asked

    assert asyncio.run(disturbed()) == asyncio.run(ask())
    freed(server)


def test_who_waits_in_the_queue_and_leaves_is_taken_out_of_it(server: Server) -> None:
    # SPEC B5
    async def run() -> None:
        running = [await Connection.open(server.url) for _ in range(8)]
        for number, one in enumerate(running):
            await one.send(request_bytes(CHAT, body(number, stream=True)))
        for one in running:
            await one.reader.readuntil(b"data: ")
        waiting = [await Connection.open(server.url) for _ in range(40)]
        for number, one in enumerate(waiting):
            await one.send(request_bytes(CHAT, body(number, stream=number % 2 == 0)))
        while server.held()["gateway/in_flight"] != 48:
            await asyncio.sleep(0.01)
        for one in waiting:
            one.drop()
        began = time.monotonic()
        while server.held()["gateway/in_flight"] != 8:
            assert time.monotonic() - began < FREED_S, server.held()
            await asyncio.sleep(0.01)
        for one in running:
            await one.reader.readuntil(b"data: ")  # they go on
            one.drop()

    asyncio.run(run())
    freed(server)


def test_clients_may_hold_as_many_files_open_as_the_system_allows(server: Server) -> None:
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard


def unread(server: Server, raw: bytes) -> socket.socket:
    """Send a request on a socket that takes little and is never read."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    one.connect((host, int(port)))
    one.sendall(raw)
    return one


QUICK = ("--engine", "synthetic", "--set", "engine.synthetic.step_us=300", "--set", "engine.synthetic.token_us=1")


def wordy(number: int) -> bytes:
    """Ask for 6 MB of events, more than any buffer of the kernel takes, of which the tokens are the smallest part."""
    usage = {"include_usage": True, "continuous_usage_stats": True}
    asked = body(1, stream=True, tokens=4000, stream_options=usage, return_token_ids=True, n=2)
    return request_bytes(CHAT, asked, {"x-request-id": f"{number}-" + "x" * 250})


def test_clients_that_never_read_cost_bounded_memory_and_are_freed_when_they_leave() -> None:
    # SPEC B5
    with serve(*QUICK) as server:
        before = memory_kb(server)
        sockets = [unread(server, wordy(number)) for number in range(6)]
        until(lambda: server.held().get("gateway/in_flight") == 12, "they run")
        until(lambda: not any("kv_blocks" in name for name in server.held()), "the engine is done with them")
        assert server.held()["gateway/in_flight"] == 12
        assert memory_kb(server) - before < 36_000  # 48,000 tokens wait; their events would be 36 MB
        answer = asyncio.run(call(server.url, CHAT, body(1, stream=False, tokens=4)))
        assert answer.status == 200
        for one in sockets:
            one.close()
        freed(server)


def test_a_client_that_reads_nothing_for_the_stall_time_is_dropped() -> None:
    # SPEC B5
    with serve(*QUICK, "--set", "stream.stall_timeout_s=1", "--set", "stream.ping_s=0.5") as server:
        sockets = [unread(server, wordy(number)) for number in range(2)]
        until(lambda: server.held().get("gateway/in_flight") == 4, "they run")
        until(lambda: not server.held(), lambda: f"freed: {server.held()}", 20)
        for one in sockets:
            one.settimeout(10)
            with one, one.makefile("rb") as rest:
                assert not rest.read().endswith(b"0\r\n\r\n")  # the framing says that the answer is not whole
