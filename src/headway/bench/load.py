"""Puts a load on any OpenAI-compatible server: open loop (arrivals do not wait) or closed loop (so many at a time)."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from headway.bench.outcome import Outcome
from headway.core.draw import draw_below
from headway.core.units import s_from_ns
from headway.workload.arrivals import poisson

if TYPE_CHECKING:  # `headway bench --help` sends nothing
    import aiohttp

MESSAGE_CHARS: Final = 200  # of a server's words about an error
CLOSED_LOOP: Final = 4  # requests under way when nothing is said
WORDS = ("time", "water", "house", "light", "story", "green", "river", "paper", "music", "stone", "cloud", "bread")


class LoadParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate_per_s` makes the loop open: `concurrency` then only caps what is under way, unset it does not.

    Without a rate the loop is closed: `concurrency` requests (unset: `CLOSED_LOOP`) are always under way. Times count
    from the sending; what waits for the cap has not been sent.
    """

    url: str
    model: str
    count: int = 50
    rate_per_s: float | None = None
    concurrency: int | None = None
    endpoint: Literal["chat", "completions", "images"] = "completions"
    prompt_words: int = 64
    max_tokens: int = 64
    size: str | None = None  # of pictures; None: the model's
    ignore_eos: bool = False  # an extension that not every server knows
    api_key: str | None = None
    timeout_s: float = 300.0
    seed: int = 0


_PATHS: Final = {"chat": "chat/completions", "completions": "completions", "images": "images/generations"}


