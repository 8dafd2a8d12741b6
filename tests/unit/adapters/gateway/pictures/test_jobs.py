import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.adapters.gateway.pictures.fakes import FILMER, FILMS, KEYED, PAINTER, Studio, data_url, form, picture

from headway.adapters.gateway.job_ports import Body, JobError
from headway.adapters.gateway.ports import ModelCard
from headway.core.errors import CapacityError
from headway.core.evidence import FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import NodeId, RequestId, TenantId


def run(test: Any) -> None:
    asyncio.run(test())


def test_a_video_is_queued_at_once() -> None:
    # SPEC H2
    async def test() -> None:
        studio = Studio()
        video = (await studio.film(seconds="8", size="96x64", seed=4)).json()
        (request,) = [new.request for new in studio.jobs.news.values()]
        assert (request.frames, request.fps, request.width, request.seed) == (16, 2, 96, 4)
        assert request.content.form == "mp4"
        told = {
            "object": "video",
            "model": FILMER,
            "status": "queued",
            "progress": 0,
            "seconds": "8",
            "size": "96x64",
            "prompt": "a red circle",
        }
        assert {name: video[name] for name in told} == told
        assert video["eta_s"] == 1.0
        assert studio.painter.painted == []  # it runs when the job table says so

    run(test)


def test_a_form_may_hold_everything_that_json_may() -> None:
    # vllm-omni#4900: extras were lost on the way; the client sends videos as forms with bracketed names
    async def test() -> None:
        studio = Studio()
        fields = [("prompt", "x"), ("model", FILMER), ("seconds", "4"), ("seed", "3"), ("guidance_scale", "1.5")]
        fields += [("num_inference_steps", "7"), ("deterministic", "true"), ("allow_degrade[]", "steps")]
        assert (await studio.post("/v1/videos", *form(fields))).status == 200
        (request,) = [new.request for new in studio.jobs.news.values()]
        assert (request.steps, request.seed, request.guidance_scale, request.deterministic) == (7, 3, 1.5, True)
        assert request.allow_degrade == ("steps",)
        refused = await studio.post("/v1/videos", *form([*fields, ("lora[0][id]", "x"), ("lora[0][scale]", "0.5")]))
        assert refused.json()["error"]["param"] == "lora"
        refused = await studio.post("/v1/videos", *form([*fields, ("seedz", "3")]))
        assert "`seed`" in refused.json()["error"]["message"]

    run(test)


@pytest.mark.parametrize("seconds", [5, "5", "x", 0])
def test_lengths_that_the_model_does_not_make_are_refused(seconds: object) -> None:
    async def test() -> None:
        reply = await Studio().film(seconds=seconds)
        assert (reply.status, reply.json()["error"]["param"]) == (400, "seconds")

    run(test)


def test_a_picture_to_start_from_is_refused_where_the_model_takes_none() -> None:
    async def test() -> None:
        files = [("input_reference", picture())]
        reply = await Studio().post("/v1/videos", *form([("prompt", "x"), ("model", FILMER)], files))
        assert "takes no pictures" in reply.json()["error"]["message"]

    run(test)


def test_who_asks_is_told_when_to_ask_again() -> None:
    async def test() -> None:
        studio = Studio()
        job = (await studio.film()).json()["id"]
        studio.jobs.change(job, eta_s=30.0, status="in_progress", progress=40)
        reply = await studio.get(f"/v1/videos/{job}")
        assert (reply.json()["progress"], reply.headers["openai-poll-after-ms"]) == (40, "1500")
        studio.jobs.change(job, eta_s=0.1)
        assert (await studio.get(f"/v1/videos/{job}")).headers["openai-poll-after-ms"] == "250"
        studio.jobs.complete(job, {})
        studio.jobs.change(job, gpu_seconds=36.0)
        over = await studio.get(f"/v1/videos/{job}")
        assert "openai-poll-after-ms" not in over.headers
        assert over.json()["price_usd"] == pytest.approx(0.025)  # 2.50 USD per device-hour

    run(test)


