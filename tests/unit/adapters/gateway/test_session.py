import asyncio
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.unit.adapters.gateway.fakes import MODEL, Client, FakeServing, Reply, chat, post, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.choice import Choice, Piece
from headway.adapters.gateway.settings import GatewaySettings, LimitSettings, StreamSettings
from headway.core.effects import Deliver, ErrorOut
from headway.core.errors import InvariantError

TOY = toy_tokenizer()
QUICK = GatewaySettings(stream=StreamSettings(ping_s=0.002, stall_timeout_s=0.01))
LOST = ErrorOut(502, "engine_lost", "The replica was lost.")


def says(text: str) -> FakeServing:
    return FakeServing(TOY, lambda request: TOY.encode(text, add_special_tokens=False))


def with_client(
    serving: FakeServing,
    scenario: Callable[[Client, Callable[[object], Awaitable[Reply]]], Awaitable[Reply]],
    settings: GatewaySettings = QUICK,
) -> Reply:
    """Run `scenario(client, send)` in a loop of its own."""

    async def run() -> Reply:
        client = Client(build_app(serving, {MODEL: TOY}, settings))
        return await scenario(client, lambda body: client.call("POST", "/v1/chat/completions", body))

    return asyncio.run(run())


# Whole and streamed


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 3},
        {"stop": ["dog", "lazy"]},
        {"stop": [" the la"]},
        {"stop": ["fox"], "include_stop_str_in_output": True},
        {"n": 3, "temperature": 1.0},
        {"logprobs": True, "top_logprobs": 2},
        {"stream_interval": 4},
        {"return_token_ids": True},
    ],
)
@pytest.mark.parametrize("per_step", [1, 3])
def test_a_stream_adds_up_to_the_whole_answer(fields: dict[str, object], per_step: int) -> None:
    # SPEC H1
    def serving() -> FakeServing:
        fake = says("the quick brown fox 👍 jumps over the lazy dog é")
        fake.per_step = per_step
        return fake

    still = {name: value for name, value in fields.items() if name != "stream_interval"}
    whole = post(serving(), chat(seed=5, **still)).json()
    stream = post(serving(), chat(seed=5, stream=True, stream_options={"include_usage": True}, **fields))
    assert stream.events[-1] == "[DONE]"
    for choice in whole["choices"]:
        index = choice["index"]
        parts = [c for chunk in stream.chunks for c in chunk["choices"] if c["index"] == index]
        assert stream.text(index) == choice["message"]["content"]
        assert parts[0]["delta"]["role"] == "assistant"
        assert [p["finish_reason"] for p in parts if p["finish_reason"]] == [choice["finish_reason"]]
        if choice["logprobs"]:
            assert [e for p in parts if p["logprobs"] for e in p["logprobs"]["content"]] == choice["logprobs"][
                "content"
            ]
        if "token_ids" in choice:
            assert [t for p in parts for t in p.get("token_ids", [])] == choice["token_ids"]
            assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert stream.chunks[-1]["usage"] == whole["usage"]
    assert stream.chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in stream.chunks[:-1])


def test_a_text_stream_adds_up_to_the_whole_text() -> None:
    body = {"model": MODEL, "prompt": ["one two", "three"], "max_tokens": 6, "echo": True}
    whole = post(says("four five six seven"), body, "/v1/completions").json()
    stream = post(says("four five six seven"), {**body, "stream": True}, "/v1/completions")
    texts = [choice["text"] for choice in whole["choices"]]
    assert texts[0].startswith("one twofour")
    assert [stream.text(0), stream.text(1)] == texts
    assert stream.chunks[0]["object"] == "text_completion"
    assert stream.events[-1] == "[DONE]"


def test_one_event_holds_one_delivery() -> None:
    serving = says("one two three four five six")
    serving.per_step = 2
    reply = post(serving, chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in reply.chunks]
    assert counts[1:4] == [2, 4, 6]
    assert reply.chunks[0]["usage"]["prompt_tokens_details"] == {"cached_tokens": None}
    assert reply.chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_stream_interval_gathers_tokens() -> None:
    reply = post(says("one two three four five six"), chat(stream=True, stream_interval=3))
    texts = [c["choices"][0]["delta"].get("content") for c in reply.chunks]
    assert len(texts) < len(post(says("one two three four five six"), chat(stream=True)).chunks)
    assert "".join(text or "" for text in texts) == "one two three four five six"


