"""Looks at a scripted upstream: what it says, within bounds (SPEC A5, A11)."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from tests.upstream_server import Fault, MetricsScript, Script, Upstream

from headway.adapters.upstream import look
from headway.adapters.upstream.look import Look, Unseen, UpstreamCard
from headway.adapters.upstream.settings import UpstreamSettings, WatchSettings


def ask(upstream: Upstream, question: Callable[[Look], Awaitable[object]], key: str | None = None) -> object:
    async def run() -> object:
        settings = UpstreamSettings("a", upstream.url, "vllm", watch=WatchSettings(timeout_s=0.3))
        async with aiohttp.ClientSession() as session:
            return await question(Look(settings, session, key))

    return asyncio.run(run())


def test_health_models_and_metrics_are_read() -> None:
    with Upstream(Script(adapters=("lora",))) as up:
        assert ask(up, lambda one: one.alive()) == "status 200"
        assert ask(up, lambda one: one.models()) == (UpstreamCard("model-a"), UpstreamCard("lora", "model-a"))

        async def running(one: Look) -> int | None:
            return (await one.metrics()).running

        assert ask(up, running) == 0


def test_the_key_is_sent() -> None:
    with Upstream(Script(api_key="k")) as up:
        assert ask(up, lambda one: one.models(), "Bearer k")
        with pytest.raises(Unseen, match="GET /v1/models: status 401"):
            ask(up, lambda one: one.models())


def test_names_that_nobody_could_use_are_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bad = ("", "x" * 257, "a\r\nset-cookie: b", "a\x1b[31m", "a\x85b")
    good = ("org/model-7b", "x" * 256, "mod\u00e8le")

    async def twice(one: Look) -> object:
        return await one.models(), await one.models()

    with Upstream(Script(kind="openai", models=(*good, *bad))) as up:
        kept = tuple(UpstreamCard(name) for name in good)
        assert ask(up, twice) == (kept, kept)
    [record] = caplog.records
    assert "a: GET /v1/models: 5 names are not used" in record.getMessage()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("status", path="/health", status=503), "GET /health: status 503"),
        (Fault("half_open", path="/health"), "no answer within 0.3 s"),
        (Fault("garbage", path="/health"), "GET /health: "),
        (Fault("truncate", path="/health", after=1), "GET /health: "),
        (Fault("reset", path="/health", times=-1), "GET /health: "),
    ],
)
def test_what_brings_nothing_says_why(fault: Fault, said: str) -> None:
    with Upstream(Script()) as up:
        up.inject(fault)
        with pytest.raises(Unseen, match=said):
            ask(up, lambda one: one.alive())


def test_a_missing_health_route_still_shows_that_it_lives() -> None:
    with Upstream(Script(health_path="/other")) as up:
        assert ask(up, lambda one: one.alive()) == "status 404"


def test_a_page_without_known_names_is_none() -> None:
    with Upstream(Script()) as up:
        up.lie(MetricsScript(garbage=True))
        with pytest.raises(Unseen, match="none of the names of kind 'vllm'"):
            ask(up, lambda one: one.metrics())


def test_a_page_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "METRICS_BYTES_MAX", 64)
    with Upstream(Script()) as up, pytest.raises(Unseen, match="more than 64 bytes"):
        ask(up, lambda one: one.metrics())


def test_nobody_at_the_address_is_told() -> None:
    up = Upstream(Script())
    up.start()
    up.stop()
    with pytest.raises(Unseen, match=r"GET /health: .*Connect"):
        ask(up, lambda one: one.alive())
