"""A scripted OpenAI-compatible upstream: deterministic text, metrics in a peer's names, misbehaving on demand.

In this process: `with Upstream(Script(kind="vllm")) as up: up.url, up.expected(body), up.inject(Fault("stall"))`.
As a process of its own (kill -9, SIGSTOP): `python -m tests.upstream_server --port 0 --script '{"kind": "sglang"}'`,
which prints `listening: http://127.0.0.1:PORT`; `with upstream_process(Script()) as up` runs and reads it.
Control: GET /_control tells what was seen; POST /_control {"faults": [...], "clear": true, "metrics": {...},
"release": true} scripts it. Standard library and msgspec only; answers one request per connection turn.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

FaultKind = Literal[
    "slow_first_byte",  # the head comes `seconds` late
    "stall",  # nothing for `seconds` after `after` chunks, then on
    "truncate",  # the connection closes after `after` chunks, before the body is whole
    "reset",  # the same by RST
    "garbage",  # random bytes instead of chunk `after`; after 0: instead of the head
    "status",  # answers `status`, with retry-after when told
    "wrong_length",  # JSON: content-length is off by `delta`; then the connection closes
    "half_open",  # reads the request, says nothing, never closes
    "error_event",  # SSE: an error event after `after` chunks, no [DONE]
    "no_done",  # SSE: a clean end of the body without [DONE]
    "close_idle",  # answers well, says keep-alive, and closes
    "dribble",  # sends its bytes one by one
    "coalesce",  # sends all chunks in one write
]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do wrong with the next `times` requests (-1: until cleared) to a path that starts with `path`."""

    kind: FaultKind
    times: int = 1
    path: str = "/v1/"
    after: int = 0  # chunks that go out well before
    seconds: float = 3600.0  # a stall ends sooner by control `release`
    status: int = 500
    retry_after: str | None = None
    should_retry: str | None = None
    code: str = "scripted"  # of the error
    asked: str = ""  # only generation requests with this in their JSON; empty: all
    delta: int = 7


class MetricsScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What /metrics says instead of the truth."""

    frozen: bool = False  # everything stays as it is now
    waiting: int | None = None  # a lie
    running: int | None = None
    kv_usage: float | None = None
    without: tuple[str, ...] = ()  # names that are left out
    garbage: bool = False


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the upstream is when it behaves."""

    kind: Literal["vllm", "sglang", "llamacpp", "tgi", "openai"] = "vllm"
    models: tuple[str, ...] = ("model-a",)
    adapters: tuple[str, ...] = ()  # LoRA names of the first model
    tokens: int = 8  # of an answer, unless max_tokens is lower
    token_ms: float = 0.0
    prefill_ms: float = 0.0
    max_seqs: int = 64  # more wait
    kv_blocks: int = 1000
    api_key: str | None = None  # asks for it
    usage: bool = True  # JSON carries usage; SSE where stream_options asks
    health_path: str = "/health"


