"""Quotas over HTTP: a lease lasts to the end of the body, a refusal says when to come back, nothing leaks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.serving import Server, serve, until
from tests.e2e.wire import Answer, Connection, call, request_bytes

CHAT = "/v1/chat/completions"
CONFIG = """
[engine.synthetic]
step_us = 5000
[front.quotas.default]
concurrent = 2
tokens_per_min = 100000
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("quotas") / "headway.toml"
    path.write_text(CONFIG)
    with serve("--engine", "synthetic", "--config", str(path)) as running:
        yield running
        until(lambda: not running.held(), lambda: f"the ledger is back to zero: {running.held()}")


def body(tokens: int, *, stream: bool = False) -> dict[str, object]:
    content = [{"role": "user", "content": "Count"}]
    return {"model": "synthetic", "messages": content, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


def ask(server: Server, asked: dict[str, object]) -> Answer:
    return asyncio.run(call(server.url, CHAT, asked))


# SPEC A8  (sglang#31907, smg#1571: a slot was freed at the first byte, or lost with a cancel)
def test_the_concurrent_limit_holds_to_the_end_of_the_body_and_comes_back_after_a_cancel(server: Server) -> None:
    async def run() -> None:
        opened = [await Connection.open(server.url) for _ in range(2)]
        for one in opened:
            await one.send(request_bytes(CHAT, body(3000, stream=True)))
            await one.reader.readuntil(b"data: ")
        refused = await call(server.url, CHAT, body(2))
        for one in opened:
            one.drop()
        assert (refused.status, refused.error()["code"]) == (429, "rate_limited")
        assert refused.headers["x-should-retry"] == "true"
        assert int(refused.headers["retry-after-ms"]) > 0

    asyncio.run(run())
    until(lambda: ask(server, body(2)).status == 200, "the slots of dropped streams are free again")


# SPEC A8
def test_answers_tell_the_limits(server: Server) -> None:
    answer = ask(server, body(10))
    assert answer.status == 200
    assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
    assert 0 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 100000
