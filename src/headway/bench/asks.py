"""Requests of given sizes at given times, sent to a live server: what its simulated twin is compared on."""

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from headway.bench.load import exchange
from headway.bench.outcome import Outcome
from headway.core.draw import draw_below
from headway.core.units import Ns, s_from_ns


class Ask(msgspec.Struct, frozen=True):
    """One request: exactly so many tokens in and out."""

    name: str  # its `x-request-id`
    at_ns: Ns  # after the beginning of the run
    prompt: tuple[int, ...]
    output_tokens: int


def prompt(seed: int, place: int, count: int, vocab_size: int) -> tuple[int, ...]:
    """Return tokens that share no beginning with another place's; `vocab_size` leaves out what has a meaning."""
    return tuple(draw_below(seed, f"prompt-{place}", 0, k, vocab_size) for k in range(count))


async def send(url: str, model: str, asks: Sequence[Ask]) -> dict[str, Outcome]:
    """Send every request at its time; return what came of each, by name. Times are of this process's clock."""
    outcomes: dict[str, Outcome] = {}
    timeout, connector = aiohttp.ClientTimeout(total=600.0), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        began_ns = time.perf_counter_ns()

        async def one(ask: Ask) -> None:
            body: dict[str, object] = {
                "model": model,
                "prompt": list(ask.prompt),
                "max_tokens": ask.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,  # random tokens are often parts of characters, which show no text yet
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            headers = {"x-request-id": ask.name}
            outcomes[ask.name] = await exchange(session, f"{url}/v1/completions", body, headers)

        async with asyncio.TaskGroup() as tasks:
            for ask in sorted(asks, key=lambda ask: ask.at_ns):
                await asyncio.sleep(max(0.0, s_from_ns(began_ns + ask.at_ns - time.perf_counter_ns())))
                tasks.create_task(one(ask))
    return outcomes