class _Piece(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Piece | None = None
    token_ids: list[int] | None = None  # where asked for; tokens within a character show no text yet


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None
    message: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    data: list[msgspec.Raw] = []  # of an answer in one piece: its pictures
    usage: _Usage | None = None
    error: _Error | None = None


def prompt(params: LoadParams, place: int) -> str:
    """Return the prompt of one request: words drawn from the seed, so that no two share a prefix by accident."""
    words = [WORDS[draw_below(params.seed, f"words-{place}", 0, k, len(WORDS))] for k in range(params.prompt_words)]
    return " ".join(words)


def body(params: LoadParams, place: int) -> dict[str, object]:
    """Return the body of one request."""
    text = prompt(params, place)
    if params.endpoint == "images":
        size = {} if params.size is None else {"size": params.size}
        return {"model": params.model, "prompt": text, "n": 1, "response_format": "b64_json", **size}
    asked: dict[str, object] = {
        "model": params.model,
        "max_tokens": params.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if params.endpoint == "chat":
        asked["messages"] = [{"role": "user", "content": text}]
    else:
        asked["prompt"] = text
    if params.ignore_eos:
        asked["ignore_eos"] = True
    return asked


class Progress(msgspec.Struct):
    """A load under way; `outcomes` by place in the order of sending."""

    count: int
    outcomes: dict[int, Outcome] = {}  # msgspec copies the default
    sent: int = 0
    failed: int = 0

    def ordered(self) -> list[Outcome]:
        """Return what has ended, in the order of sending."""
        return [self.outcomes[place] for place in sorted(self.outcomes)]


async def run_load(params: LoadParams, progress: Progress | None = None) -> list[Outcome]:
    """Send every request and return what came of each, in the order of sending; `progress` is kept up to date."""
    import aiohttp

    seen = Progress(params.count) if progress is None else progress
    headers = {} if params.api_key is None else {"authorization": f"Bearer {params.api_key}"}
    timeout = aiohttp.ClientTimeout(total=params.timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:

        async def one(place: int) -> None:
            seen.sent += 1
            outcome = seen.outcomes[place] = await _request(session, params, place)
            seen.failed += outcome.error is not None

        if params.rate_per_s is not None:
            await _open_loop(params, params.rate_per_s, one)
        else:
            await _closed_loop(params, one)
    return seen.ordered()


async def _open_loop(params: LoadParams, rate_per_s: float, one: Callable[[int], Awaitable[None]]) -> None:
    cap = asyncio.Semaphore(params.count if params.concurrency is None else params.concurrency)

    async def capped(place: int) -> None:
        async with cap:
            await one(place)

    began_ns = time.perf_counter_ns()
    async with asyncio.TaskGroup() as tasks:
        for place, at_ns in enumerate(poisson(rate_per_s, params.count, params.seed)):
            await asyncio.sleep(max(0.0, s_from_ns(began_ns + at_ns - time.perf_counter_ns())))
            tasks.create_task(capped(place))


async def _closed_loop(params: LoadParams, one: Callable[[int], Awaitable[None]]) -> None:
    places = iter(range(params.count))

    async def work() -> None:
        for place in places:
            await one(place)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLOSED_LOOP if params.concurrency is None else params.concurrency):
            tasks.create_task(work())


async def _request(session: "aiohttp.ClientSession", params: LoadParams, place: int) -> Outcome:
    path = _PATHS[params.endpoint]
    return await exchange(session, f"{params.url.rstrip('/')}/v1/{path}", body(params, place), {})


async def exchange(
    session: "aiohttp.ClientSession", url: str, asked: dict[str, object], headers: dict[str, str]
) -> Outcome:
    """Send one request and follow its event stream to the end."""
    import aiohttp

    sent_ns = time.perf_counter_ns()
    reading = _Reading()
    try:
        async with session.post(url, json=asked, headers=headers) as response:
            if response.status != 200:
                reading.refused(await response.read(), response.status)
            elif response.content_type == "application/json":
                reading.whole(await response.read())
            else:
                async for line in response.content:
                    reading.line(line)
    except (aiohttp.ClientError, TimeoutError) as error:
        reading.error = "timeout" if isinstance(error, TimeoutError) else "connection"
    except (msgspec.DecodeError, ValueError):  # no JSON, or a line without end
        reading.error = "unreadable"
    return reading.outcome(sent_ns)


class _Reading:
    """Follows one event stream."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.message: str | None = None
        self._times: list[int] = []
        self._usage = _Usage()
        self._images = 0
        self._is_done = False

    def line(self, line: bytes) -> None:
        """Take one line of the stream; comments and blank lines carry nothing."""
        if not line.startswith(b"data:"):
            return
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self._is_done = True
            return
        chunk = msgspec.json.decode(payload, type=_Chunk)
        if chunk.error is not None:
            self._failed(chunk.error, "error")
        if chunk.usage is not None:
            self._usage = chunk.usage
        if any(c.text or c.token_ids or (c.delta is not None and c.delta.content) for c in chunk.choices):
            self._times.append(time.perf_counter_ns())

    def whole(self, raw: bytes) -> None:
        """Take an answer in one piece, of pictures."""
        self._images = len(msgspec.json.decode(raw, type=_Chunk).data)
        self._times = [time.perf_counter_ns()] * bool(self._images)
        self._is_done = bool(self._images)

    def refused(self, raw: bytes, status: int) -> None:
        """Take an answer that is no stream: an error of OpenAI's form, or the first words of something else."""
        try:
            error = msgspec.json.decode(raw, type=_Chunk).error
        except msgspec.DecodeError:
            error = None
        if error is None:
            error = _Error(message=raw.decode(errors="replace").strip() or None)
        self._failed(error, f"http_{status}")

    def _failed(self, error: _Error, unnamed: str) -> None:
        self.error = str(error.code or error.type or unnamed)
        said = " ".join((error.message or "").split())
        self.message = said[:MESSAGE_CHARS] + "…" if len(said) > MESSAGE_CHARS else said or None

    def outcome(self, sent_ns: int) -> Outcome:
        """Return what came of the request; a stream that just stops is broken."""
        if self.error is None and not self._is_done:
            self.error = "broken"
        tokens = 0 if self._images else self._usage.completion_tokens or len(self._times)
        times, images, prompt = tuple(self._times), self._images, self._usage.prompt_tokens
        ended_ns = times[-1] if images else time.perf_counter_ns()  # in one piece: its first output is its end
        return Outcome(sent_ns, ended_ns, times, tokens, prompt, self.error, self.message, images=images)


def load(params: LoadParams, show: Callable[[Progress], None], every_s: float) -> Progress:
    """Run the load to its end, or until Ctrl-C or SIGTERM: then less than `count` has ended. `show` is told how far it
    is. Of the main thread, which signals reach."""
    progress = Progress(params.count)

    async def tell() -> None:
        while True:
            await asyncio.sleep(every_s)
            show(progress)

    async def main() -> None:
        telling, running = asyncio.create_task(tell()), asyncio.current_task()
        if running is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        try:
            await run_load(params, progress)
        finally:
            telling.cancel()

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):  # what has ended is worth a table
        asyncio.run(main())
    return progress
