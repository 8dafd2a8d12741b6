"""Whatever a client sends is answered with a 200 or an error in OpenAI's shape, and leaves nothing behind."""

import asyncio
import json
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.adapters.gateway.fakes import MODEL, Client, FakeServing, Reply, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED
from headway.adapters.gateway.schema import ChatBody, CompletionBody
from headway.adapters.gateway.settings import GatewaySettings

TOY = toy_tokenizer()
NAMES = sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *HARMLESS, *UNSUPPORTED})
TEXT = st.text(max_size=8)
NUMBERS = st.one_of(st.integers(-3, 40), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.one_of(st.sampled_from(["user", "system", "assistant"]), JSON), "content": JSON}),
    max_size=3,
)
GOOD = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/completions": {"model": MODEL, "prompt": "hi", "max_tokens": 4},
    "/tokenize": {"model": MODEL, "prompt": "hi"},
    "/detokenize": {"model": MODEL, "tokens": [1, 2]},
    "/v1/estimates": {"endpoint": "/v1/completions", "body": {"model": MODEL, "prompt": "hi"}},
}
CHANGES = st.dictionaries(
    st.one_of(st.sampled_from(NAMES), st.sampled_from(["tokens", "endpoint", "body", "temprature"]), TEXT),
    st.one_of(JSON, MESSAGES),
    max_size=4,
)
HEADERS = st.dictionaries(
    st.sampled_from(["x-request-id", "traceparent", "x-slo-ttft-ms", "x-slo-e2e-ms", "authorization", "content-type"]),
    st.one_of(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
        st.just("application/json"),
        st.just("5"),
    ),
    max_size=2,
)


def ask(path: str, raw: bytes, headers: Mapping[str, str]) -> Reply:
    serving = FakeServing(TOY)

    async def run() -> Reply:
        reply = await Client(build_app(serving, {MODEL: TOY}, GatewaySettings())).call("POST", path, raw, headers)
        assert all(stream.ended for stream in serving.streams.values())
        return reply

    reply = asyncio.run(run())
    assert sorted(name for name, _, _ in serving.closures) == sorted(request.id for request in serving.requests)
    return reply


def check(reply: Reply) -> None:
    assert reply.complete
    assert "x-request-id" in reply.headers or reply.json()["error"]["param"] == "x-request-id"
    if reply.status == 200:
        return
    assert 400 <= reply.status < 500
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(reply.body) < 4000


# SPEC H1
@given(st.sampled_from(sorted(GOOD)), CHANGES, HEADERS)
@settings(max_examples=150, deadline=None)
def test_changed_bodies_get_an_answer_or_a_4xx(path: str, changes: dict[str, object], headers: dict[str, str]) -> None:
    check(ask(path, json.dumps({**GOOD[path], **changes}).encode(), headers))


@given(st.sampled_from(sorted(GOOD)), st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_random_bytes_get_a_4xx(path: str, raw: bytes) -> None:
    reply = ask(path, raw, {})
    check(reply)
    assert reply.status == 400


@given(st.sampled_from(sorted(GOOD)), st.integers(0, 200), st.binary(min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_damaged_bodies_get_an_answer_or_a_4xx(path: str, at: int, junk: bytes) -> None:
    raw = json.dumps({**GOOD[path], "stream": True} if "completions" in path else GOOD[path]).encode()
    at %= len(raw)
    check(ask(path, raw[:at] + junk + raw[at + len(junk) :], {}))