def test_usage_counts_the_prompt_once_and_every_choice() -> None:
    serving = says("one two")
    usage = post(serving, chat(n=2)).json()["usage"]
    assert usage["prompt_tokens"] == len(serving.requests[0].prompt)
    assert usage["completion_tokens"] == 2 * (len(TOY.encode("one two", add_special_tokens=False)) + 1)
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_cached_tokens_reach_the_usage() -> None:
    serving = says("x")
    long = chat("the quick brown fox " * 20)
    first, again = post(serving, long).json()["usage"], post(serving, long).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


def test_a_stop_string_is_told_to_the_ring_once() -> None:
    # SPEC B5
    serving = says("one two three four")
    reply = post(serving, chat(stop=["three"], stream=True))
    assert reply.text() == "one two "
    ((request, index),) = serving.stopped
    assert request == serving.requests[0].id
    assert "three" in TOY.decode(TOY.encode("one two three four", add_special_tokens=False)[: index + 1])


# Errors


def test_an_error_before_the_first_token_is_a_status() -> None:
    serving = says("one two")
    serving.fail_after = (0, ErrorOut(429, "slo_unattainable", "No.", 250))
    for stream in (False, True):
        reply = post(serving, chat(stream=stream))
        assert (reply.status, reply.json()["error"]["code"]) == (429, "slo_unattainable")
        assert reply.headers["retry-after-ms"] == "250"
        assert reply.headers["content-type"] == "application/json"


def test_an_error_within_a_stream_is_the_last_event() -> None:
    # SPEC H1
    serving = says("one two three")
    serving.fail_after = (2, LOST)
    reply = post(serving, chat(stream=True))
    assert (reply.status, reply.complete) == (200, True)
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_lost"
    assert sum("error" in chunk for chunk in reply.chunks) == 1
    assert "[DONE]" not in reply.events


def test_an_error_of_one_choice_ends_them_all() -> None:
    serving = says("one two three four five")
    serving.fail_after = (2, LOST)
    reply = post(serving, chat(n=3))
    assert (reply.status, len(serving.closures)) == (502, 3)


def test_a_bug_is_a_500_in_openais_shape_and_reaches_the_log() -> None:
    serving = FakeServing(TOY)

    def broken() -> None:
        raise InvariantError("block 7 has 2 owners")

    serving.models = broken

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        with pytest.raises(InvariantError):
            await send(chat())
        return client.reply

    reply = with_client(serving, scenario)
    assert (reply.status, reply.json()["error"]["code"]) == (500, "internal_error")
    assert b"block" not in reply.body


def test_a_request_that_takes_too_long_ends_with_408() -> None:
    # SPEC M5
    serving = says("one")
    serving.held = True
    limits = LimitSettings(request_timeout_s=0.001)
    reply = post(serving, chat(), settings=msgspec.structs.replace(QUICK, limits=limits))
    assert (reply.status, reply.json()["error"]["code"]) == (408, "request_timeout")
    assert serving.cancelled == [serving.requests[0].id]


# The client


def test_a_waiting_stream_is_pinged_and_then_answers() -> None:
    serving = says("one two")
    serving.held = True

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        call = asyncio.ensure_future(send(chat(stream=True)))
        while len(client.reply.parts) < 2:
            client.wrote.clear()
            await client.wrote.wait()
        assert client.reply.parts == [b": ping\n\n"] * len(client.reply.parts)
        serving.release()
        return await call

    reply = with_client(serving, scenario)
    assert reply.text() == "one two"
    assert reply.events[-1] == "[DONE]"