class Seen(msgspec.Struct, frozen=True):
    """One generation request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]  # JSON
    raw: bytes


class Counts(msgspec.Struct):
    """Since the start of this incarnation."""

    requests: int = 0
    answered: int = 0
    client_left: int = 0  # closed while an answer was owed
    active: int = 0
    connections: int = 0
    connections_open: int = 0
    probes: int = 0
    scrapes: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0


def words(model: str, conversation: str, count: int) -> list[str]:
    """The text of an answer, a pure function of what was asked: one word per token, each after a space."""
    digest = hashlib.sha256(f"{model}\0{conversation}".encode()).hexdigest()
    return [f" {digest[i % 56 : i % 56 + 4]}{i}" for i in range(count)]


def conversation_of(body: Mapping[str, Any]) -> str:  # JSON
    """The whole conversation as one text."""
    if "messages" in body:
        return "\n".join(f"{m.get('role')}: {m.get('content')}" for m in body["messages"])
    return str(body.get("prompt", ""))


class Upstream:
    """The server, in a thread of its own."""

    def __init__(self, script: Script = Script(), port: int = 0) -> None:  # noqa: B008  frozen
        self.script, self.port, self.incarnation = script, port, 0
        self.seen: deque[Seen] = deque(maxlen=4096)
        self.targets: deque[str] = deque(maxlen=4096)  # of every request, with their queries
        self.counts = Counts()
        self._faults: list[list[Any]] = []  # [fault, times left]
        self._metrics = MetricsScript()
        self._frozen: bytes | None = None
        self._releases = 0
        self._started = time.time()
        self._prefixes: set[bytes] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Upstream":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; on the same port as before, if there was one. A new incarnation has no memory of the last."""
        ready: threading.Event = threading.Event()
        self.incarnation += 1
        self._started, self.counts, self._prefixes, self._frozen = time.time(), Counts(), set(), None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10), "the scripted upstream did not start"

    def stop(self) -> None:
        """Close everything at once, as a kill does."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(10)
        self._thread = None

    def restart(self) -> None:
        """Die and come back on the same port."""
        self.stop()
        self.start()

    def inject(self, *faults: Fault) -> None:
        """Misbehave."""
        self._faults += [[fault, fault.times] for fault in faults]

    def clear(self) -> None:
        """Behave again; what stalls goes on."""
        self._faults.clear()
        self.release()

    def release(self) -> None:
        """End every stall, slow first byte and half-open wait now."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._let_go)

    def lie(self, metrics: MetricsScript) -> None:
        """Say this in /metrics from now on."""
        self._frozen = self._render() if metrics.frozen else None
        self._metrics = metrics

    def expected(self, body: Mapping[str, Any]) -> str:  # JSON
        """The text that a correct answer to `body` has."""
        return "".join(words(str(body["model"]), conversation_of(body), self._length(body)))

    def _length(self, body: Mapping[str, Any]) -> int:  # JSON
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or self.script.tokens
        return int(limit) if body.get("ignore_eos") else min(self.script.tokens, int(limit))

    # The server

    async def _main(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._end, self._go = asyncio.Event(), asyncio.Event()
        self._slots = asyncio.Semaphore(self.script.max_seqs)
        self._running = self._waiting = 0
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            # Not in the coroutine: one that is cancelled before it began closes nothing.
            task.add_done_callback(lambda _: writer.transport.abort())

        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self.port = sock.getsockname()[1]
        server = await asyncio.start_server(accept, sock=sock, limit=1 << 26)
        ready.set()
        await self._end.wait()
        server.close()
        while tasks:  # a connection may come while the others end
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*list(tasks), return_exceptions=True)
            await asyncio.sleep(0)

    def _let_go(self) -> None:
        self._releases += 1
        self._go.set()
        self._go = asyncio.Event()

    async def _pause(self, seconds: float, since: int) -> None:
        """Wait until released, at most so long; a release after `since` counts."""
        if self._releases > since:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._go.wait(), seconds)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        self.counts.connections_open += 1
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while await self._turn(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, _Dropped):
            pass
        finally:
            self.counts.connections_open -= 1

    async def _turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False when the connection is to be closed."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head[:-4].split("\r\n")
        method, target, _ = line.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw = await _read_body(reader, headers)
        path = target.partition("?")[0]
        self.targets.append(target)
        fault = self._take(path, raw)
        answer = _Answer(self, reader, writer, fault)
        if path == "/_control":
            return await self._control(method, raw, answer)
        if fault is not None and (keep := await answer.begin_fault()) is not None:
            return keep
        key = self.script.api_key
        if key is not None and path.startswith("/v1/") and headers.get("authorization") != f"Bearer {key}":
            return await answer.json(401, _error("bad key", "invalid_api_key"))
        return await self._route(method, path, headers, raw, answer)

    async def _route(self, method: str, path: str, headers: dict[str, str], raw: bytes, answer: "_Answer") -> bool:
        if path == self.script.health_path:
            self.counts.probes += 1
            return await answer.json(200, {"status": "ok"})
        if path == "/metrics":
            self.counts.scrapes += 1
            return await answer.send(200, self._exposition(), b"text/plain; version=0.0.4")
        if path == "/v1/models":
            return await answer.json(200, {"object": "list", "data": self._cards()})
        if path == "/slots" and self.script.kind == "llamacpp":
            slots = [{"id": i, "is_processing": i < self._running} for i in range(self.script.max_seqs)]
            return await answer.json(200, slots)
        if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            return await self._generate(path, headers, raw, answer)
        return await answer.json(404, _error(f"no {path}", "not_found"))

    async def _generate(self, path: str, headers: dict[str, str], raw: bytes, answer: "_Answer") -> bool:
        try:
            body = json.loads(raw)
        except ValueError:
            return await answer.json(400, _error("not JSON", "invalid_json"))
        self.counts.requests += 1
        self.seen.append(Seen(path, headers, body, raw))
        if body.get("model") not in (*self.script.models, *self.script.adapters):
            return await answer.json(404, _error(f"The model `{body.get('model')}` does not exist.", "model_not_found"))
        self.counts.active += 1
        self._waiting += 1
        is_waiting = True
        try:
            async with self._slots:
                self._waiting, is_waiting = self._waiting - 1, False
                self._running += 1
                try:
                    cached, prompt = self._prefix(body)
                    if self.script.prefill_ms > 0:
                        await answer.watch(asyncio.sleep(self.script.prefill_ms / 1000))
                    keep = await answer.completion(path, body, prompt, cached)
                finally:
                    self._running -= 1
            self.counts.answered += 1
            return keep
        except ConnectionError:
            self.counts.client_left += 1
            raise
        finally:
            self._waiting -= is_waiting
            self.counts.active -= 1

    def _prefix(self, body: Mapping[str, Any]) -> tuple[int, int]:  # JSON
        """Cached and all prompt tokens: four bytes are a token, blocks have 64 of them."""
        text = f"{body['model']}\0{conversation_of(body)}".encode()
        blocks = [hashlib.sha256(text[: i + 256]).digest() for i in range(0, len(text) - 255, 256)]
        hits = next((i for i, block in enumerate(blocks) if block not in self._prefixes), len(blocks))
        self._prefixes.update(blocks)
        prompt = max(1, len(text) // 4)
        self.counts.prompt_tokens += prompt
        self.counts.cache_queries += prompt
        self.counts.cache_hits += hits * 64
        return min(hits * 64, prompt - 1), prompt

    # Control and metrics

    def _take(self, path: str, raw: bytes) -> Fault | None:
        for entry in self._faults:
            if path.startswith(entry[0].path) and entry[1] != 0 and entry[0].asked.encode() in raw:
                entry[1] -= 1
                return entry[0]  # type: ignore[no-any-return]  # a Fault by construction
        return None

    async def _control(self, method: str, raw: bytes, answer: "_Answer") -> bool:
        if method == "POST":
            order = json.loads(raw)
            if order.get("clear"):
                self._faults.clear()
                self._let_go()
            if order.get("release"):
                self._let_go()
            self.inject(*msgspec.convert(order.get("faults", []), list[Fault]))
            if "metrics" in order:
                self.lie(msgspec.convert(order["metrics"], MetricsScript))
        last = [{"path": s.path, "headers": s.headers, "body": s.body} for s in list(self.seen)[-16:]]
        counts = {**msgspec.structs.asdict(self.counts), "incarnation": self.incarnation, "last": last}
        counts["faults_left"] = sum(entry[1] for entry in self._faults)
        return await answer.json(200, counts)

    def _cards(self) -> list[dict[str, object]]:
        cards: list[dict[str, object]] = [
            {"id": model, "object": "model", "created": int(self._started), "owned_by": self.script.kind}
            for model in self.script.models
        ]
        if self.script.kind in ("vllm", "sglang"):
            for card in cards:
                card |= {"root": card["id"], "parent": None, "max_model_len": 4096}
        parent = self.script.models[0]
        adapters = [
            {"id": name, "object": "model", "root": f"/adapters/{name}", "parent": parent}
            for name in self.script.adapters
        ]
        return [*cards, *adapters]

    def _exposition(self) -> bytes:
        if self._metrics.garbage:
            return b"\x00\xff{{{ not metrics\nvllm:num_requests_running{ 1 x\n" * 3
        return self._frozen if self._frozen is not None else self._render()

    def _render(self) -> bytes:
        counts, lie = self.counts, self._metrics
        running = self._running if lie.running is None else lie.running
        waiting = self._waiting if lie.waiting is None else lie.waiting
        usage = min(1.0, running / max(1, self.script.max_seqs)) if lie.kv_usage is None else lie.kv_usage
        rows = _EXPOSITIONS[self.script.kind](_Numbers(running, waiting, usage, counts, self.script, self._started))
        shown = [row for row in rows if not any(row.startswith(name) for name in lie.without)]
        return ("\n".join(shown) + "\n").encode()


class _Numbers(msgspec.Struct, frozen=True):
    running: int
    waiting: int
    usage: float
    counts: Counts
    script: Script
    started: float


def _vllm(n: _Numbers) -> list[str]:
    label = f'engine="0",model_name="{n.script.models[0]}"'
    seconds = time.time()
    adapters = f'running_lora_adapters="{",".join(n.script.adapters[: n.running])}",waiting_lora_adapters=""'
    return [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{label}}} {float(n.running)}",
        f"vllm:num_requests_waiting{{{label}}} {float(n.waiting)}",
        f"vllm:kv_cache_usage_perc{{{label}}} {n.usage}",
        f"vllm:prefix_cache_queries_total{{{label}}} {float(n.counts.cache_queries)}",
        f"vllm:prefix_cache_hits_total{{{label}}} {float(n.counts.cache_hits)}",
        f"vllm:prompt_tokens_total{{{label}}} {float(n.counts.prompt_tokens)}",
        f"vllm:generation_tokens_total{{{label}}} {float(n.counts.generation_tokens)}",
        f'vllm:request_success_total{{{label},finished_reason="stop"}} {float(n.counts.answered)}',
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{n.script.kv_blocks}",{label}}} 1.0',
        f'vllm:lora_requests_info{{max_lora="4",{adapters}}} {seconds}',
        f"process_start_time_seconds {n.started:.2f}",
    ]


