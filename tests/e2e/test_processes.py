"""`server.processes`: one port, one budget and one view over several gateway processes; any of them may die."""

import asyncio
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.serving import Server, children, is_alive, serve, until
from tests.e2e.wire import Answer, Connection, call, request_bytes
from tests.upstream_server import Script, Upstream

CHAT = "/v1/chat/completions"
SMALL, BIG = "key-small", "key-big"
FRONTS = ("node-front-0", "node-front-1")


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def config(url: str) -> str:
    watch = "{health_interval_s=0.1, scrape_interval_s=0.1, models_interval_s=0.5, timeout_s=2.0}"
    return f"""
[server]
processes = 2
[supervisor]
restart_backoff_s = 0.1
[auth]
anonymous = "default"
[[auth.keys]]
hash = "{digest(SMALL)}"
tenant = "small"
[[auth.keys]]
hash = "{digest(BIG)}"
tenant = "big"
[front.quotas.small]
concurrent = 3
[[upstreams]]
name = "a"
url = "{url}"
kind = "vllm"
watch = {watch}
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(Script(kind="vllm", tokens=400, token_ms=5.0)) as up:
        yield up


@pytest.fixture(scope="module")
def server(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("processes") / "headway.toml"
    path.write_text(config(upstream.url))
    with serve("--config", str(path)) as running:
        yield running


def body(tokens: int = 4, *, stream: bool = False) -> dict[str, object]:
    content = [{"role": "user", "content": "Count"}]
    return {"model": "model-a", "messages": content, "max_tokens": tokens, "stream": stream}


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def by_front(server: Server) -> dict[str, int]:
    """Tokens that each process has metered."""
    found = dict.fromkeys(FRONTS, 0)
    for account in server.accounts():
        if account["owner"] in found and account["name"].endswith("/tokens"):
            found[account["owner"]] += account["used"]
    return found


def is_settled(server: Server) -> None:
    until(lambda: not server.held(), lambda: f"the ledger is back to zero: {server.held()}")


def total_ok(server: Server) -> float:
    lines = server.call("/metrics")[1].decode().splitlines()
    found = [line for line in lines if line.startswith('headway_requests_total{outcome="ok"}')]
    return float(found[0].split()[1]) if found else 0.0


async def many(server: Server, count: int, headers: dict[str, str] | None = None) -> list[Answer]:
    return await asyncio.gather(*(call(server.url, CHAT, body(), headers) for _ in range(count)))


async def to_the_end(connection: Connection) -> bool:
    """Whether a stream came to its own end."""
    read = b""
    try:
        while not read.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            part = await asyncio.wait_for(connection.reader.read(65536), 20)
            if not part:
                return False
            read += part
    except ConnectionError:
        return False
    finally:
        await connection.close()
    return True


def test_requests_spread_over_processes_and_operators_see_all_of_them(server: Server) -> None:
    before, ok = by_front(server), total_ok(server)
    answers = asyncio.run(many(server, 40))
    assert [answer.status for answer in answers] == [200] * 40
    until(lambda: total_ok(server) == ok + 40, "metrics count what every process answered")
    is_settled(server)
    until(lambda: all(by_front(server)[front] > before[front] for front in FRONTS), "both processes have answered")
    for answer in answers:
        path = f"/v1/requests/{answer.headers['x-request-id']}/evidence"
        status, raw = server.call(path)
        assert status == 200, raw
        assert b'"outcome":"ok"' in raw
    records = server.call("/debug/trace?seconds=60&format=jsonl")
    assert records[0] == 403, "routes of the main process obey its rules, whichever process is asked"


# One connection may carry what is relayed and what only the main process answers, in any order.
def test_what_is_not_relayed_is_answered_from_every_process(server: Server) -> None:
    async def run() -> None:
        for _ in range(12):
            connection = await Connection.open(server.url)
            for path, given in ((CHAT, body()), ("/v1/models", None), (CHAT, body(stream=True)), ("/nothing", None)):
                await connection.send(request_bytes(path, given))
                answer = await connection.answer()
                assert answer is not None
                assert answer.complete
                assert answer.status == (404 if path == "/nothing" else 200)
            await connection.close()
        large = {**body(), "model": "unknown", "messages": [{"role": "user", "content": "x" * 300_000}]}
        answers = await asyncio.gather(*(call(server.url, CHAT, large) for _ in range(8)))
        assert {(answer.status, str(answer.error()["code"])) for answer in answers} == {(404, "model_not_found")}

    asyncio.run(run())
    is_settled(server)


# SPEC A8  (sglang-router counts per process: n of them let n times the limit in)
def test_a_limit_on_requests_at_once_holds_over_processes(server: Server, upstream: Upstream) -> None:
    async def run() -> tuple[list[Connection], list[Answer]]:
        opened: list[Connection] = []
        refused: list[Answer] = []
        for _ in range(16):
            connection = await Connection.open(server.url)
            await connection.send(request_bytes(CHAT, body(400, stream=True), key(SMALL)))
            head = await connection._head()
            assert head is not None
            if head.status == 200:
                opened.append(connection)
            else:
                async for part in connection._body(head.headers):
                    head.body += part
                refused.append(head)
                await connection.close()
        for connection in opened:
            connection.drop()
        await asyncio.sleep(0)  # the loop closes what was dropped
        return opened, refused

    opened, refused = asyncio.run(run())
    assert len(opened) == 3
    assert {(answer.status, str(answer.error()["code"])) for answer in refused} == {(429, "rate_limited")}
    is_settled(server)

    def fits() -> bool:
        return asyncio.run(call(server.url, CHAT, body(), key(SMALL))).status == 200

    until(fits, "the slots of dropped streams are free again")
    is_settled(server)


def test_a_killed_process_takes_its_own_connections_only_and_comes_back(server: Server) -> None:
    (worker,) = children(server)

    async def open_streams() -> list[Connection]:
        opened = []
        for _ in range(16):
            connection = await Connection.open(server.url)
            await connection.send(request_bytes(CHAT, body(200, stream=True), key(BIG)))
            await connection.reader.readuntil(b"data: ")
            opened.append(connection)
        return opened

    async def run() -> list[bool]:
        opened = await open_streams()
        os.kill(worker, signal.SIGKILL)
        # What waits to be accepted there goes with it.
        await asyncio.to_thread(until, lambda: any("node-front-1: lost" in line for line in server.errors), "lost")
        ends = [asyncio.ensure_future(to_the_end(connection)) for connection in opened]
        statuses = [answer.status for answer in await many(server, 20, key(BIG))]
        assert statuses == [200] * 20, "connections go to who listens"
        return await asyncio.gather(*ends)

    ends = asyncio.run(run())
    assert 0 < sum(ends) < 16, "streams of the other process go on"
    until(lambda: len(children(server)) == 1 and children(server) != [worker], "it is started again")
    until(lambda: any("serves again" in line for line in server.errors), "it serves again")
    before = by_front(server)["node-front-1"]
    until(
        lambda: bool(asyncio.run(many(server, 4))) and by_front(server)["node-front-1"] > before,
        "it takes connections again",
    )
    is_settled(server)


def test_a_stop_lets_every_process_finish_what_runs(server: Server) -> None:
    """The last test of this server."""
    processes = children(server)

    async def run() -> list[bool]:
        opened = []
        for _ in range(8):
            connection = await Connection.open(server.url)
            await connection.send(request_bytes(CHAT, body(100, stream=True), key(BIG)))
            await connection.reader.readuntil(b"data: ")
            opened.append(connection)
        server.process.terminate()
        return await asyncio.gather(*(to_the_end(connection) for connection in opened))

    assert all(asyncio.run(run()))
    assert server.end() == 0
    assert not any(is_alive(pid) for pid in processes)
    assert not [line for line in server.errors if "lost" in line and "incarnation 2" in line]