def test_contents_by_variant() -> None:
    # SPEC H4
    async def test() -> None:
        studio = Studio()
        job = (await studio.film()).json()["id"]
        early = await studio.get(f"/v1/videos/{job}/content")
        assert (early.status, early.json()["error"]["code"]) == (409, "not_ready")
        made = {
            ("video", 0): Body("video/mp4", b"film"),
            ("thumbnail", 0): Body("image/webp", b"thumb"),
            ("preview", 1): Body("image/png", b"second"),
        }
        studio.jobs.complete(job, made)
        told = (await studio.get(f"/v1/videos/{job}")).json()["outputs"]
        assert [(one["kind"], one["index"]) for one in told] == [("video", 0), ("thumbnail", 0), ("preview", 1)]
        for query, kind, body in (
            ("", "video/mp4", b"film"),
            ("?variant=thumbnail", "image/webp", b"thumb"),
            ("?variant=preview&index=1", "image/png", b"second"),
        ):
            reply = await studio.get(f"/v1/videos/{job}/content{query}")
            assert (reply.status, reply.headers["content-type"], reply.body) == (200, kind, body)
        assert (await studio.get(f"/v1/videos/{job}/content?variant=spritesheet")).status == 404
        assert (await studio.get(f"/v1/videos/{job}/content?variant=sound")).status == 400

    run(test)


def test_pages_follow_each_other() -> None:
    # SPEC H1; ComfyUI#1971
    async def test() -> None:
        studio = Studio()
        made = [(await studio.film(seed=seed)).json()["id"] for seed in range(5)]
        first = (await studio.get("/v1/videos?limit=2")).json()
        assert [one["id"] for one in first["data"]] == made[:2:-1]
        assert (first["first_id"], first["last_id"], first["has_more"]) == (made[4], made[3], True)
        rest = (await studio.get(f"/v1/videos?limit=100&after={first['last_id']}")).json()
        assert [one["id"] for one in rest["data"]] == made[2::-1]
        assert not rest["has_more"]
        for query in ("limit=0", "limit=101", "limit=-1", "limit=x", "limit="):
            refused = await studio.get(f"/v1/videos?{query}")
            assert (refused.status, refused.json()["error"]["code"]) == (400, "invalid_value")
            assert "from 1 to 100" in refused.json()["error"]["message"]
        assert (await studio.get("/v1/videos?order=up")).status == 400

    run(test)


def test_cancelled_is_failed_and_over_is_a_conflict() -> None:
    # sglang PR#24547, InvokeAI#6049
    async def test() -> None:
        studio = Studio()
        job, other = [(await studio.film(seed=seed)).json()["id"] for seed in (1, 2)]
        for _ in range(2):
            view = (await studio.post(f"/v1/videos/{job}/cancel", b"")).json()
            assert (view["status"], view["error"]["code"]) == ("failed", "cancelled")
        gone = await studio.get(f"/v1/videos/{job}/content")
        assert gone.json()["error"]["message"].startswith(f"Job `{job}` has no video to give: ")
        assert (await studio.get(f"/v1/videos/{other}")).json()["status"] == "queued"
        studio.jobs.complete(other, {})
        refused = await studio.post(f"/v1/videos/{other}/cancel", b"")
        assert (refused.status, refused.headers["x-should-retry"]) == (409, "false")
        studio.jobs.complete(other, {("preview", 0): Body("image/png", b"x")})
        gone = await studio.get(f"/v1/videos/{other}/content?variant=preview&index=3")
        assert gone.json()["error"]["message"] == f"Job `{other}` has no preview with the index 3, it has 1."

    run(test)


def test_a_deleted_video_is_gone() -> None:
    async def test() -> None:
        studio = Studio()
        job = (await studio.film()).json()["id"]
        reply = await studio.get(f"/v1/videos/{job}", method="DELETE")
        assert reply.json() == {"id": job, "object": "video.deleted", "deleted": True}
        assert (await studio.get(f"/v1/videos/{job}")).status == 404
        assert (await studio.get(f"/v1/videos/{job}", method="DELETE")).status == 404

    run(test)


