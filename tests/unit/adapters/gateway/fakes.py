"""A small tokenizer, a fake of the system behind the gateway, and an ASGI client without sockets."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

import tokenizers

from headway.adapters.gateway.app import Gateway, build_app
from headway.adapters.gateway.ports import (
    Directory,
    Estimate,
    Foresee,
    ModelCard,
    OwnModels,
    RecordSink,
    Starting,
    Stats,
    TraceShape,
)
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.tokenizer import Tokenizer
from headway.core.decisions import Explained, Explanation
from headway.core.draw import draw_below
from headway.core.effects import Deliver, End, ErrorOut
from headway.core.evidence import EvidenceRecord, FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.ledger import AccountView
from headway.core.messages import TokenScores
from headway.core.reports import RateLimits, ReplicaFigures, ReplicaReport
from headway.core.request import DenoiseShape, FinishReason, LlmRequest
from headway.core.units import NS_PER_MS
from headway.live.streams import Stream, StreamItem

MODEL = "toy"
REPLICA = NodeId("rep-0")
EOS, START = "<|im_end|>", "<|im_start|>"
TEMPLATE = (
    "{% for m in messages %}" + START + "{{ m.role }}\n{{ m.content }}" + EOS + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)
CORPUS = ["the quick brown fox jumps over the lazy dog", "one two three four five six seven eight nine ten"] * 4


def toy_backend() -> tokenizers.Tokenizer:
    """A byte-level BPE with every byte, some merges and two special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[START, EOS],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def toy_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    return Tokenizer(toy_backend(), template, {"eos_token": EOS})


class FakeStream(Stream):
    """A TokenStream that the fake fills."""

    ended = False

    def put(self, *items: StreamItem) -> None:
        for item in items:
            if self.ended:
                return
            self.ended = isinstance(item, End)
            super().put(item)


Script = Callable[[LlmRequest], Sequence[int]]


