"""A closed-loop load client for benchmarks/gateway.py: keep-alive connections, one JSON line of figures at the end.

    python benchmarks/gateway_client.py --urls http://127.0.0.1:9101 --mode sse --connections 32 --seconds 3

`--leave SHARE` lets that part of the streams be abandoned in their middle, on a connection that is then made anew.
"""

import argparse
import asyncio
import json
import random
import time
from urllib.parse import urlsplit

import uvloop

WORDS = ["alpha", "beta", "gamma", "delta", "omega", "kappa", "sigma", "theta"]
EVENTS = 64  # of a whole stream, at least
BODIES = 8
now = time.perf_counter


class Figures:
    """What was seen since the warm-up."""

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end
        self.ok = self.errors = self.left = self.events = self.merged = 0
        self.latency: list[float] = []
        self.ttft: list[float] = []
        self.gaps: list[float] = []
        self.first_error = ""

    def error(self, text: str) -> None:
        self.errors += 1
        self.first_error = self.first_error or text

    def shown(self, seconds: float) -> dict[str, object]:
        return {
            "ok": self.ok,
            "errors": self.errors,
            "left": self.left,
            "rps": round(self.ok / seconds, 1),
            "p50_ms": _quantile(self.latency, 0.5),
            "p99_ms": _quantile(self.latency, 0.99),
            "ttft_p50_ms": _quantile(self.ttft, 0.5),
            "ttft_p99_ms": _quantile(self.ttft, 0.99),
            "gap_p99_ms": _quantile(self.gaps, 0.99),
            "events": self.events,
            "merged_share": round(self.merged / self.events, 4) if self.events else None,
            "first_error": self.first_error,
        }


def _quantile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    values.sort()
    return round(1e3 * values[min(len(values) - 1, int(share * len(values)))], 3)


class Stream(asyncio.Protocol):
    """One connection that asks again and again."""

    def __init__(self, requests: list[bytes], is_stream: bool, leave: float, figures: Figures, seed: int) -> None:
        self.requests, self.is_stream, self.leave, self.figures = requests, is_stream, leave, figures
        self.rng = random.Random(seed)
        self.turn = seed
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        if now() >= self.figures.end:
            self.transport.close()
            return
        self.head, self.buffer, self.events, self.got, self.need = b"", b"", 0, 0, -1
        self.first = self.last = 0.0
        self.leaves_at = self.rng.randrange(1, EVENTS) if self.rng.random() < self.leave else 0
        self.turn += 1
        self.asked = now()
        self.transport.write(self.requests[self.turn % len(self.requests)])

    def data_received(self, data: bytes) -> None:
        at, figures = now(), self.figures
        if not self.head:
            self.buffer += data
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self.head, data, self.tail = self.buffer[:end].lower(), self.buffer[end + 4 :], b""
            length = self.head.find(b"content-length:")
            self.need = int(self.head[length + 15 :].split(b"\r\n")[0]) if length >= 0 else -1
        count = data.count(b"data: {")
        counts = self.asked >= figures.start
        if count:
            if not self.first:
                self.first = at
            elif counts:
                figures.gaps.append(at - self.last)
            if counts:
                figures.events += count
                figures.merged += count if count > 1 and b"[DONE]" not in data else 0  # the last three leave together
            self.last, self.events = at, self.events + count
            if self.leaves_at and self.events >= self.leaves_at:
                figures.left += counts
                self.transport.abort()
                return
        self.got += len(data)
        self.tail = (self.tail + data)[-7:]
        if self.got >= self.need if self.need >= 0 else self.tail.endswith(b"\r\n0\r\n\r\n"):
            self.answered(at, counts, data)

    def answered(self, at: float, counts: bool, data: bytes) -> None:
        figures = self.figures
        if b" 200 " not in self.head[:14] or (self.is_stream and self.events < EVENTS):
            if counts:
                figures.error((self.head[:60] + b" | " + data[:200]).decode("latin-1"))
            asyncio.get_running_loop().call_later(0.01, self.ask)
            return
        if counts:
            figures.ok += 1
            figures.latency.append(at - self.asked)
            if self.first:
                figures.ttft.append(self.first - self.asked)
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def requests_for(host: str, is_stream: bool, size: int, rng: random.Random) -> list[bytes]:
    made = []
    for _ in range(BODIES):
        text = " ".join(rng.choice(WORDS) for _ in range(size // 6))
        body = {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": 64, "stream": is_stream}
        raw = json.dumps(body).encode()
        lines = f"host: {host}\r\ncontent-type: application/json\r\nauthorization: Bearer sk-test\r\n"
        made.append(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    return made


async def run(given: argparse.Namespace) -> None:
    loop, is_stream = asyncio.get_running_loop(), given.mode == "sse"
    start = now() + given.warm
    figures = Figures(start, start + given.seconds)
    urls = [urlsplit(url) for url in given.urls.split(",")]
    rng = random.Random(given.seed)
    bodies = {url.netloc: requests_for(url.netloc, is_stream, given.body_bytes, rng) for url in urls}

    async def connection(number: int) -> None:
        url = urls[number % len(urls)]
        while now() < figures.end:
            try:
                _, stream = await loop.create_connection(
                    lambda: Stream(bodies[url.netloc], is_stream, given.leave, figures, number), url.hostname, url.port
                )
            except OSError as error:
                figures.error(str(error))
                await asyncio.sleep(0.05)
                continue
            try:
                await asyncio.wait_for(asyncio.shield(stream.closed), max(0.1, figures.end - now() + 5))
            except TimeoutError:
                figures.error("no end of an answer")
                stream.transport.abort()

    await asyncio.gather(*(connection(number) for number in range(given.connections)))
    print(json.dumps(figures.shown(given.seconds)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--urls", required=True)
    parser.add_argument("--mode", choices=["json", "sse"], default="json")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm", type=float, default=0.5)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--leave", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    uvloop.run(run(parser.parse_args()))
