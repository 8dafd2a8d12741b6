"""The official `openai` client against the gateway over real sockets, with a fake system behind it."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import openai
import pytest
import uvicorn
from tests.unit.adapters.gateway.fakes import MODEL, FakeServing, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.protocol import http_protocol
from headway.adapters.gateway.settings import GatewaySettings, LimitSettings, StreamSettings
from headway.core.effects import ErrorOut

HI = [{"role": "user", "content": "hi"}]
SETTINGS = GatewaySettings(limits=LimitSettings(body_bytes=100_000), stream=StreamSettings(ping_s=0.02))


class Served:
    """A uvicorn server in a thread."""

    def __init__(self) -> None:
        self.serving = FakeServing(toy_tokenizer())
        self.ended = threading.Event()
        self.serving.on_record(lambda record: self.ended.set())
        app = build_app(self.serving, {MODEL: self.serving.tokenizer}, SETTINGS)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(
            app, log_level="critical", http=http_protocol(SETTINGS), loop="asyncio", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve([self.socket])))
        self.thread.start()

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="sk-test", max_retries=0, timeout=30)

    def raw(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=30)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def test_the_official_client_passes(served: Served) -> None:
    # SPEC H1
    with served.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        whole = client.chat.completions.create(model=MODEL, messages=HI, temperature=0, logprobs=True, top_logprobs=2)
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 0
        assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
        ask = {"model": MODEL, "messages": HI, "temperature": 0}
        chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 16  # the first answer left its block
        texts = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=4, logprobs=1).choices
        assert [choice.index for choice in texts] == [0, 1]
        assert len(texts[0].logprobs.tokens) == 4


def test_errors_become_the_clients_exceptions(served: Served) -> None:
    with served.client() as client:
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nope", messages=HI)
        with pytest.raises(openai.BadRequestError, match="temprature"):
            client.chat.completions.create(model=MODEL, messages=HI, extra_body={"temprature": 1})
        served.serving.fail_after = (0, ErrorOut(429, "queue_full", "Full.", 100))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=HI)
        served.serving.fail_after = (2, ErrorOut(502, "engine_lost", "Lost."))
        with pytest.raises(openai.APIError, match="Lost"):
            list(client.chat.completions.create(model=MODEL, messages=HI, stream=True))


def test_pings_do_not_disturb_the_client(served: Served) -> None:
    served.serving.held = True
    with served.client() as client:
        stream = client.chat.completions.create(model=MODEL, messages=HI, stream=True)  # returns on the first ping
        served.serving.release()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dropped_connection_cancels(served: Served, stream: bool) -> None:
    # SPEC B5
    served.serving.held = True
    connection = served.raw()
    body = {"model": MODEL, "messages": HI, "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    if stream:
        connection.getresponse()
    connection.close()
    assert served.ended.wait(30)
    assert served.serving.cancelled in ([served.serving.requests[0].id], [])
    assert all(stream.ended for stream in served.serving.streams.values())


def test_a_large_body_is_refused_early_and_the_answer_arrives(served: Served) -> None:
    # SPEC M5
    connection = served.raw()
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("content-length", "50000000")
    connection.endheaders()
    connection.send(b"x" * 1000)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (413, "body_too_large")
    connection.close()


def test_a_chunked_body_is_counted_while_it_comes(served: Served) -> None:
    connection = served.raw()
    parts = (b"x" * 20_000 for _ in range(10))
    connection.request(
        "POST", "/v1/chat/completions", body=parts, encode_chunked=True, headers={"transfer-encoding": "chunked"}
    )
    assert connection.getresponse().status == 413
    connection.close()


def test_a_connection_is_kept_after_a_refusal(served: Served) -> None:
    connection = served.raw()
    for status in (404, 200, 400):
        path = {404: "/nope", 200: "/v1/models", 400: "/v1/completions"}[status]
        connection.request("POST" if status == 400 else "GET", path, b"{}" if status == 400 else None)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()