def test_a_remix_keeps_everything_but_the_words() -> None:
    async def test() -> None:
        studio = Studio()
        job = (await studio.film(seconds=12, size="96x64", num_inference_steps=9)).json()
        remix = (await studio.post(f"/v1/videos/{job['id']}/remix", {"prompt": "a blue one"})).json()
        assert (remix["remixed_from_video_id"], remix["prompt"]) == (job["id"], "a blue one")
        assert remix["parameters"] == job["parameters"]  # the minted seed too
        assert (await studio.post("/v1/videos/video_nope/remix", {"prompt": "x"})).status == 404
        again = (await studio.post(f"/v1/videos/{remix['id']}/remix", {"prompt": "a green one"})).json()
        assert (again["remixed_from_video_id"], again["prompt"]) == (remix["id"], "a green one")
        assert again["parameters"] == job["parameters"]

    run(test)


def test_a_remix_of_a_video_that_began_with_a_picture_begins_with_it_too() -> None:
    async def test() -> None:
        studio = Studio()
        looks = msgspec.structs.replace(FILMS, edits=True)
        studio.painter.cards[2] = ModelCard(FILMER, ("video",), 0, 1, 0, 0, pictures=looks)
        link = {"image_url": data_url(picture(colour=200))}
        job = (await studio.film(input_reference=link, strength=0.7)).json()
        remix = (await studio.post(f"/v1/videos/{job['id']}/remix", {"prompt": "a blue one"})).json()
        again = (await studio.post(f"/v1/videos/{remix['id']}/remix", {"prompt": "a green one"})).json()
        brought = [studio.jobs.news[one["id"]].request.content for one in (job, remix, again)]
        assert [content.pictures for content in brought] == [(picture(colour=200),)] * 3
        assert [content.prompt for content in brought] == ["a red circle", "a blue one", "a green one"]
        assert again["parameters"] == job["parameters"]
        assert again["parameters"]["strength"] == 0.7

    run(test)


def test_a_failed_job_is_run_again_in_one_call() -> None:
    # InvokeAI#7330, unsloth#8187: the same core for images and videos
    async def test() -> None:
        studio = Studio()
        video = (await studio.film()).json()["id"]
        image = (await studio.draw({"prefer": "respond-async"})).json()["id"]
        for kind, job in (("videos", video), ("images", image)):
            studio.jobs.change(job, status="failed", error=JobError("lost", "It was lost."))
            view = (await studio.post(f"/v1/{kind}/{job}/retry", b"")).json()
            assert (view["status"], view["error"], view["attempts"]) == ("queued", None, 2)
            assert (await studio.post(f"/v1/{kind}/{job}/pause", b"")).json()["paused"]
            assert not (await studio.post(f"/v1/{kind}/{job}/resume", b"")).json()["paused"]
            assert (await studio.post(f"/v1/{kind}/{job}/reorder?before={job}", b"")).status == 200
            assert (await studio.post(f"/v1/{kind}/{job}/reorder", b"")).status == 400
        assert (await studio.post(f"/v1/images/{video}/cancel", b"")).status == 404

    run(test)


@pytest.mark.parametrize("by_url", [True, False])
def test_an_image_job_has_its_pictures_once_it_is_completed(by_url: bool) -> None:
    async def test() -> None:
        studio = Studio()
        wish = {"response_format": "url"} if by_url else {}
        job = (await studio.draw({"prefer": "respond-async, wait=1"}, n=2, **wish)).json()["id"]
        assert "data" not in (await studio.get(f"/v1/images/{job}")).json()
        studio.jobs.complete(job, {("picture", k): Body("image/png", b"%d" % k) for k in range(2)})
        view = (await studio.get(f"/v1/images/{job}", {"host": "h"})).json()
        if by_url:
            urls = [f"http://h/v1/images/{job}/content", f"http://h/v1/images/{job}/content?variant=1"]
            assert [one["url"] for one in view["data"]] == urls
        else:
            assert [one["b64_json"] for one in view["data"]] == ["MA==", "MQ=="]

    run(test)