def test_an_error_after_a_ping_is_an_event() -> None:
    serving = says("one two")
    serving.held = True
    serving.fail_after = (0, LOST)

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        call = asyncio.ensure_future(send(chat(stream=True)))
        await client.wrote.wait()
        serving.release()
        return await call

    reply = with_client(serving, scenario)
    assert reply.status == 200
    assert [json.loads(event)["error"]["code"] for event in reply.events] == ["engine_lost"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_frees_everything_at_once(stream: bool, n: int) -> None:
    # SPEC B5
    serving = says("one two three")
    serving.held = True

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        call = asyncio.ensure_future(send(chat(stream=stream, n=n)))
        while len(serving.requests) < n:
            await asyncio.sleep(0)
        client.gone.set()
        return await call

    reply = with_client(serving, scenario, GatewaySettings())
    assert reply.status == 0
    ids = sorted(request.id for request in serving.requests)
    assert sorted(serving.cancelled) == sorted(request for request, _, _ in serving.closures) == ids


def test_a_client_that_leaves_within_the_stream_cancels() -> None:
    serving = FakeServing(TOY, lambda request: TOY.encode("one two three " * 50, add_special_tokens=False))

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        call = asyncio.ensure_future(send(chat(stream=True)))
        while len(client.reply.parts) < 3:
            client.wrote.clear()
            await client.wrote.wait()
        client.gone.set()
        return await call

    with_client(serving, scenario, GatewaySettings())
    assert serving.cancelled == [serving.requests[0].id]
    assert len(serving.closures) == 1


@pytest.mark.parametrize("waiting", [True, False], ids=["at a ping", "at a token"])
def test_a_client_that_takes_nothing_is_cancelled(waiting: bool) -> None:
    # SPEC M5
    serving = says("one two three")

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        serving.held = waiting
        client.slow.set()
        reply = await send(chat(stream=True))
        assert client.gone.is_set()  # its connection was dropped
        return reply

    reply = with_client(serving, scenario)
    assert (reply.status, reply.complete) == (0, False)
    assert serving.cancelled == [serving.requests[0].id]
    assert len(serving.closures) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_shutdown_is_told_to_the_client(stream: bool) -> None:
    serving = says("one two three")
    serving.held = True

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        call = asyncio.ensure_future(send(chat(stream=stream)))
        if stream:
            await client.wrote.wait()
        while not serving.requests:
            await asyncio.sleep(0)
        call.cancel()
        return await call

    reply = with_client(serving, scenario, QUICK)
    assert reply.complete
    assert reply.status == (200 if stream else 503)
    error = json.loads(reply.events[-1]) if stream else reply.json()
    assert error["error"]["code"] == "shutting_down"
    assert len(serving.closures) == 1


def test_a_failure_while_handing_over_leaves_nothing_behind() -> None:
    serving = says("one")
    accept = serving.submit

    def second_fails(request: object, received_ns: int, body_ns: int) -> object:
        if len(serving.requests) == 1:
            raise InvariantError("two streams for one request")
        return accept(request, received_ns, body_ns)

    serving.submit = second_fails

    async def scenario(client: Client, send: Callable[[object], Awaitable[Reply]]) -> Reply:
        with pytest.raises(InvariantError):
            await send(chat(n=3))
        return client.reply

    assert with_client(serving, scenario).status == 500
    assert [name for name, _, _ in serving.closures] == serving.cancelled == [serving.requests[0].id]


def test_every_sequence_is_closed_once_with_its_marks() -> None:
    # SPEC I1
    serving = says("one two")
    body = json.dumps(chat(n=2)).encode()
    post(serving, body)
    assert sorted(request for request, _, _ in serving.closures) == sorted(r.id for r in serving.requests)
    assert all(first is not None and size == len(body) for _, first, size in serving.closures)


def test_a_refused_sequence_has_no_first_token() -> None:
    serving = says("one")
    serving.fail_after = (0, LOST)
    post(serving, chat())
    assert [first for _, first, _ in serving.closures] == [None]


# In the turn that brings them


def written(slow_at: int = 1 << 30) -> Client:
    """A stream of ten words; the client takes nothing for a while once it has so many parts."""

    async def run() -> Client:
        client = Client(
            build_app(says("one two three four five six seven eight nine ten"), {MODEL: TOY}, GatewaySettings())
        )
        asking = asyncio.ensure_future(client.call("POST", "/v1/chat/completions", chat(stream=True)))
        left = slow_at
        while not asking.done():
            if len(client.reply.parts) >= left:
                left = 1 << 30
                client.slow.set()
                for _ in range(20):
                    await asyncio.sleep(0)
                client.slow.clear()
            await asyncio.sleep(0)
        await asking
        return client

    return asyncio.run(run())


def test_tokens_are_written_in_the_turn_that_brings_them() -> None:
    # SPEC E1
    client = written()
    tokens = len(TOY.encode("one two three four five six seven eight nine ten", add_special_tokens=False))
    assert client.reply.text() == "one two three four five six seven eight nine ten"
    # The first comes with the answer's start, and the stop token with its end.
    assert len(client.prompt) == tokens - 1


def test_a_client_that_is_slow_is_waited_for_and_misses_nothing() -> None:
    client, quick = written(slow_at=4), written()
    assert client.reply.text() == quick.reply.text()
    assert len(client.prompt) < len(quick.prompt)


def test_an_answer_that_breaks_on_its_way_is_a_bug_of_that_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = Choice.push

    def push(self: Choice, item: Deliver) -> Piece:
        if item.index == 4:
            raise ZeroDivisionError
        return pushed(self, item)

    monkeypatch.setattr(Choice, "push", push)
    with pytest.raises(ZeroDivisionError):
        written()
