"""A projector behind the gateway, time that leaps from timer to timer, and a viewer that reads events."""

import asyncio
import base64
import json
import selectors
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
from tests.unit.adapters.gateway.fakes import MODEL, FakeStream
from tests.unit.adapters.gateway.pictures.fakes import TOY, MemoryJobs, MemoryQueue, Painter

from headway.adapters.gateway.app import Gateway, build_app
from headway.adapters.gateway.job_ports import Durable, Usage
from headway.adapters.gateway.ports import ModelCard, PictureCard, PictureEstimate
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.artifacts import Made, PromptRead
from headway.core.effects import Admitted, End, ErrorOut, Show
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, RequestId
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import NS_PER_S

STREAMER = "streamer"
CHUNKS = PictureCard(size="64x64", steps=4, guidance_scale=3.0, fps=2, chunk_frames=4, context_frames=4)
CHUNK_S = 2.0  # 4 frames at 2 fps
SESSIONS = "/v1/videos/sessions"
T = TypeVar("T")


class _Leaping(selectors.SelectSelector):
    """Where nothing is ready, it is the time of the next timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        assert ready or timeout is not None, "nothing can happen any more"
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


def _loop() -> asyncio.AbstractEventLoop:
    selector = _Leaping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]  # the loop's own clock
    return loop


def on_leaps(test: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in time that leaps."""

    async def main() -> T:
        return await test()

    with asyncio.Runner(loop_factory=_loop) as runner:
        return runner.run(main())


async def leap(seconds: float) -> None:
    """Let so much of that time pass."""
    loop = asyncio.get_running_loop()
    then = loop.create_future()
    loop.call_later(seconds, then.set_result, None)
    await then


class Projector(Painter):
    """Makes a chunk in `takes_s`; its bytes name all that it was made from."""

    def __init__(self) -> None:
        super().__init__()
        self.cards.append(ModelCard(STREAMER, ("video",), 0, 1, 0, 0, pictures=CHUNKS))
        self.predicted = PictureEstimate({"denoise": 0.5}, 0.5, 0.0, "admit")
        self.takes_s = 0.5
        self.read: PromptRead | None = None
        self.errors: dict[int, tuple[FinishReason, ErrorOut | None]] = {}  # by chunk, when it would be ready
        self.refusals: dict[int, ErrorOut] = {}  # by chunk, on arrival
        self.begun_s: list[float] = []
        self.open: set[RequestId] = set()
        self.film: Callable[[bytes], Made] = lambda words: Made("video", words, read=self.read)

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * NS_PER_S)

    def submit(self, request: object, received_ns: int, body_ns: int) -> FakeStream:
        assert isinstance(request, DiffusionRequest)
        assert request.chunk_fault is None, request.chunk_fault
        assert request.id not in self.streams, "an id is used once"
        loop, number = asyncio.get_running_loop(), len(self.painted)
        stream = self.streams[request.id] = FakeStream()
        self.painted.append(request)
        self.open.add(request.id)
        self.begun_s.append(loop.time())
        if (refusal := self.refusals.get(number)) is not None:
            stream.put(End(request.id, FinishReason.REJECTED, refusal))
            return stream
        if self.degraded:
            stream.put(Admitted(request.id, self.degraded))
        loop.call_later(self.takes_s, self._ready, request, number)
        return stream

    def _ready(self, request: DiffusionRequest, number: int) -> None:
        stream, content = self.streams[request.id], request.content
        if number in self.errors:
            stream.put(End(request.id, *self.errors[number]))
            return
        words = f"{content.prompt}/{content.negative_prompt}/{request.seed}/{request.steps}/{request.guidance_scale:g}"
        body = f"{words}/{request.frames}<{content.given.decode()}".encode()
        made = [self.film(body)]
        if request.hand_on:
            made.insert(0, Made("latents", b"after %d" % request.seed))
        stream.put(Show(request.id, request.steps, request.steps, tuple(made)))
        marks = WorkerMarks(NodeId("rep-0"), 0, device_ns=NS_PER_S // 2, vae_decode_ns=NS_PER_S // 8)
        stream.put(End(request.id, FinishReason.STOP, marks=marks))

    def closed(self, request: RequestId, first_token_ns: int | None, input_bytes: int) -> None:
        self.open.remove(request)  # exactly once


class Cinema:
    """A gateway with a projector."""

    def __init__(self, settings: GatewaySettings | None = None) -> None:
        self.projector, self.jobs = Projector(), MemoryJobs()
        durable = Durable(self.jobs, self.jobs, self.jobs, self.jobs, MemoryQueue())
        self.app = build_app(self.projector, {MODEL: TOY}, settings or GatewaySettings(), durable)

    @property
    def metered(self) -> list[Usage]:
        return self.jobs.metered

    def watch(self, headers: Mapping[str, str] | None = None, **fields: object) -> "Viewer":
        """Open a session."""
        body = {"model": STREAMER, "prompt": "a red circle", "seed": 7, **fields}
        return Viewer(self.app, "POST", SESSIONS, body, headers)

    async def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, object]]:
        """One request to its end."""
        viewer = Viewer(self.app, method, path, body, headers)
        await viewer.done
        return viewer.status, json.loads(viewer.body)

    async def left_nothing(self) -> None:
        """No session, no request, and no count of either is left."""
        await leap(0)
        assert self.projector.open == set()
        assert (await self.ask("GET", SESSIONS))[1]["data"] == []
        text = self.app.metrics.render().decode()
        assert "headway_video_sessions_open 0.0" in text


class Viewer:
    """Speaks ASGI. While `reads` is not set it takes nothing; `leave` closes its connection."""

    def __init__(
        self, app: Gateway, method: str, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.parts, self.headers = 0, list[bytes](), dict[str, str]()
        self.is_complete = False
        self.reads, self._gone, self._news = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reads.set()
        self._bodies = [b"" if body is None else json.dumps(body).encode()]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "extensions": {"headway.abort": {"abort": self._gone.set}},
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        self.done = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, object]:
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, object]) -> None:
        await self.reads.wait()
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.parts.append(message["body"])
            self.is_complete = not message["more_body"]
        self._news.set()

    def leave(self) -> None:
        self._gone.set()
        self.reads.set()

    @property
    def is_gone(self) -> bool:
        """It left, or was cut off."""
        return self._gone.is_set()

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def events(self) -> list[dict[str, object]]:
        """All but `[DONE]`."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def chunks(self) -> list[dict[str, object]]:
        return [one for one in self.events if one.get("type") == "video.session.chunk"]

    @property
    def films(self) -> list[str]:
        """What the chunks were made from."""
        return [base64.b64decode(str(one["b64_mp4"])).decode() for one in self.chunks]

    @property
    def is_done(self) -> bool:
        return self.body.endswith(b"data: [DONE]\n\n")

    async def until(self, chunks: int) -> str:
        """Wait for so many chunks; the id of the session."""
        while not self.events or len(self.chunks) < chunks:
            self._news.clear()
            await self._news.wait()
        return str(self.events[0]["id"])


def one_session(**limits: object) -> GatewaySettings:
    """Settings with other limits of sessions."""
    settings = GatewaySettings()
    return msgspec.structs.replace(settings, sessions=msgspec.structs.replace(settings.sessions, **limits))
