"""Headway in front of other servers as they are (SPEC A5, A6): llama.cpp's, vLLM's, and another Headway.

`HEADWAY_PEER_LLAMA`: llama.cpp's `llama-server`, `HEADWAY_PEER_GGUF`: its model; `HEADWAY_PEER_VLLM`: URLs of running
vLLM servers, separated by blanks. What is not named is skipped; the other Headway needs nothing.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest
from tests.e2e.serving import Server, serve, until

pytestmark = pytest.mark.peer

ASK = {"messages": [{"role": "user", "content": "Name three rivers."}], "temperature": 0, "max_tokens": 16}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def post(url: str, body: object) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        raw: bytes = answer.read()
        return raw


def text_of(raw: bytes) -> str:
    text: str = json.loads(raw)["choices"][0]["message"]["content"]
    return text


def stream_text(raw: bytes) -> str:
    events = [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for event in events for c in event.get("choices", ()))


@contextlib.contextmanager
def llama_server() -> Iterator[str]:
    command, gguf = os.environ.get("HEADWAY_PEER_LLAMA"), os.environ.get("HEADWAY_PEER_GGUF")
    if not command or not gguf:
        pytest.skip("HEADWAY_PEER_LLAMA and HEADWAY_PEER_GGUF name no llama.cpp server")
    port = free_port()
    options = ["-m", gguf, "--port", str(port), "--metrics", "-np", "2", "-c", "2048", "-t", "1", "--alias", "smol"]
    process = subprocess.Popen([*shlex.split(command), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(is_up, "llama.cpp is up", 120)
        yield url
    finally:
        process.kill()
        process.wait(10)


def relaying(url: str, kind: str, *more: str) -> list[str]:
    watch = "watch={health_interval_s=0.2, scrape_interval_s=0.2}"
    return ["--set", f"upstreams=[{{name='peer', url='{url}', kind='{kind}', {watch}}}]", *more]


def metric(server: Server, name: str) -> float | None:
    for line in server.call("/metrics")[1].decode().splitlines():
        if line.startswith(f'{name}{{replica="up-peer"}}'):
            return float(line.split()[-1])
    return None


def check_same_answers(server: Server, peer: str, model: str) -> None:
    """JSON and SSE through the gateway say what the peer says, in its own bytes but for ids and times."""
    body = {**ASK, "model": model}
    direct = text_of(post(peer + "/v1/chat/completions", body))
    assert direct
    status, raw = server.call("/v1/chat/completions", body)
    assert (status, text_of(raw)) == (200, direct)
    assert json.loads(raw)["usage"]["completion_tokens"] > 0
    status, raw = server.call("/v1/chat/completions", {**body, "stream": True})
    assert (status, stream_text(raw)) == (200, direct)
    assert raw.rstrip().endswith(b"data: [DONE]")


def check_departure(server: Server, model: str) -> None:
    """A client that leaves in the middle of its stream frees the peer."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps({**ASK, "model": model, "max_tokens": 1500, "stream": True, "ignore_eos": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(head + b"content-length: %d\r\n\r\n" % len(data) + data)
        assert sock.recv(1024).startswith(b"HTTP/1.1 200")
        until(lambda: metric(server, "headway_requests_running") == 1, "the peer says that it runs")
    until(lambda: metric(server, "headway_requests_running") == 0, "the peer says that it is idle")
    until(lambda: not server.held(), lambda: f"accounts are empty: {server.held()}")


def test_llama_cpp() -> None:
    with llama_server() as peer, serve(*relaying(peer, "llamacpp")) as server:
        models = [card["id"] for card in json.loads(server.call("/v1/models")[1])["data"]]
        assert models == ["smol"]
        check_same_answers(server, peer, "smol")
        check_departure(server, "smol")


def test_another_headway() -> None:
    slow = ("--engine", "synthetic", "--set", "engine.synthetic.step_us=3000")
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(serve(*slow))
        server = stack.enter_context(serve(*relaying(peer.url, "headway")))
        check_same_answers(server, peer.url, "synthetic")
        until(lambda: (metric(server, "headway_kv_blocks_total") or 0) > 0, "its blocks are known")
        check_departure(server, "synthetic")


def test_two_vllm_servers_share_the_work() -> None:
    urls = os.environ.get("HEADWAY_PEER_VLLM", "").split()
    if len(urls) < 2:
        pytest.skip("HEADWAY_PEER_VLLM names no two vLLM servers")
    tables = ", ".join(f"{{name='v{n}', url='{url}', kind='vllm'}}" for n, url in enumerate(urls))
    with serve("--set", f"upstreams=[{tables}]", "--set", "front.router.type=round_robin") as server:
        (model,) = [card["id"] for card in json.loads(server.call("/v1/models")[1])["data"]]
        check_same_answers(server, urls[0], model)
        replicas = [f"up-v{n}" for n in range(len(urls))]
        for number in range(8):
            asked = {**ASK, "model": model, "messages": [{"role": "user", "content": f"Count to {number}."}]}
            assert server.call("/v1/chat/completions", asked)[0] == 200
        page = server.call("/metrics")[1].decode()
        assert all(f'headway_kv_blocks_total{{replica="{name}"}}' in page for name in replicas)
