"""Pausing the queue of jobs over HTTP: who may, what is shown."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from tests.unit.adapters.gateway.pictures.fakes import FILMER, KEYED, PAINTER, Studio

from headway.adapters.gateway.ports import Starting
from headway.adapters.gateway.settings import ApiKey, AuthSettings, GatewaySettings


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_the_queue_of_one_model_or_of_all_is_paused_and_let_go_on() -> None:
    """ComfyUI#1032."""

    async def test() -> None:
        studio = Studio()
        one = (await studio.post("/v1/queue/pause", {"model": FILMER, "running": "checkpoint"})).json()
        assert (one["paused"], one["data"][0]["model"], one["data"][0]["paused"]) == (False, FILMER, True)
        assert one["data"][0]["running_jobs"] == "checkpoint"
        assert (one["data"][1]["model"], one["data"][1]["waiting"], one["data"][1]["paused"]) == ("old", 2, False)
        every = (await studio.post("/v1/queue/pause", {})).json()
        assert (every["paused"], every["running_jobs"], every["data"][1]["paused"]) == (True, "finish", True)
        assert every["data"][0]["running_jobs"] == "checkpoint"  # its own hold counts
        assert (await studio.get("/v1/queue")).json() == every
        gone = (await studio.post("/v1/queue/resume", {})).json()
        assert (gone["paused"], [line["paused"] for line in gone["data"]]) == (False, [False])

    run(test)


def test_a_model_that_nobody_knows_is_not_paused_and_one_that_has_jobs_still_is() -> None:
    async def test() -> None:
        studio = Studio()
        wrong = await studio.post("/v1/queue/pause", {"model": "filmr"})
        assert (wrong.status, wrong.json()["error"]["param"]) == (404, "model")
        assert f"{PAINTER}, {FILMER}, old" in wrong.json()["error"]["message"]
        assert (await studio.post("/v1/queue/pause", {"model": "old"})).status == 200
        for body, param in (({"running": "now"}, "running"), ({"modell": "x"}, "modell"), ({"model": 3}, "model")):
            refused = await studio.post("/v1/queue/pause", body)
            assert (refused.status, refused.json()["error"]["param"]) == (400, param)
        assert list(studio.queue.holds) == ["old"]
        assert (await studio.post("/v1/queue/resume", {"model": "filmr"})).status == 404
        studio.queue.lines = ()
        assert (await studio.post("/v1/queue/resume", {"model": "old"})).status == 200  # it is held, and nothing else
        assert (await studio.post("/v1/queue/resume", {"model": "old"})).status == 404

    run(test)


def test_while_models_load_nobody_says_that_one_does_not_exist() -> None:
    async def test() -> None:
        studio = Studio()
        studio.painter.cards = []
        early = await studio.post("/v1/queue/pause", {"model": FILMER})
        assert (early.status, early.json()["error"]["code"]) == (503, "no_replica")
        assert (await studio.post("/v1/queue/pause", {})).status == 200  # of every model it needs to know none

    run(test)


def test_the_queue_of_a_model_that_starts_can_be_paused_and_its_pictures_wait() -> None:  # SPEC M2
    async def test() -> None:
        studio = Studio()
        studio.painter.cards = [card for card in studio.painter.cards if card.id != FILMER]
        studio.painter.starting = lambda: [Starting(FILMER, ("video",), "it is loading")]
        assert (await studio.post("/v1/queue/pause", {"model": FILMER})).status == 200
        for body in ({"model": FILMER, "prompt": "x"}, {"prompt": "x"}):
            early = await studio.post("/v1/videos", body)
            assert (early.status, early.json()["error"]["code"]) == (503, "no_replica")
            assert f"`{FILMER}` is starting: it is loading" in early.json()["error"]["message"]

    run(test)


def test_only_an_admin_pauses_where_there_is_one() -> None:
    async def test() -> None:
        hashed = "sha256:2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6"  # of "c"
        keys = (*KEYED.auth.keys, ApiKey(hashed, "ops", admin=True))
        studio = Studio(msgspec.structs.replace(GatewaySettings(), auth=AuthSettings(keys=keys)))
        for path, body in (("/v1/queue/pause", {}), ("/v1/queue/resume", {})):
            refused = await studio.post(path, body, {"authorization": "Bearer a"})
            assert (refused.status, refused.json()["error"]["code"]) == (403, "admin_only")
            assert (await studio.post(path, body)).status == 401
            assert (await studio.post(path, body, {"authorization": "Bearer c"})).status == 200
        assert (await studio.get("/v1/queue", {"authorization": "Bearer b"})).status == 403

    run(test)
