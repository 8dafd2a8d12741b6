"""Who may open a session, and what is refused before it begins (SPEC H5)."""

import msgspec
import pytest
from tests.unit.adapters.gateway.pictures.fakes import KEYED
from tests.unit.adapters.gateway.playback.fakes import SESSIONS, STREAMER, Cinema, on_leaps, one_session

from headway.adapters.gateway.answer_fields import ANSWERS
from headway.adapters.gateway.playback.events import Chunk, Completed, Created, View
from headway.adapters.gateway.ports import PictureEstimate

A, B = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": "filmer"}, "model", f"`filmer` makes whole videos only; in chunks there are `{STREAMER}`"),
        ({"model": "painter"}, "model", "generates image, not video"),
        ({"prompt": ""}, "prompt", "length >= 1"),
        ({"size": "7x7"}, "size", "multiples of 8"),
        ({"seconds": 0}, "seconds", "> 0"),
        ({"seconds": 601}, "seconds", "the limit is 600"),
        ({"ahead": 0}, "ahead", ">= 1"),
        ({"ahead": 9}, "ahead", "the limit is 8 chunks"),
        ({"num_inference_steps": 201}, "num_inference_steps", "1 to 200"),
        ({"deterministic": True, "seed": None}, "seed", "need a `seed`"),
        ({"promt": "x"}, "promt", "`prompt`"),
        ({"lora": []}, "lora", "Unknown"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(fields: dict[str, object], param: str, words: str) -> None:
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(**fields)
        await viewer.done
        error = msgspec.json.decode(viewer.body)["error"]
        assert (viewer.status, error["param"]) == (400, param)
        assert words in error["message"]
        assert cinema.projector.painted == []
        await cinema.left_nothing()

    on_leaps(test)


@pytest.mark.parametrize(
    ("predicted", "status", "code"),
    [
        (PictureEstimate({"denoise": 1.5, "vae_decode": 0.6}, 2.1, 0.0, "admit"), 400, "not_realtime"),
        (PictureEstimate({"denoise": 1.5, "vae_decode": 0.5}, 2.0, 0.0, "admit"), 200, None),
        (None, 503, "no_replica"),
        (PictureEstimate({}, 0.0, 0.0, "reject", unservable="too large"), 400, "unservable"),
    ],
)
def test_what_is_to_be_in_real_time_is_refused_where_it_is_not(
    predicted: PictureEstimate | None, status: int, code: str | None
) -> None:
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.predicted = predicted
        viewer = cinema.watch(require_realtime=True, seconds=2)
        await viewer.done
        assert viewer.status == status
        if code is not None:
            assert msgspec.json.decode(viewer.body)["error"]["code"] == code

    on_leaps(test)


def test_without_a_wish_it_is_only_told_whether_it_is_in_real_time() -> None:
    async def test() -> None:
        for predicted, realtime in ((None, None), (PictureEstimate({"denoise": 3.0}, 3.0, 0.0, "admit"), False)):
            cinema = Cinema()
            cinema.projector.predicted = predicted
            viewer = cinema.watch(seconds=2)
            await viewer.done
            assert viewer.events[0]["realtime"] is realtime

    on_leaps(test)


@pytest.mark.parametrize(
    ("limits", "status", "code"),
    [({"tenant_open_max": 1}, 429, "quota_exceeded"), ({"open_max": 1}, 503, "queue_full")],
)
def test_no_more_are_open_than_may_be(limits: dict[str, int], status: int, code: str) -> None:
    async def test() -> None:
        cinema = Cinema(one_session(**limits))
        first = cinema.watch()
        name = await first.until(1)
        second = cinema.watch()
        await second.done
        error = msgspec.json.decode(second.body)["error"]
        assert (second.status, error["code"], second.headers["retry-after-ms"]) == (status, code, "5000")
        await cinema.ask("DELETE", f"{SESSIONS}/{name}")
        await first.done
        third = cinema.watch(seconds=2)
        await third.done
        assert third.status == 200

    on_leaps(test)


def test_a_session_is_its_tenants_alone() -> None:
    # SPEC M5
    async def test() -> None:
        cinema = Cinema(KEYED)
        viewer = cinema.watch(A)
        name = await viewer.until(1)
        path = f"{SESSIONS}/{name}"
        for method, body in (("GET", None), ("POST", {"prompt": "x"}), ("DELETE", None)):
            status, answer = await cinema.ask(method, path, body, B)
            assert (status, answer["error"]["code"]) == (404, "session_not_found")
            assert (await cinema.ask(method, path, body))[0] == 401
        assert (await cinema.ask("GET", SESSIONS, headers=B))[1]["data"] == []
        (seen,) = (await cinema.ask("GET", SESSIONS, headers=A))[1]["data"]
        assert seen == (await cinema.ask("GET", path, headers=A))[1]
        assert (seen["id"], seen["chunks"], seen["prompt"]) == (name, 1, "a red circle")
        assert (await cinema.ask("DELETE", path, headers=A))[0] == 200
        await viewer.done

    on_leaps(test)


def test_the_page_tells_of_every_field() -> None:
    # SPEC H1
    events = (Created, "created"), (Chunk, "chunk"), (Completed, "completed")
    for kind, name in events:
        fields = ANSWERS[f"POST /v1/videos/sessions, event `video.session.{name}`"]
        assert set(fields) == set(kind.__struct_fields__)
    assert set(ANSWERS["GET /v1/videos/sessions/{id}"]) == set(View.__struct_fields__)


def test_a_model_says_whether_it_makes_chunks_and_of_how_many_frames() -> None:
    async def test() -> None:
        _status, listed = await Cinema().ask("GET", "/v1/models")
        models = listed["data"]
        assert isinstance(models, list)
        told = {model["id"]: model.get("pictures", {}) for model in models}
        assert (told[STREAMER]["context_frames"], told[STREAMER]["chunk_frames"]) == (4, 4)
        assert "chunk_frames" not in told["filmer"]

    on_leaps(test)