def test_previews_of_an_image_job_are_given_as_those_of_a_video() -> None:  # SPEC H1: what `outputs` lists can be had
    async def test() -> None:
        studio = Studio()
        job = (await studio.draw({"prefer": "respond-async"})).json()["id"]
        made = {("picture", 0): b"all", ("preview", 0): b"half", ("preview", 1): b"most"}
        studio.jobs.complete(job, {key: Body("image/png", body) for key, body in made.items()})
        for (kind, index), body in made.items():
            query = f"?variant=preview&index={index}" if kind == "preview" else ""
            assert (await studio.get(f"/v1/images/{job}/content{query}")).body == body
        assert (await studio.get(f"/v1/images/{job}/content?variant=preview&index=2")).status == 404
        for wrong in ("variant=preview&index=x", "variant=previews", "variant=10"):
            assert (await studio.get(f"/v1/images/{job}/content?{wrong}")).status == 400

    run(test)


def test_pictures_that_are_gone_are_not_left_out_of_an_answer() -> None:
    # SPEC H2
    async def test() -> None:
        studio = Studio()
        job = (await studio.draw({"prefer": "respond-async"}, n=2)).json()["id"]
        studio.jobs.complete(job, {("picture", k): Body("image/png", b"%d" % k) for k in range(2)})
        del studio.jobs.bodies[job, "picture", 1]
        reply = await studio.get(f"/v1/images/{job}")
        assert (reply.status, reply.json()["error"]["code"]) == (404, "content_not_found")

    run(test)


def test_one_key_is_one_video() -> None:
    # SPEC H1
    async def test() -> None:
        studio = Studio()
        first, again = [await studio.film({"idempotency-key": "k"}, seed=1) for _ in range(2)]
        assert first.json()["id"] == again.json()["id"]
        assert [made.headers.get("idempotent-replayed") for made in (first, again)] == [None, "true"]
        assert (await studio.film({"idempotency-key": "k"}, seed=2)).status == 409

    run(test)


def test_the_evidence_of_every_attempt_of_a_job_is_told_also_of_one_that_an_earlier_run_made() -> None:
    # SPEC I1
    async def test() -> None:
        studio = Studio(KEYED)
        a, b = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
        marks = FrontMarks(RequestId("video_1"), TenantId("a"), -9, -9, -9, -8, None, None, -5, 0, outcome="cancelled")
        worker = WorkerMarks(NodeId("rep-0"), -8, steps=3)
        again = msgspec.structs.replace(marks, received_ns=10, ended_ns=90, outcome="ok")
        studio.jobs.attempts = [
            (number, evidence_record(one, worker)) for number, one in enumerate((marks, again), start=1)
        ]
        path = "/v1/requests/video_1/evidence"
        told = (await studio.get(path, a)).json()
        assert (told["outcome"], told["e2e_ms"]) == ("ok", 80e-6)
        assert [(one["attempt"], one["outcome"]) for one in told["attempts"]] == [(1, "cancelled"), (2, "ok")]
        assert (await studio.get(path, b)).status == 404
        studio.jobs.is_away = True
        assert (await studio.get(path, a)).status == 503

    run(test)


def test_nothing_of_one_tenant_is_seen_by_another() -> None:
    # SPEC M5
    async def test() -> None:
        studio = Studio(KEYED)
        a, b = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
        job = (await studio.film(a)).json()["id"]
        for path in (f"/v1/videos/{job}", f"/v1/videos/{job}/content", f"/v1/requests/{job}/evidence"):
            assert (await studio.get(path, b)).status == 404
        assert (await studio.get("/v1/videos", b)).json()["data"] == []
        for verb in ("cancel", "retry", "pause", "resume", "remix"):
            body = {"prompt": "x"}
            assert (await studio.post(f"/v1/videos/{job}/{verb}", body, b)).status == 404
        assert (await studio.get(f"/v1/videos/{job}", b, "DELETE")).status == 404
        assert (await studio.get("/v1/videos")).status == 401

    run(test)


