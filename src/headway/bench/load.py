"""Puts a load on any OpenAI-compatible server: open loop (arrivals do not wait) or closed loop (so many at a time)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import aiohttp
import msgspec

from headway.bench.outcome import Outcome
from headway.core.draw import draw_below
from headway.core.units import s_from_ns
from headway.workload.arrivals import poisson

WORDS = ("time", "water", "house", "light", "story", "green", "river", "paper", "music", "stone", "cloud", "bread")


class LoadParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate_per_s` makes the loop open; without it `concurrency` requests are always under way."""

    url: str
    model: str
    count: int = 50
    rate_per_s: float | None = None
    concurrency: int = 4
    endpoint: Literal["chat", "completions"] = "completions"
    prompt_words: int = 64
    max_tokens: int = 64
    ignore_eos: bool = False  # an extension that not every server knows
    api_key: str | None = None
    timeout_s: float = 300.0
    seed: int = 0


class _Piece(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Piece | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


def prompt(params: LoadParams, place: int) -> str:
    """Return the prompt of one request: words drawn from the seed, so that no two share a prefix by accident."""
    words = [WORDS[draw_below(params.seed, f"words-{place}", 0, k, len(WORDS))] for k in range(params.prompt_words)]
    return " ".join(words)


def body(params: LoadParams, place: int) -> dict[str, object]:
    """Return the body of one request."""
    text = prompt(params, place)
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


async def run_load(params: LoadParams) -> list[Outcome]:
    """Send every request and return what came of each, in the order of sending."""
    headers = {} if params.api_key is None else {"authorization": f"Bearer {params.api_key}"}
    timeout = aiohttp.ClientTimeout(total=params.timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:

        async def one(place: int) -> Outcome:
            return await _request(session, params, place)

        if params.rate_per_s is not None:
            return await _open_loop(params, one)
        return await _closed_loop(params, one)


async def _open_loop(params: LoadParams, one: Callable[[int], Awaitable[Outcome]]) -> list[Outcome]:
    assert params.rate_per_s is not None
    began_ns = time.perf_counter_ns()
    tasks: list[asyncio.Task[Outcome]] = []
    for place, at_ns in enumerate(poisson(params.rate_per_s, params.count, params.seed)):
        await asyncio.sleep(max(0.0, s_from_ns(began_ns + at_ns - time.perf_counter_ns())))
        tasks.append(asyncio.ensure_future(one(place)))
    return list(await asyncio.gather(*tasks))


async def _closed_loop(params: LoadParams, one: Callable[[int], Awaitable[Outcome]]) -> list[Outcome]:
    places = iter(range(params.count))
    outcomes: dict[int, Outcome] = {}

    async def work() -> None:
        for place in places:
            outcomes[place] = await one(place)

    await asyncio.gather(*(work() for _ in range(params.concurrency)))
    return [outcomes[place] for place in sorted(outcomes)]


async def _request(session: aiohttp.ClientSession, params: LoadParams, place: int) -> Outcome:
    path = "chat/completions" if params.endpoint == "chat" else "completions"
    sent_ns = time.perf_counter_ns()
    reading = _Reading()
    try:
        async with session.post(f"{params.url.rstrip('/')}/v1/{path}", json=body(params, place)) as response:
            if response.status != 200:
                reading.error = _code(await response.read(), response.status)
            else:
                async for line in response.content:
                    reading.line(line)
    except (aiohttp.ClientError, TimeoutError) as error:
        reading.error = "timeout" if isinstance(error, TimeoutError) else "connection"
    return reading.outcome(sent_ns)


def _code(raw: bytes, status: int) -> str:
    try:
        error = msgspec.json.decode(raw, type=_Chunk).error
    except msgspec.DecodeError:
        error = None
    return str(error.code or error.type) if error is not None and (error.code or error.type) else f"http_{status}"


class _Reading:
    """Follows one event stream."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._times: list[int] = []
        self._usage = _Usage()
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
            self.error = str(chunk.error.code or chunk.error.type or "error")
        if chunk.usage is not None:
            self._usage = chunk.usage
        if any(choice.text or (choice.delta is not None and choice.delta.content) for choice in chunk.choices):
            self._times.append(time.perf_counter_ns())

    def outcome(self, sent_ns: int) -> Outcome:
        """Return what came of the request; a stream that just stops is broken."""
        if self.error is None and not self._is_done:
            self.error = "broken"
        tokens = self._usage.completion_tokens or len(self._times)
        return Outcome(
            sent_ns, time.perf_counter_ns(), tuple(self._times), tokens, self._usage.prompt_tokens, self.error
        )


def load(params: LoadParams) -> Sequence[Outcome]:
    """Run the load to its end."""
    return asyncio.run(run_load(params))
