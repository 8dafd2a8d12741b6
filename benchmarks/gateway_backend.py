"""A mock engine for benchmarks/gateway.py: answers at once, or streams one chunk per stream and engine step.

    python benchmarks/gateway_backend.py --port 9101 [--step-ms 5] [--tokens 64]

It answers the probe paths that routers ask for. Its own cost per request is about a third of a router's.
"""

import argparse
import asyncio
import json

import httptools
import uvloop


def response(answer: object, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)


def event(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    chunk = {"id": "chatcmpl-0123456789", "object": "chat.completion.chunk", "created": 1, "model": "mock"}
    text = b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


MESSAGE = {"role": "assistant", "content": "hello world"}
USAGE = {"prompt_tokens": 256, "completion_tokens": 2, "total_tokens": 258}
WHOLE = response(
    {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion",
        "created": 1,
        "model": "mock",
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop", "logprobs": None}],
        "usage": USAGE,
    }
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = event({"content": " hello"})
LAST = event({}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
CARD = {"id": "mock", "object": "model", "created": 1, "owned_by": "mock", "root": "mock", "max_model_len": 32768}
ABOUT = response({"model_path": "mock", "served_model_name": "mock", "tp_size": 1, "dp_size": 1, "version": "0.5.0"})
PROBES = {
    b"/health": response(b"", kind=b"text/plain"),
    b"/health_generate": response(b"", kind=b"text/plain"),
    b"/v1/models": response({"object": "list", "data": [CARD]}),
    b"/get_model_info": response({"model_path": "mock", "tokenizer_path": "mock", "is_generation": True}),
    b"/model_info": response({"model_path": "mock", "tokenizer_path": "mock", "is_generation": True}),
    b"/get_server_info": ABOUT,
    b"/server_info": ABOUT,
    b"/version": response({"version": "0.10.0"}),
}
UNKNOWN = response({"error": "not found"}, b"404 Not Found")


class Engine:
    """Streams that run, and what is left of each."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.running: dict[Connection, int] = {}

    def step(self) -> None:
        for stream, left in list(self.running.items()):
            stream.transport.write(TOKEN if left > 1 else TOKEN + LAST)
            if left > 1:
                self.running[stream] = left - 1
            else:
                del self.running[stream]


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport, self.parser = transport, httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.running.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.url = url.split(b"?")[0]

    def on_body(self, part: bytes) -> None:
        self.body.append(part)

    def on_message_complete(self) -> None:
        body = b"".join(self.body)
        if self.parser.get_method() == b"GET":
            self.transport.write(PROBES.get(self.url, UNKNOWN))
        elif b'"stream": true' in body or b'"stream":true' in body:
            self.transport.write(HEAD)
            self.engine.running[self] = self.engine.tokens
        else:
            self.transport.write(WHOLE)


async def serve(port: int, step_s: float, tokens: int) -> None:
    loop, engine = asyncio.get_running_loop(), Engine(tokens)
    await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=1024)
    due = loop.time()
    while True:
        due = max(due + step_s, loop.time())
        await asyncio.sleep(max(0.0, due - loop.time()))
        engine.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    uvloop.run(serve(given.port, given.step_ms / 1e3, given.tokens))
