import asyncio

import pytest
from tests.unit.adapters.gateway.fakes import MODEL, Client, FakeServing, Reply, chat, get, post, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.settings import GatewaySettings, LimitSettings

TOY = toy_tokenizer()
SMALL = GatewaySettings(limits=LimitSettings(body_bytes=1000, body_timeout_s=0.01))


def send_parts(parts: list[bytes], headers: dict[str, str] | None = None) -> tuple[Reply, FakeServing]:
    serving = FakeServing(TOY)

    async def run() -> Reply:
        client = Client(build_app(serving, {MODEL: TOY}, SMALL))
        client.gone.set() if parts[-1] == b"gone" else None
        body = parts[:-1] if parts[-1] == b"gone" else parts
        return await client.call("POST", "/v1/chat/completions", headers=headers, parts=body)

    return asyncio.run(run()), serving


def test_a_body_over_the_limit_is_413() -> None:
    # SPEC M5
    reply = post(FakeServing(TOY), chat("x" * 2000), settings=SMALL)
    assert (reply.status, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert reply.headers["connection"] == "close"
    assert reply.complete


def test_a_body_announced_over_the_limit_is_refused_before_it_comes() -> None:
    reply = post(FakeServing(TOY), b"{}", settings=SMALL, headers={"content-length": "1001"})
    assert reply.status == 413


def test_a_body_without_length_is_counted_while_it_comes() -> None:
    reply, serving = send_parts([b"x" * 600, b"x" * 600, b"x" * 600, b"gone"])
    assert reply.status in (0, 413)
    assert serving.requests == []


def test_a_body_that_does_not_come_is_408() -> None:
    reply, serving = send_parts([b'{"model":'])
    assert (reply.status, reply.json()["error"]["code"]) == (408, "body_timeout")
    assert serving.requests == []


def test_a_client_that_leaves_within_its_body_gets_no_answer() -> None:
    reply, serving = send_parts([b'{"model":', b"gone"])
    assert (reply.status, serving.requests) == (0, [])


@pytest.mark.parametrize(
    "headers", [{"content-type": "text/plain"}, {"content-encoding": "gzip"}, {"content-type": "multipart/form-data"}]
)
def test_only_plain_json_is_read(headers: dict[str, str]) -> None:
    assert post(FakeServing(TOY), chat(), headers=headers).status == 415


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/problem+json"])
def test_json_by_any_of_its_names_is_read(kind: str) -> None:
    assert post(FakeServing(TOY), chat(), headers={"content-type": kind}).status == 200


def test_every_response_says_how_long_it_took() -> None:
    assert int(get(FakeServing(TOY), "/v1/models").headers["openai-processing-ms"]) >= 0
