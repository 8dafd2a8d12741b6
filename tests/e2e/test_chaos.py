"""Everything goes wrong at once on a live server: fuzzed requests, clients that leave, a replica that is killed."""

import http.client
import json
import os
import random
import signal
import socket
import threading
import urllib.parse

import pytest
from tests.e2e.serving import Server, children, serve, until

GOOD: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"model": "synthetic", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/completions": {"model": "synthetic", "prompt": "hi", "max_tokens": 4},
    "/tokenize": {"model": "synthetic", "prompt": "hi"},
    "/detokenize": {"model": "synthetic", "tokens": [1, 2]},
    "/v1/estimates": {"endpoint": "/v1/completions", "body": {"model": "synthetic", "prompt": "hi"}},
}
FIELDS = [
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "n", "stop", "stream", "stream_options",
    "seed", "logprobs", "top_logprobs", "priority", "ignore_eos", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "stop_token_ids", "messages", "prompt", "model", "cache_salt", "session_id",
    "request_id", "stream_interval", "return_token_ids", "echo", "suffix", "user", "tools", "response_format",
    "temprature",
]  # fmt: skip
PATHS = ["/v1/models", "/v1/models/x", "/v1/ledger", "/v1/requests/x/evidence", "/metrics", "/nothing", "/debug/trace"]
ALLOWED_STATUS = range(200, 500)
ERROR_FIELDS = {"message", "type", "param", "code"}


def some_json(draw: random.Random, depth: int = 0) -> object:
    kind = draw.randrange(9 if depth < 3 else 7)
    if kind < 7:
        return draw.choice(
            [None, True, -1, 0, 1, 3, 1 << 70, 0.5, -2.5, 1e308, "", "user", "a" * 300, "\u2603\x00", "\ud83d\ude00"]
        )
    if kind == 7:
        return [some_json(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice([*FIELDS, "x", ""]): some_json(draw, depth + 1) for _ in range(draw.randrange(4))}


def fuzzed(draw: random.Random) -> tuple[str, str, bytes]:
    """Method, path and body of one request."""
    if draw.random() < 0.1:
        return draw.choice(["GET", "PUT", "DELETE", "POST"]), draw.choice([*PATHS, *GOOD]), b""
    path = draw.choice(list(GOOD))
    body = dict(GOOD[path])
    for _ in range(draw.randrange(4)):
        body[draw.choice(FIELDS)] = some_json(draw)
    raw = json.dumps(body).encode()
    if draw.random() < 0.2:
        at = draw.randrange(len(raw))
        raw = raw[:at] + draw.randbytes(draw.randrange(4)) + raw[at + draw.randrange(4) :]
    return "POST", path, raw


class Clients:
    """Threads that talk to one server and note what is not as promised."""

    def __init__(self, server: Server) -> None:
        split = urllib.parse.urlsplit(server.url)
        assert split.hostname is not None
        assert split.port is not None
        self.address = (split.hostname, split.port)
        self.faults: list[str] = []
        self.answered = 0

    def fuzz(self, seed: int, count: int) -> None:
        """Send `count` fuzzed requests over kept connections."""
        draw = random.Random(seed)
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        for _ in range(count):
            method, path, raw = fuzzed(draw)
            try:
                connection.request(method, path, raw, {"content-type": "application/json"})
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.faults.append(f"seed {seed}: {method} {path} {raw[:200]!r}: {error!r}")
                connection.close()
                continue
            self.answered += 1
            if answer.status not in ALLOWED_STATUS:
                self.faults.append(f"seed {seed}: {method} {path} {raw[:200]!r}: {answer.status} {body[:200]!r}")
            elif answer.status >= 400 and set(json.loads(body)["error"]) != ERROR_FIELDS:
                self.faults.append(f"seed {seed}: {path}: not an error object: {body[:200]!r}")
        connection.close()

    def leave(self, seed: int, count: int) -> None:
        """Open streams and cut them at random points, the request's own bytes included."""
        draw = random.Random(seed)
        body = json.dumps({**GOOD["/v1/chat/completions"], "stream": True, "max_tokens": 200, "ignore_eos": True})
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
        for _ in range(count):
            with socket.create_connection(self.address, timeout=60) as connection:
                if draw.random() < 0.3:
                    connection.sendall(raw[: draw.randrange(len(raw))])
                else:
                    connection.sendall(raw)
                    wanted = draw.randrange(4000)
                    while wanted > 0 and (got := connection.recv(4096)):
                        wanted -= len(got)


def chaos(requests: int, departures: int) -> None:
    fast = ("--set", "engine.synthetic.step_us=300", "--set", "engine.synthetic.token_us=1")
    with serve("--engine", "synthetic", "--replicas", "2", *fast) as server:
        clients = Clients(server)
        threads = [threading.Thread(target=clients.fuzz, args=(seed, requests // 4)) for seed in range(4)]
        threads += [threading.Thread(target=clients.leave, args=(seed, departures // 2)) for seed in (10, 11)]
        for thread in threads:
            thread.start()
        until(lambda: clients.answered > requests // 4, "a quarter is answered")
        os.kill(children(server)[0], signal.SIGKILL)
        for thread in threads:
            thread.join(500)
        assert not any(thread.is_alive() for thread in threads), "a client hangs"
        assert clients.faults == []
        assert clients.answered == requests // 4 * 4
        until(lambda: not server.held(), f"the ledger is back to zero: {server.held()}")
        assert server.call("/v1/chat/completions", GOOD["/v1/chat/completions"])[0] == 200
        assert not any("Traceback" in line for line in server.errors), server.errors


def test_nothing_is_answered_with_a_5xx_and_nothing_is_left_behind() -> None:
    # SPEC H1, A11, L-2
    chaos(requests=1200, departures=60)


@pytest.mark.slow
def test_ten_thousand_fuzzed_requests_are_answered() -> None:
    # SPEC H1
    chaos(requests=10_000, departures=400)
