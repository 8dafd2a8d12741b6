"""Idempotency keys of synchronous requests, between gateways of one table."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from headway.adapters.gateway.job_ports import Held, IdempotencyKey
from headway.adapters.jobs.answers import AnswerTable
from headway.core.errors import RequestError
from headway.core.ids import TenantId
from headway.core.units import NS_PER_S
from headway.live.jobs_answers import HELD_S, LOOK_S, RENEW_S, AnswerDesk
from headway.live.jobs_settings import JobSettings
from headway.live.jobs_table import Tables

S, TENANT, KEY = NS_PER_S, TenantId("acme"), IdempotencyKey("k", b"body")


class Gateways:
    """One desk on a clock of its own; `other` is what another gateway does to the same table."""

    def __init__(self, folder: Path, slept: "Callable[[Gateways, float], Coroutine[None, None, None]]") -> None:
        self.now_ns = 0
        self.tables = Tables(JobSettings(url=f"sqlite:///{folder / 'jobs.db'}"), "gw-1")
        self.desk = AnswerDesk(self.tables, lambda: self.now_ns, 3600 * S, lambda delay_s: slept(self, delay_s))
        self.other = AnswerTable(self.tables.database, "gw-2")

    async def take(self) -> object:
        """The other one asks for the key."""
        until_ns = self.now_ns + round(HELD_S * S)
        return await self.tables.ask(lambda: self.other.begin(TENANT, KEY, self.now_ns, until_ns))


def run(
    folder: Path,
    slept: Callable[[Gateways, float], Coroutine[None, None, None]],
    test: Callable[[Gateways], Coroutine[None, None, None]],
) -> None:
    async def lived() -> None:
        gateways = Gateways(folder, slept)
        await test(gateways)
        await gateways.desk.close()
        gateways.tables.close()

    asyncio.run(asyncio.wait_for(lived(), 60))


# SPEC F7, H3
def test_a_request_whose_key_runs_at_another_gateway_waits_for_that_answer(tmp_path: Path) -> None:
    async def slept(gateways: Gateways, delay_s: float) -> None:
        assert delay_s == LOOK_S
        await gateways.tables.ask(lambda: gateways.other.finish(TENANT, KEY, b"answer", 3600 * S))

    async def test(gateways: Gateways) -> None:
        assert await gateways.take() == Held()
        assert await gateways.desk.begin(TENANT, KEY) == Held(b"answer")

    run(tmp_path, slept, test)


def test_the_key_of_a_gateway_that_died_is_free_a_minute_later(tmp_path: Path) -> None:
    looks = []

    async def slept(gateways: Gateways, delay_s: float) -> None:
        if delay_s == LOOK_S:
            looks.append(delay_s)
            gateways.now_ns += round(delay_s * S)
        else:
            await asyncio.Event().wait()  # its own key, which nobody waits for

    async def test(gateways: Gateways) -> None:
        assert await gateways.take() == Held()
        assert await gateways.desk.begin(TENANT, KEY) == Held()
        assert len(looks) == HELD_S / LOOK_S

    run(tmp_path, slept, test)


def test_the_key_of_a_request_that_runs_longer_than_that_stays_taken(tmp_path: Path) -> None:
    """Renewed while it runs, and no longer."""
    renewed = asyncio.Event()
    delays = []

    async def slept(gateways: Gateways, delay_s: float) -> None:
        delays.append(delay_s)
        if len(delays) > 10:
            renewed.set()
            await asyncio.Event().wait()
        gateways.now_ns += round(delay_s * S)

    async def test(gateways: Gateways) -> None:
        assert await gateways.desk.begin(TENANT, KEY) == Held()
        await renewed.wait()
        assert delays == [RENEW_S] * 11
        assert gateways.now_ns > HELD_S * S
        assert await gateways.take() != Held()
        await gateways.desk.abandon(TENANT, KEY)
        assert await gateways.take() == Held()

    run(tmp_path, slept, test)


def test_nobody_renews_what_another_gateway_holds(tmp_path: Path) -> None:
    async def slept(_: Gateways, __: float) -> None:
        await asyncio.Event().wait()

    async def test(gateways: Gateways) -> None:
        assert await gateways.take() == Held()
        mine = gateways.tables.answers
        await gateways.tables.ask(lambda: mine.renew([(TENANT, KEY.key)], 1000 * S))
        gateways.now_ns = round(HELD_S * S)
        assert await gateways.desk.begin(TENANT, KEY) == Held()

    run(tmp_path, slept, test)


def test_a_key_that_lapsed_while_its_request_runs_here_is_run_once(tmp_path: Path) -> None:
    """SPEC F7: this process or the table stood still, and nothing was renewed."""

    async def slept(_: Gateways, __: float) -> None:
        await asyncio.Event().wait()

    async def test(gateways: Gateways) -> None:
        desk, other = gateways.desk, IdempotencyKey(KEY.key, b"another body")
        assert await desk.begin(TENANT, KEY) == Held()
        gateways.now_ns = round(2 * HELD_S * S)
        with pytest.raises(RequestError, match="another body"):
            await desk.begin(TENANT, other)
        again = [asyncio.ensure_future(desk.begin(TENANT, KEY)) for _ in range(2)]
        await gateways.tables.ask(lambda: None)  # they have asked what they would of the table
        assert not any(one.done() for one in again)
        await desk.finish(TENANT, KEY, b"answer")
        assert await asyncio.gather(*again) == [Held(b"answer")] * 2

    run(tmp_path, slept, test)
