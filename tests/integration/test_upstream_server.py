"""The scripted upstream: what it says is fixed, and each fault is what its name says."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.upstream_server import Fault, MetricsScript, Script, Upstream, upstream_process

BODY: dict[str, Any] = {  # JSON
    "model": "model-a",
    "messages": [{"role": "user", "content": "hello " * 200}],
    "stream_options": {"include_usage": True},
}


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream(Script(adapters=("lora-x",), tokens=4)) as server:
        yield server


def ask(server: Upstream, body: object, path: str = "/v1/chat/completions") -> tuple[int, dict[str, str], bytes]:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = client.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        client.close()


def get(server: Upstream, path: str) -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        client.request("GET", path)
        return client.getresponse().read()
    finally:
        client.close()


def raw(server: Upstream, body: object) -> bytes:
    """Every byte of the answer until the server closes."""
    data = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(head + data)
        parts = []
        while part := sock.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_json_and_sse_carry_the_same_text_and_usage(upstream: Upstream) -> None:
    status, _, whole = ask(upstream, BODY)
    _, _, stream = ask(upstream, {**BODY, "stream": True})
    events = [json.loads(line[6:]) for line in stream.decode().split("\n\n") if line.startswith("data: {")]
    text = "".join(c["delta"].get("content", "") for event in events for c in event["choices"])
    assert status == 200
    assert json.loads(whole)["choices"][0]["message"]["content"] == text == upstream.expected(BODY)
    assert events[-1]["usage"]["completion_tokens"] == 4
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 256  # the second time it is cached
    assert stream.endswith(b"data: [DONE]\n\n")


def test_models_list_adapters_with_their_parent(upstream: Upstream) -> None:
    cards = {card["id"]: card.get("parent") for card in json.loads(get(upstream, "/v1/models"))["data"]}
    assert cards == {"model-a": None, "lora-x": "model-a"}


def test_unknown_model_is_404(upstream: Upstream) -> None:
    assert ask(upstream, {**BODY, "model": "nope"})[0] == 404


def test_a_storm_lasts_as_long_as_it_is_told(upstream: Upstream) -> None:
    upstream.inject(Fault("status", times=2, status=429, retry_after="3"))
    first, second, third = (ask(upstream, BODY) for _ in range(3))
    assert [first[0], second[0], third[0]] == [429, 429, 200]
    assert first[1]["retry-after"] == "3"


def test_truncated_stream_lacks_its_end(upstream: Upstream) -> None:
    upstream.inject(Fault("truncate", after=3))
    got = raw(upstream, {**BODY, "stream": True})
    assert got.count(b"data: ") == 3
    assert not got.endswith(b"0\r\n\r\n")


def test_garbage_is_no_http(upstream: Upstream) -> None:
    upstream.inject(Fault("garbage"))
    assert not raw(upstream, BODY).startswith(b"HTTP/")


def test_reset_is_told_by_the_kernel(upstream: Upstream) -> None:
    upstream.inject(Fault("reset", after=2))
    with pytest.raises(ConnectionResetError):
        raw(upstream, {**BODY, "stream": True})


def test_wrong_length_promises_more_than_comes(upstream: Upstream) -> None:
    upstream.inject(Fault("wrong_length", delta=5))
    with pytest.raises(http.client.IncompleteRead):
        ask(upstream, BODY)


def test_stall_goes_on_when_released(upstream: Upstream) -> None:
    upstream.inject(Fault("stall", after=2))
    data = json.dumps({**BODY, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        got = b""
        while got.count(b"data: ") < 2:
            got += sock.recv(65536)
        upstream.release()
        while not got.endswith(b"0\r\n\r\n"):
            part = sock.recv(65536)
            assert part
            got += part
    assert got.count(b"[DONE]") == 1


def test_it_notices_when_the_client_leaves() -> None:
    with Upstream(Script(token_ms=60_000)) as slow:
        with socket.create_connection(("127.0.0.1", slow.port), timeout=10) as sock:
            data = json.dumps({**BODY, "stream": True}).encode()
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
            sock.recv(1)
        while not slow.counts.client_left:
            get(slow, "/health")
        assert b"num_requests_running{" in get(slow, "/metrics")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("vllm", b"vllm:num_requests_waiting{"),
        ("sglang", b"sglang:num_queue_reqs{"),
        ("llamacpp", b"llamacpp:requests_deferred "),
        ("tgi", b"tgi_queue_size "),
    ],
)
def test_metrics_have_the_names_of_the_peer(kind: Any, name: bytes) -> None:  # a Literal
    with Upstream(Script(kind=kind)) as server:
        assert b"\n" + name in get(server, "/metrics")


def test_frozen_metrics_stay_while_requests_pass(upstream: Upstream) -> None:
    upstream.lie(MetricsScript(frozen=True))
    before = get(upstream, "/metrics")
    ask(upstream, BODY)
    assert get(upstream, "/metrics") == before
    upstream.lie(MetricsScript(waiting=77, without=("vllm:num_requests_running",)))
    lying = get(upstream, "/metrics")
    assert b"waiting{" in lying
    assert b"77.0" in lying
    assert b"\nvllm:num_requests_running{" not in lying


def test_a_restart_keeps_the_port_and_forgets_the_rest(upstream: Upstream) -> None:
    port = upstream.port
    ask(upstream, BODY)
    upstream.restart()
    assert upstream.port == port
    assert upstream.counts.requests == 0
    assert ask(upstream, BODY)[0] == 200


def test_as_a_process_it_takes_orders_over_http() -> None:
    with upstream_process(Script(kind="sglang")) as process:
        found = process.control(faults=[{"kind": "status", "status": 503}])
        server = Upstream(port=process.port)
        assert found["requests"] == 0
        assert ask(server, BODY)[0] == 503
        assert ask(server, BODY)[0] == 200
        assert process.control()["requests"] == 2