def _sglang(n: _Numbers) -> list[str]:
    label = f'engine_type="unified",model_name="{n.script.models[0]}",tp_rank="0",pp_rank="0"'
    rate = n.counts.cache_hits / max(1, n.counts.cache_queries)
    return [
        "# TYPE sglang:num_running_reqs gauge",
        f"sglang:num_running_reqs{{{label}}} {float(n.running)}",
        f"sglang:num_queue_reqs{{{label}}} {float(n.waiting)}",
        f"sglang:token_usage{{{label}}} {n.usage}",
        f"sglang:num_used_tokens{{{label}}} {round(n.usage * n.script.kv_blocks * 16)}.0",
        f"sglang:max_total_num_tokens{{{label}}} {n.script.kv_blocks * 16}.0",
        f"sglang:cache_hit_rate{{{label}}} {rate}",
        f"sglang:prompt_tokens_total{{{label}}} {float(n.counts.prompt_tokens)}",
        f"sglang:generation_tokens_total{{{label}}} {float(n.counts.generation_tokens)}",
        f"sglang:cached_tokens_total{{{label}}} {float(n.counts.cache_hits)}",
        f"sglang:num_requests_total{{{label}}} {float(n.counts.answered)}",
        f"process_start_time_seconds {n.started:.2f}",
    ]


