"""`Idempotency-Key` of sessions (SPEC H5): whoever asks again does not pay twice."""

import asyncio
from unittest.mock import AsyncMock

import msgspec
import pytest
from tests.unit.adapters.gateway.pictures.fakes import KEYED
from tests.unit.adapters.gateway.playback.fakes import SESSIONS, Cinema, Viewer, leap, on_leaps

from headway.adapters.gateway.job_ports import Held, IdempotencyKey
from headway.adapters.gateway.playback.once import Once
from headway.core.effects import ErrorOut
from headway.core.ids import TenantId

KEY = {"idempotency-key": "mine"}


async def refused(viewer: Viewer) -> tuple[int, str, str]:
    await viewer.done
    error = msgspec.json.decode(viewer.body)["error"]
    return viewer.status, error["code"], error["message"]


async def is_free(cinema: Cinema) -> None:
    viewer = cinema.watch(KEY, seconds=2)
    await viewer.done
    assert (viewer.status, len(viewer.chunks), viewer.is_done) == (200, 1, True)
    await cinema.left_nothing()


def test_one_session_of_a_key_is_open_at_a_time() -> None:
    async def test() -> None:
        cinema = Cinema()
        first = cinema.watch(KEY, seconds=4)
        at_once = cinema.watch(KEY, seconds=4)  # while the first one is being let in
        assert (await refused(at_once))[:2] == (409, "session_open")
        name = await first.until(1)
        status, code, message = await refused(cinema.watch(KEY, seconds=4))
        assert (status, code) == (409, "session_open")
        assert name in message
        assert (await refused(cinema.watch(KEY, seconds=6)))[:2] == (409, "idempotency_conflict")
        other = cinema.watch({"idempotency-key": "another"}, seconds=2)
        await other.done
        assert other.is_done
        await first.done
        assert len(first.chunks) == 2
        assert len(cinema.projector.painted) == 3

    on_leaps(test)


@pytest.mark.parametrize("how", ["length", "stopped"])
def test_what_was_played_to_its_end_is_not_made_again(how: str) -> None:
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(KEY, seconds=4)
        name = await viewer.until(1)
        if how == "stopped":
            await cinema.ask("DELETE", f"{SESSIONS}/{name}")
        await viewer.done
        assert viewer.events[-1]["reason"] == how
        painted = len(cinema.projector.painted)
        status, code, message = await refused(cinema.watch(KEY, seconds=4))
        assert (status, code) == (409, "session_over")
        assert name in message
        assert (await refused(cinema.watch(KEY, seconds=6)))[:2] == (409, "idempotency_conflict")
        assert len(cinema.projector.painted) == painted
        await cinema.left_nothing()

    on_leaps(test)


@pytest.mark.parametrize("how", ["left", "failed", "refused", "no room", "cut"])
def test_what_did_not_come_to_its_end_leaves_its_key_free(how: str) -> None:
    async def test() -> None:
        cinema = Cinema()
        projector = cinema.projector
        if how == "refused":
            projector.refusals[0] = ErrorOut(429, "quota_exceeded", "No device time is left.", 3000)
        if how == "failed":
            projector.refusals[1] = ErrorOut(502, "engine_lost", "Three replicas were lost.")
        others = [cinema.watch() for _ in range(8)] if how == "no room" else []
        await leap(0.1)
        viewer = cinema.watch(KEY, seconds=2 if how == "no room" else 4)
        await leap(0.6)
        if how == "left":
            viewer.leave()
        elif how == "cut":
            viewer.done.cancel()
        await viewer.done
        for other in others:
            other.leave()
            await other.done
        assert not viewer.is_done
        projector.refusals.clear()
        await is_free(cinema)

    on_leaps(test)


def test_a_key_is_its_tenants_alone() -> None:
    # SPEC M5
    async def test() -> None:
        cinema = Cinema(KEYED)
        two = [cinema.watch({**KEY, "authorization": f"Bearer {name}"}, seconds=2) for name in ("a", "b")]
        for viewer in two:
            await viewer.done
            assert viewer.is_done

    on_leaps(test)


def test_a_session_that_is_open_at_another_gateway_is_not_waited_for() -> None:
    async def test() -> None:
        cinema = Cinema()
        first = cinema.watch(KEY, seconds=2)
        await first.done
        (held,) = cinema.jobs.answers.values()
        cinema.jobs.answers.clear()
        await cinema.jobs.begin(TenantId("default"), IdempotencyKey("mine", held[0]))
        status, code, _ = await refused(cinema.watch(KEY, seconds=2))
        assert (status, code) == (409, "session_open")
        assert asyncio.get_running_loop().time() < 0.5 + 2
        await cinema.left_nothing()

    on_leaps(test)


def test_what_was_played_is_kept_though_the_server_stops_meanwhile() -> None:
    async def test() -> None:
        answers, begun, go_on, kept = AsyncMock(), *(asyncio.Event() for _ in range(3))
        answers.begin.return_value = Held()

        async def finish(*_: object) -> None:
            begun.set()
            await go_on.wait()
            kept.set()

        answers.finish = finish

        async def play() -> str:
            return "length"

        once = Once(answers)
        playing = asyncio.ensure_future(once.play(TenantId("acme"), IdempotencyKey("mine", b"body"), "vs_1", play))
        await begun.wait()
        playing.cancel()
        await asyncio.wait([playing])
        assert playing.cancelled()
        go_on.set()
        await kept.wait()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_key_that_cannot_be_kept_is_refused() -> None:
    async def test() -> None:
        status, code, _ = await refused(Cinema().watch({"idempotency-key": "x" * 256}))
        assert (status, code) == (400, "invalid_value")

    on_leaps(test)