class FakeServing:
    """Answers each request with the tokens of `script`, one per turn of the loop (or per `step_s`), then the stop
    token. With `held` nothing moves until `release`."""

    def __init__(self, tokenizer: Tokenizer, script: Script | None = None, *, max_model_len: int = 512) -> None:
        self.tokenizer = tokenizer
        self.script = script or self._default_script
        self.eos = tokenizer.encode(EOS, add_special_tokens=False)[0]
        self.card = ModelCard(MODEL, ("text",), max_model_len, 1_700_000_000, 16, tokenizer.vocab_size, (self.eos,))
        self.held = False
        self.per_step = 1
        self.step_s = 0.0
        self.is_ready = (True, "")
        self.away: tuple[str, ...] = ()
        self.is_loaded = True
        self.starting: Callable[[], Sequence[Starting]] = tuple
        self.fail_after: tuple[int, ErrorOut] | None = None
        self.requests: list[LlmRequest] = []
        self.streams: dict[RequestId, FakeStream] = {}
        self.cancelled: list[RequestId] = []
        self.stopped: list[tuple[RequestId, int]] = []
        self.closures: list[tuple[RequestId, int | None, int]] = []
        self.resets = 0
        self.drains: list[tuple[NodeId, bool]] = []
        self.drain = lambda replica, is_draining: self.drains.append((replica, is_draining))
        self.warmed: list[tuple[NodeId, tuple[DenoiseShape, ...]]] = []
        self.warm = lambda replica, shapes: self.warmed.append((replica, shapes))
        self.explain = self._explained
        self.foresee: Foresee = lambda _request: None
        self.limits = RateLimits()
        self.directory: Directory = OwnModels()
        self._clock = 0
        self._records: dict[RequestId, EvidenceRecord] = {}
        self._arrived: dict[RequestId, tuple[LlmRequest, int, int]] = {}
        self._sent: dict[RequestId, int] = {}
        self._cached: dict[RequestId, int] = {}
        self._blocks: dict[bytes, None] = {}
        self._sinks: list[RecordSink] = []
        self._hits = 0

    def now_ns(self) -> int:
        self._clock += NS_PER_MS
        return self._clock

    def submit(self, request: object, received_ns: int, body_ns: int) -> FakeStream:
        assert isinstance(request, LlmRequest)
        stream = FakeStream()
        self.requests.append(request)
        self.streams[request.id] = stream
        self._arrived[request.id] = (request, received_ns, body_ns)
        self._sent[request.id] = 0
        blocks = request.block_hashes[: max(0, (len(request.prompt) - 1) // self.card.block_size)]
        hit = next((i for i, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        self._cached[request.id] = hit * self.card.block_size
        self._hits += hit * self.card.block_size
        self._blocks.update(dict.fromkeys(blocks))
        self._later(request.id, list(self.script(request)))
        return stream

    def release(self) -> None:
        self.held = False

    def cancel(self, request: RequestId) -> None:
        self.cancelled.append(request)
        self._end(request, FinishReason.CANCELLED)

    def text_stopped(self, request: RequestId, index: int) -> None:
        self.stopped.append((request, index))
        self._end(request, FinishReason.STOP)

    def closed(self, request: RequestId, first_token_ns: int | None, input_bytes: int, *, stored_ns: int = 0) -> None:
        self.closures.append((request, first_token_ns, input_bytes))
        asked, received, body = self._arrived[request]
        now, sent = self.now_ns(), self._sent[request]
        steps = {"first_token_ns": now, "last_token_ns": now} if sent else {}
        worker = WorkerMarks(REPLICA, now, scheduled_ns=now, finished_ns=now, steps=sent, **steps)
        front = FrontMarks(
            request,
            asked.tenant,
            received,
            body,
            asked.arrived_ns,
            now,
            first_token_ns,
            now,
            now + 1,
            sent,
            input_bytes,
        )
        record = evidence_record(front, worker)
        self._records[request] = record
        for sink in self._sinks:
            sink(record)

    def models(self) -> Sequence[ModelCard]:
        return [self.card] if self.is_loaded else []

    def accounts(self) -> Sequence[tuple[AccountView, float]]:
        live = sum(not stream.ended for stream in self.streams.values())
        return [
            (AccountView("gateway/in_flight", "front", "requests", "level", None, 0, live), 0.0),
            (AccountView("replica/rep-0/kv_blocks", "rep-0", "blocks", "level", 64, 0, live), 1.5),
            (AccountView("tenant/a/gpu_seconds", "front", "us", "meter", None, 0, 2_000_000), 0.0),
            (AccountView("tenant/b/gpu_seconds", "front", "us", "meter", None, 0, 1_000_000), 0.0),
        ]

    def rate_limits(self, tenant: TenantId) -> RateLimits:
        return self.limits

    def evidence(self, request: RequestId) -> EvidenceRecord | None:
        return self._records.get(request)

    def on_record(self, sink: RecordSink) -> None:
        self._sinks.append(sink)

    def stats(self) -> Stats:
        counters = (("prefix_hit_tokens", self._hits), ("steps", 4), ("step_ns", 2_000_000_000))
        report = ReplicaReport(REPLICA, 1, 1, 0, "llm", MODEL, 2, 3, 0, 0, 60, 64, 0, counters=counters)
        live = sum(not stream.ended for stream in self.streams.values())
        figures = ReplicaFigures(REPLICA, "ready", (MODEL,), 2, in_flight=1, age_ns=NS_PER_MS)
        return Stats(
            (report,),
            replicas=(figures,),
            waiting=1,
            in_flight=live,
            admissions=(("admit", len(self.requests)),),
            degraded=self.away,
        )

    def ready(self) -> tuple[bool, str]:
        return self.is_ready

    async def reset_prefix_cache(self) -> bool:
        self.resets += 1
        self._blocks.clear()
        return True

    def _explained(self, request: object) -> Explanation:
        assert isinstance(request, LlmRequest)
        best = Explained(REPLICA, 0, "queue 1.000 s", 1.0, 1.0, 1.0, {"queue": 1.0}, hit_tokens=16, has_room=True)
        seen = (best, Explained("rep-1", None, "it is draining"))
        return Explanation(request.model, "CostAware", len(request.prompt), 7, "admit", "a replica has room", seen)

    def estimate(self, request: LlmRequest) -> Estimate:
        tokens = request.sampling.max_tokens
        likely = min(tokens, 200)
        took, most = 0.005 + 0.002 * likely, 0.005 + 0.002 * tokens
        return Estimate(5 * NS_PER_MS, 2 * NS_PER_MS, took, 1024 * likely, "admit", likely, most)

    async def trace(self, seconds: float, shape: TraceShape) -> bytes:
        if shape == "jsonl":
            return json.dumps({"seconds": seconds}).encode() + b"\n"
        return json.dumps({"traceEvents": [], "seconds": seconds}).encode()

    def _default_script(self, request: LlmRequest) -> Sequence[int]:
        """A text that depends on prompt and, when sampled, on the seed."""
        seed = request.sampling.seed if request.sampling.temperature > 0 else 0
        words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
        key = str(request.prompt)
        text = " ".join(words[draw_below(seed, key, 0, k, len(words))] for k in range(20))
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _later(self, request: RequestId, tokens: list[int]) -> None:
        loop = asyncio.get_running_loop()
        if self.step_s:
            loop.call_later(self.step_s, self._step, request, tokens)
        else:
            loop.call_soon(self._step, request, tokens)

    def _step(self, request: RequestId, tokens: list[int]) -> None:
        stream, sampling = self.streams[request], self._arrived[request][0].sampling
        if stream.ended:
            return
        if self.held:
            self._later(request, tokens)
            return
        sent = self._sent[request]
        if self.fail_after is not None and sent >= self.fail_after[0]:
            self._end(request, FinishReason.LOST, self.fail_after[1])
            return
        room = sampling.max_tokens - sent
        now = tokens[: min(self.per_step, room)]
        stops = False
        if len(now) < min(self.per_step, room) and not sampling.ignore_eos:
            now, stops = [*now, self.eos], True
        elif not now:
            now = [tokens[0] if tokens else 65]
        self._deliver(request, now)
        if stops:
            self._end(request, FinishReason.STOP)
        elif self._sent[request] >= sampling.max_tokens:
            self._end(request, FinishReason.LENGTH)
        else:
            self._later(request, tokens[len(now) :])

    def _deliver(self, request: RequestId, tokens: Sequence[int]) -> None:
        asked, sent = self._arrived[request][0], self._sent[request]
        scores: tuple[TokenScores, ...] = ()
        if (k := asked.sampling.logprobs) is not None:
            top = tuple(-0.5 - 0.01 * sent - i for i in range(k))
            rows = [((t, *((t + 1 + i) % self.card.vocab_size for i in range(k)))[:k], top) for t in tokens]
            scores = tuple(TokenScores(-0.5 - 0.01 * sent, ids, best) for ids, best in rows)
        self._sent[request] += len(tokens)
        self.streams[request].put(Deliver(request, sent, tuple(tokens), scores))

    def _end(self, request: RequestId, reason: FinishReason, error: ErrorOut | None = None) -> None:
        self.streams[request].put(End(request, reason, error, self._sent[request], self._cached[request]))


class Reply:
    """What the client got."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.complete = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        return [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]

    @property
    def chunks(self) -> list[dict]:
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    def text(self, index: int = 0) -> str:
        out = ""
        for chunk in self.chunks:
            for choice in chunk["choices"]:
                if choice["index"] == index:
                    out += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        return out


class Client:
    """Speaks ASGI to the app. `gone` set: the client has left. `slow` set: it takes nothing."""

    def __init__(self, app: Gateway) -> None:
        self._app = app
        self.gone = asyncio.Event()
        self.slow = asyncio.Event()
        self.reply = Reply()
        self.prompt: list[int] = []
        self.wrote = asyncio.Event()

    async def call(
        self,
        method: str,
        path: str,
        body: object = b"",
        headers: Mapping[str, str] | None = None,
        parts: Sequence[bytes] | None = None,
    ) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        pending = list(parts) if parts is not None else [raw]
        scope = {
            "type": "http",
            "method": method,
            "path": path.partition("?")[0],
            "query_string": path.partition("?")[2].encode(),
            "extensions": {
                "headway.abort": {"abort": self.gone.set},
                "headway.prompt": {"is_free": lambda: not self.slow.is_set(), "write": self.write_now},
            },
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        }

        async def receive() -> dict:
            if pending:
                part = pending.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(pending) or parts is not None}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            while self.slow.is_set():
                await asyncio.sleep(0)
            if self.gone.is_set():
                return
            reply = self.reply
            assert not reply.complete
            if message["type"] == "http.response.start":
                assert reply.status == 0
                reply.status = message["status"]
                reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                assert reply.status != 0
                reply.parts.append(message.get("body", b""))
                reply.complete = not message.get("more_body", False)
            self.wrote.set()

        await self._app(scope, receive, send)
        return self.reply

    def write_now(self, body: bytes) -> None:
        """What is written without a message; the sizes are kept in `prompt`."""
        if not self.gone.is_set():
            assert self.reply.status != 0
            assert not self.reply.complete
            self.reply.parts.append(body)
            self.prompt.append(len(body))
            self.wrote.set()


def chat(text: str = "hello", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def post(serving: FakeServing, body: object, path: str = "/v1/chat/completions", **more: object) -> Reply:
    """One POST in a loop of its own."""
    settings = more.pop("settings", GatewaySettings())
    headers = more.pop("headers", None)

    async def run() -> Reply:
        app = build_app(serving, {MODEL: serving.tokenizer}, settings)
        return await Client(app).call("POST", path, body, headers)

    return asyncio.run(run())


def get(serving: FakeServing, path: str, *, method: str = "GET", settings: GatewaySettings | None = None) -> Reply:
    """One GET in a loop of its own."""

    async def run() -> Reply:
        app = build_app(serving, {MODEL: serving.tokenizer}, settings or GatewaySettings())
        return await Client(app).call(method, path)

    return asyncio.run(run())