def _llamacpp(n: _Numbers) -> list[str]:
    return [
        "# HELP llamacpp:requests_processing Number of requests processing.",
        "# TYPE llamacpp:requests_processing gauge",
        f"llamacpp:requests_processing {n.running}",
        f"llamacpp:requests_deferred {n.waiting}",
        f"llamacpp:prompt_tokens_total {n.counts.prompt_tokens}",
        f"llamacpp:tokens_predicted_total {n.counts.generation_tokens}",
    ]


def _tgi(n: _Numbers) -> list[str]:
    return [
        "# TYPE tgi_queue_size gauge",
        f"tgi_queue_size {n.waiting}",
        f"tgi_batch_current_size {n.running}",
        f"tgi_request_success {n.counts.answered}",
    ]


_EXPOSITIONS = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp, "tgi": _tgi, "openai": lambda n: ["up 1"]}


class _Dropped(Exception):
    """The connection is over because the fault wants it."""


class _Answer:
    """Writes one answer, well or as the fault wants it."""

    def __init__(
        self, server: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault | None
    ) -> None:
        self._server, self._reader, self._writer, self._fault = server, reader, writer, fault
        self._chunks, self._since = 0, server._releases

    async def begin_fault(self) -> bool | None:
        """What goes wrong before the head. None: the answer goes on; else whether the connection stays."""
        fault = self._fault
        assert fault is not None
        match fault.kind:
            case "slow_first_byte":
                await self.watch(self._server._pause(fault.seconds, self._since))
            case "half_open":
                await self.watch(self._server._pause(fault.seconds, self._since))
                return False
            case "status":
                extra = b"" if fault.retry_after is None else f"retry-after: {fault.retry_after}\r\n".encode()
                if fault.should_retry is not None:
                    extra += f"x-should-retry: {fault.should_retry}\r\n".encode()
                self._server.counts.requests += 1
                return await self.send(
                    fault.status, _encoded(_error(f"scripted {fault.status}", fault.code)), extra=extra
                )
            case "reset" if fault.after == 0:
                self._reset()
            case "truncate" if fault.after == 0:
                return False
            case "garbage" if fault.after == 0:
                self._writer.write(_noise())
                await self._writer.drain()
                return False
            case _:
                pass
        return None

    async def json(self, status: int, answer: object) -> bool:
        """A JSON answer."""
        return await self.send(status, _encoded(answer))

    async def send(
        self, status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b""
    ) -> bool:
        """A whole answer; True when the connection stays."""
        fault = self._fault
        length = len(body) + (fault.delta if fault is not None and fault.kind == "wrong_length" else 0)
        head = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n" % (
            status, b"OK" if status == 200 else b"Scripted", content_type, length, extra,
        )  # fmt: skip
        if fault is not None and fault.kind in ("truncate", "reset", "garbage") and fault.after > 0:
            self._writer.write(head + body[: len(body) // 2] + (_noise() if fault.kind == "garbage" else b""))
            await self._writer.drain()
            if fault.kind == "reset":
                self._reset()
            return False
        if fault is not None and fault.kind == "stall":
            self._writer.write(head + body[: len(body) // 2])
            await self._writer.drain()
            await self.watch(self._server._pause(fault.seconds, self._since))
            self._writer.write(body[len(body) // 2 :])
        else:
            await self._put(head + body)
        await self._writer.drain()
        return fault is None or fault.kind not in ("wrong_length", "close_idle")

    async def completion(self, path: str, body: Mapping[str, Any], prompt: int, cached: int) -> bool:  # JSON
        """The answer to a generation request, JSON or SSE."""
        script, length = self._server.script, self._server._length(body)
        texts = words(str(body["model"]), conversation_of(body), length)
        finish = "stop" if length < int(body.get("max_tokens") or length + 1) else "length"
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": length,
            "total_tokens": prompt + length,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        chat = path.endswith("chat/completions")
        common = {"id": f"cmpl-{self._server.counts.requests}", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            for _ in texts:
                await self._token()
            choice = {"index": 0, "finish_reason": finish, "logprobs": None}
            text = "".join(texts)
            choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            kind = "chat.completion" if chat else "text_completion"
            whole = {**common, "object": kind, "choices": [choice], **({"usage": usage} if script.usage else {})}
            return await self.json(200, whole)
        asked = (body.get("stream_options") or {}).get("include_usage") and script.usage
        events = _events(common, chat, texts, finish, usage if asked else None)
        return await self._stream(events)

    async def _stream(self, events: Sequence[bytes]) -> bool:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        await self._put(head)
        fault, pending = self._fault, b""
        for event in events:
            if fault is not None and self._chunks == fault.after:
                await self._mid_stream(fault)
            is_last = event.startswith(b"data: [DONE]")
            if is_last and fault is not None and fault.kind == "no_done":
                break
            if not is_last and self._chunks:
                await self._token()
            chunk = b"%x\r\n%s\r\n" % (len(event), event)
            self._chunks += 1
            if fault is not None and fault.kind == "coalesce":
                pending += chunk
                continue
            await self._put(chunk)
        await self._put(pending + b"0\r\n\r\n")
        return fault is None or fault.kind != "close_idle"

    async def _mid_stream(self, fault: Fault) -> None:
        match fault.kind:
            case "stall":
                await self.watch(self._server._pause(fault.seconds, self._since))
            case "truncate":
                raise _Dropped
            case "reset":
                self._reset()
            case "garbage":
                self._writer.write(_noise())
                await self._writer.drain()
                raise _Dropped
            case "error_event":
                event = b"data: " + _encoded({**_error("scripted failure", "scripted")}) + b"\n\n"
                self._writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event))
                await self._writer.drain()
                raise _Dropped
            case _:
                pass

    async def _token(self) -> None:
        self._server.counts.generation_tokens += 1
        if self._server.script.token_ms > 0:
            await self.watch(asyncio.sleep(self._server.script.token_ms / 1000))
        else:
            await asyncio.sleep(0)

    async def _put(self, data: bytes) -> None:
        if self._fault is not None and self._fault.kind == "dribble":
            for place in range(len(data)):
                self._writer.write(data[place : place + 1])
                await asyncio.sleep(0)
        else:
            self._writer.write(data)
        await self._writer.drain()

    async def watch(self, wait: Any) -> None:  # a coroutine of either kind
        """Wait, unless the client leaves."""
        waiting = asyncio.ensure_future(wait)
        leaving = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not leaving.cancelled():
                if leaving.exception() is not None or not leaving.result():
                    raise ConnectionResetError("the client left")
                self._reader._buffer[:0] = leaving.result()  # type: ignore[attr-defined]  # a pipelined request
                await waiting
        finally:
            waiting.cancel()
            leaving.cancel()
            await asyncio.gather(waiting, leaving, return_exceptions=True)

    def _reset(self) -> None:
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _Dropped


def _events(
    common: Mapping[str, object], chat: bool, texts: Sequence[str], finish: str, usage: Mapping[str, object] | None
) -> list[bytes]:
    kind = "chat.completion.chunk" if chat else "text_completion"

    def event(delta: str | None, reason: str | None) -> bytes:
        choice: dict[str, object] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if chat:
            choice["delta"] = {} if delta is None else {"content": delta}
        else:
            choice["text"] = delta or ""
        return b"data: " + _encoded({**common, "object": kind, "choices": [choice]}) + b"\n\n"

    first = b"data: " + _encoded(
        {**common, "object": kind, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    ) + b"\n\n"  # fmt: skip
    events = [first] if chat else []
    events += [event(text, None) for text in texts]
    events.append(event(None, finish))
    if usage is not None:
        events.append(b"data: " + _encoded({**common, "object": kind, "choices": [], "usage": usage}) + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts = [part async for part in _chunks(reader)]
        return b"".join(parts)
    return await reader.readexactly(int(headers.get("content-length", "0")))


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


def _error(message: str, code: str) -> dict[str, object]:
    return {"error": {"message": message, "type": "scripted", "param": None, "code": code}}


def _encoded(answer: object) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _noise() -> bytes:
    return hashlib.sha512(b"noise").digest() * 4


# A process of its own


class UpstreamProcess:
    """The same as a process: it can be killed and stopped by signals."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.rpartition(":")[2])

    def control(self, **order: object) -> dict[str, Any]:  # JSON
        """What was seen; with an order, after it was followed. Faults are dicts."""
        data = json.dumps(order).encode() if order else None
        with urllib.request.urlopen(urllib.request.Request(self.url + "/_control", data), timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)  # JSON
            return found


@contextlib.contextmanager
def upstream_process(script: Script = Script(), port: int = 0) -> Iterator[UpstreamProcess]:  # noqa: B008  frozen
    """Start one, and leave nothing behind."""
    text = msgspec.json.encode(script).decode()
    command = [sys.executable, str(Path(__file__).resolve()), "--port", str(port), "--script", text]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening: "), line
        yield UpstreamProcess(process, line.split()[1])
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", default="{}")
    options = parser.parse_args()
    server = Upstream(msgspec.json.decode(options.script.encode(), type=Script), options.port)
    server.start()
    sys.stdout.write(f"listening: {server.url}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