def test_evidence_of_a_job_is_under_its_own_id() -> None:
    # SPEC I4
    async def test() -> None:
        studio = Studio()
        job = (await studio.film({"x-request-id": "mine"})).json()["id"]
        found = {name: studio.app._plain.index.find(name, studio.app._door.keys.tenant(None)) for name in (job, "mine")}
        assert all(entry is not None and entry.requests == (RequestId(job),) for entry in found.values())

    run(test)


@pytest.mark.parametrize("text", ["%00", "..%2F..%2Fetc", "a%0Ab", "%F0%9F%98%80", "x" * 129])
def test_what_is_no_id_is_no_job(text: str) -> None:
    # SPEC M5
    async def test() -> None:
        studio = Studio()
        job = (await studio.film()).json()["id"]
        for path, method in (
            (f"/v1/videos?after={text}", "GET"),
            (f"/v1/videos/{job}/reorder?before={text}", "POST"),
            (f"/v1/videos/{text}", "GET"),
            (f"/v1/videos/{text}", "DELETE"),
            (f"/v1/images/{text}/content", "GET"),
        ):
            refused = await studio.get(path, method=method)
            assert (refused.status, set(refused.json())) == (404, {"error"}), path

    run(test)


def test_pictures_are_deleted_as_videos_are_and_each_under_its_own_path() -> None:
    """unsloth#8187: video has it, image has not."""

    async def test() -> None:
        studio = Studio()
        drawn, filmed = (await studio.draw()).json()["id"], (await studio.film()).json()["id"]
        assert (await studio.get(f"/v1/videos/{drawn}", method="DELETE")).status == 404
        assert (await studio.get(f"/v1/images/{filmed}", method="DELETE")).status == 404
        gone = await studio.get(f"/v1/images/{drawn}", method="DELETE")
        assert gone.json() == {"id": drawn, "object": "image.deleted", "deleted": True}
        assert (await studio.get(f"/v1/images/{drawn}", method="DELETE")).status == 404
        assert (await studio.get(f"/v1/images/{drawn}/content")).status == 404
        assert list(studio.jobs.rows) == [filmed]

    run(test)


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"priority": -(2**31)}, {}, "priority"),  # its negative is no 32-bit number
        ({}, {"idempotency-key": "k" * 256}, "idempotency-key"),
        ({}, {"idempotency-key": "a b"}, "idempotency-key"),
    ],
)
def test_what_the_job_table_does_not_hold_is_refused(
    fields: dict[str, object], headers: dict[str, str], param: str
) -> None:
    async def test() -> None:
        refused = await Studio().film(headers, **fields)
        assert (refused.status, refused.json()["error"]["param"]) == (400, param)

    run(test)


def test_what_is_refused_is_told_in_the_words_of_the_client() -> None:
    async def test() -> None:
        studio = Studio()
        for key in ("k" * 256, "a b"):
            assert "255" in (await studio.film({"idempotency-key": key})).json()["error"]["message"]
        seconds = (await studio.film(seconds="4.0")).json()["error"]["message"]
        assert "'4.0'; `filmer` makes 4, 8, 12" in seconds
        fields, headers = form([("prompt", "x"), ("model", FILMER)], [("image", picture())])
        refused = (await studio.post("/v1/videos", fields, headers)).json()["error"]
        assert (refused["param"], "`image`" in refused["message"]) == ("image", True)

    run(test)


def test_a_job_is_accepted_while_no_replica_is_there_to_say_what_it_takes() -> None:
    # SPEC H3: the table is durable; the last replica of a model may be starting again (benchmarks/soak.py, torch)
    def away(_request: object) -> None:
        raise CapacityError("no replica is ready", status=503, code="no_replica")

    async def test() -> None:
        studio = Studio()
        studio.painter.foresee = away
        film = await studio.film()
        assert (film.status, film.json()["status"]) == (200, "queued")
        asked = {"prompt": "x", "model": PAINTER}
        drawn = await studio.post("/v1/images/generations", asked, {"prefer": "respond-async"})
        assert drawn.status == 202
        told = await studio.post("/v1/estimates", {"endpoint": "/v1/images/generations", "body": asked})
        assert told.status == 503  # who asks for a number is told that there is none

    run(test)
