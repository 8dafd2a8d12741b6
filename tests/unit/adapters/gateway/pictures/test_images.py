import asyncio
import base64
import json

import msgspec
import pytest
from tests.unit.adapters.gateway.fakes import MODEL, Client
from tests.unit.adapters.gateway.pictures.fakes import (
    FILMER,
    KEYED,
    LOOKS,
    PAINTER,
    TOY,
    Painter,
    Studio,
    data_of,
    data_url,
    form,
    picture,
)

from headway.adapters.gateway.answer_fields import ANSWERS
from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.ports import ModelCard, PictureEstimate
from headway.adapters.gateway.settings import GatewaySettings, LimitSettings
from headway.core.artifacts import PromptRead
from headway.core.effects import ErrorOut
from headway.core.errors import CapacityError
from headway.core.request import DiffusionRequest
from headway.core.units import NS_PER_S


def run(test: object) -> None:
    asyncio.run(test())  # type: ignore[operator]  # each test gives a coroutine function


def test_what_was_used_and_what_it_took_is_in_the_answer() -> None:
    # SPEC H1, F2; vllm-omni#532: steps, guidance and seed were dropped on the way to the engine
    async def test() -> None:
        studio = Studio()
        extra = {"seed": 7, "num_inference_steps": 9, "guidance_scale": 2.5, "negative_prompt": "blue", "size": "96x64"}
        reply = await studio.draw(**extra)
        answer = reply.json()
        assert reply.status == 200
        assert data_of(reply) == [b"a red circle/7/9/1.0"]
        assert answer["parameters"] == extra | {"deterministic": False, "n": 1}
        assert (answer["seeds"], answer["size"], answer["model"]) == ([7], "96x64", PAINTER)
        assert answer["gpu_seconds"] == 2.0
        assert answer["price_usd"] == pytest.approx(2.0 * 2.5 / 3600)
        assert answer["stage_seconds"] == {"text_encode": 0.25, "vae_encode": 0.0, "denoise": 1.25, "vae_decode": 0.5}
        assert answer["usage"]["output_tokens"] == 96
        assert "degraded" not in answer
        (asked,) = studio.painter.painted
        assert (asked.width, asked.height, asked.steps, asked.guidance_scale, asked.passes) == (96, 64, 9, 2.5, 2)
        assert asked.content.negative_prompt == "blue"

    run(test)


def test_pictures_are_stored_before_their_request_is_closed_which_is_told_how_long_that_took() -> None:
    # SPEC I2: `upload`
    async def test() -> None:
        studio = Studio()
        keep, now_ns = studio.jobs.keep, studio.painter.now_ns

        async def slowly(*given: object) -> object:
            studio.painter.now_ns = lambda: now_ns() + NS_PER_S  # type: ignore[method-assign]  # time passes
            return await keep(*given)  # type: ignore[arg-type]  # as they came

        studio.jobs.keep = slowly  # type: ignore[assignment,method-assign]  # an object store that takes its time
        await studio.draw()
        (stored_ns,) = studio.painter.stored_ns
        assert stored_ns >= NS_PER_S

    run(test)


def test_picture_k_has_the_seed_plus_k() -> None:
    # SPEC F5; koboldcpp#1107, A1111#14273: n pictures of one seed were equal
    async def test() -> None:
        studio = Studio()
        three = await studio.draw(n=3, seed=20)
        alone = [await studio.draw(seed=20 + k) for k in range(3)]
        assert three.json()["seeds"] == [20, 21, 22]
        assert data_of(three) == [data_of(one)[0] for one in alone]

    run(test)


def test_without_a_seed_another_one_is_taken_each_time_and_told() -> None:
    async def test() -> None:
        studio = Studio()
        seeds = [(await studio.draw()).json()["seeds"][0] for _ in range(3)]
        assert len(set(seeds)) == 3
        assert seeds == [request.seed for request in studio.painter.painted]

    run(test)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 0}, "n", ">= 1"),
        ({"n": 11}, "n", "<= 10"),
        ({"size": "7x7"}, "size", "multiples of 8"),
        ({"size": "8x8"}, "size", "at least 64"),
        ({"size": "1024x1024"}, "size", "65536 pixels"),
        ({"size": "banana"}, "size", "WIDTHxHEIGHT"),
        ({"num_inference_steps": 0}, "num_inference_steps", ">= 1"),
        ({"num_inference_steps": 51}, "num_inference_steps", "1 to 50"),
        ({"num_inference_stepz": 4}, "num_inference_stepz", "`num_inference_steps`"),
        ({"seed": "x"}, "seed", "expected an integer"),
        ({"seed": -1}, "seed", ">= 0"),
        ({"prompt": ""}, "prompt", "length >= 1"),
        ({"output_format": "tiff"}, "output_format", "`jpeg`, `png`, `webp`; got 'tiff'"),
        ({"output_compression": 50}, "output_compression", "jpeg or webp"),
        ({"quality": "hd"}, "quality", "num_inference_steps"),
        ({"background": "transparent"}, "background", "no transparent parts"),
        ({"strength": 0.5}, "strength", "bring a picture"),
        ({"partial_images": 2}, "partial_images", "stream"),
        ({"lora": [{"id": "outline", "scale": 1}]}, "lora", "no adapter `outline`"),
        ({"lora": [{"id": "outline", "scale": 0}]}, "lora", "none are loaded"),
        ({"model": "toy"}, "model", "generates text, not image"),
        ({"model": "filmer"}, "model", "generates video, not image"),
        ({"webhook_url": "http://x.example"}, "webhook_url", "respond-async"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(fields: dict[str, object], param: str, words: str) -> None:
    # SPEC H1; vllm-omni#532, stable-diffusion.cpp#1658
    async def test() -> None:
        studio = Studio()
        reply = await studio.draw(**fields)
        error = reply.json()["error"]
        assert (reply.status, error["param"]) == (400, param)
        assert words in error["message"]
        assert studio.painter.painted == []

    run(test)


def test_what_other_clients_send_harmlessly_is_taken() -> None:
    async def test() -> None:
        fields = {"quality": "auto", "background": "opaque", "moderation": "low", "user": "u", "style": None}
        assert (await Studio().draw(**fields)).status == 200

    run(test)


def test_an_address_gives_the_same_bytes_to_its_tenant_only() -> None:
    # SPEC H4, M5
    async def test() -> None:
        studio = Studio(KEYED)
        headers = {"authorization": "Bearer a", "host": "pictures.example"}
        answer = (await studio.draw(headers, n=2, seed=3, response_format="url", output_format="webp")).json()
        urls = [one["url"] for one in answer["data"]]
        assert urls[0] == f"http://pictures.example/v1/images/{answer['id']}/content"
        assert urls[1].endswith("content?variant=1")
        second = await studio.get(urls[1].removeprefix("http://pictures.example"), headers)
        assert (second.body, second.headers["content-type"]) == (b"a red circle/4/4/1.0", "image/webp")
        foreign = await studio.get(f"/v1/images/{answer['id']}/content", {"authorization": "Bearer b"})
        assert (foreign.status, foreign.json()["error"]["code"]) == (404, "image_not_found")

    run(test)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\0b", "x" * 300, "img_nope"])
def test_an_id_is_never_a_path(name: str) -> None:
    # SPEC M5
    async def test() -> None:
        assert (await Studio().get(f"/v1/images/{name}/content")).status == 404

    run(test)


def test_a_stream_shows_unfinished_pictures_and_then_the_whole_one() -> None:
    # SPEC H1
    async def test() -> None:
        studio = Studio()
        reply = await studio.draw(stream=True, partial_images=2, seed=5, output_format="jpeg")
        assert reply.headers["content-type"].startswith("text/event-stream")
        names = [line[7:] for line in reply.body.decode().split("\n") if line.startswith("event: ")]
        assert names == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
        events = [json.loads(event) for event in reply.events]
        assert [event["type"] for event in events] == names
        assert [event["partial_image_index"] for event in events[:2]] == [0, 1]
        assert base64.b64decode(events[0]["b64_json"]) == b"preview 0"
        assert base64.b64decode(events[2]["b64_json"]) == data_of(await studio.draw(seed=5))[0]
        assert (events[2]["seeds"], events[2]["gpu_seconds"], events[2]["output_format"]) == ([5], 2.0, "jpeg")

    run(test)


def test_an_engines_refusal_keeps_its_code_and_the_next_request_runs() -> None:
    # vllm-omni#2327: running out of memory was swallowed, and what followed was broken
    async def test() -> None:
        studio = Studio()
        studio.painter.error = ErrorOut(500, "out_of_memory", "720 frames do not fit.")
        reply = await studio.draw()
        assert (reply.status, reply.json()["error"]["code"]) == (500, "out_of_memory")
        studio.painter.error = None
        assert (await studio.draw()).status == 200

    run(test)


def test_a_client_that_leaves_stops_its_own_request_only() -> None:
    # vllm-omni#1347, docker/model-runner#1041
    async def test() -> None:
        studio = Studio()
        studio.painter.held = True
        leaving, staying = Client(studio.app), Client(studio.app)
        body = {"prompt": "x", "model": PAINTER}
        calls = [asyncio.ensure_future(one.call("POST", "/v1/images/generations", body)) for one in (leaving, staying)]
        while len(studio.painter.painted) < 2:
            await asyncio.sleep(0)
        first, second = studio.painter.painted
        leaving.gone.set()
        await calls[0]
        assert studio.painter.cancelled == [first.id]
        studio.painter.paint(second)
        assert (await calls[1]).status == 200
        assert sorted(studio.painter.closed_requests) == sorted([first.id, second.id])

    run(test)


def test_what_was_taken_away_is_told() -> None:
    # SPEC A4, F2
    async def test() -> None:
        studio = Studio()
        studio.painter.degraded = (("steps", 2),)
        answer = (await studio.draw(allow_degrade=["steps"])).json()
        assert answer["degraded"] == {"steps": 2}
        assert answer["parameters"]["num_inference_steps"] == 2
        assert studio.painter.painted[0].allow_degrade == ("steps",)

    run(test)


@pytest.mark.parametrize(("asked", "scale", "passes"), [(None, 3.0, 2), (0, 1.0, 1), (1, 1.0, 1), (1.5, 1.5, 2)])
def test_no_guidance_is_one_pass(asked: float | None, scale: float, passes: int) -> None:
    async def test() -> None:
        studio = Studio()
        answer = (await studio.draw(guidance_scale=asked)).json()
        (request,) = studio.painter.painted
        told = answer["parameters"]["guidance_scale"]
        assert (request.guidance_scale, request.passes, told) == (scale, passes, scale)

    run(test)


def test_a_negative_prompt_that_no_pass_would_read_is_refused() -> None:
    # SPEC F1: every replica would refuse it
    async def test() -> None:
        studio = Studio()
        for scale in (0, 1):
            reply = await studio.draw(guidance_scale=scale, negative_prompt="blue")
            assert (reply.status, reply.json()["error"]["param"]) == (400, "negative_prompt")
        studio.painter.cards[1] = ModelCard(
            PAINTER, ("image",), 0, 1, 0, 0, pictures=msgspec.structs.replace(LOOKS, guidance_scale=1.0)
        )
        assert (await studio.draw(negative_prompt="blue")).status == 400
        assert studio.painter.painted == []
        assert (await studio.draw(guidance_scale=1.5, negative_prompt="blue")).status == 200

    run(test)


def test_a_model_that_takes_guidance_as_input_makes_one_pass() -> None:
    async def test() -> None:
        studio = Studio()
        studio.painter.cards[1] = ModelCard(
            PAINTER, ("image",), 0, 1, 0, 0, pictures=msgspec.structs.replace(LOOKS, passes=1)
        )
        await studio.draw(guidance_scale=5)
        assert studio.painter.painted[0].passes == 1
        assert "above 0" in (await studio.draw(guidance_scale=0)).json()["error"]["message"]

    run(test)


def test_an_answer_of_another_model_tells_whose_it_is_and_how_it_was_guided() -> None:
    # SPEC A4; sd-dynamic-prompts#357: metadata claimed what was asked for, not what ran
    async def test() -> None:
        studio = Studio()
        fast = msgspec.structs.replace(LOOKS, guidance_scale=1.0, steps=2)
        studio.painter.cards.append(ModelCard("fast", ("image",), 0, 1, 0, 0, pictures=fast))
        studio.painter.degraded = (("model", "fast"), ("steps", 2))
        answer = (await studio.draw(allow_degrade=["model"])).json()
        assert (answer["model"], answer["degraded"]) == ("fast", {"model": "fast", "steps": 2})
        assert (answer["parameters"]["num_inference_steps"], answer["parameters"]["guidance_scale"]) == (2, 1.0)
        assert answer["requested_model"] == PAINTER
        assert studio.jobs.metered[0].model == "fast"
        kept = (await studio.get(f"/v1/images/{answer['id']}")).json()
        assert (kept["model"], kept["requested_model"], kept["degraded"]) == ("fast", PAINTER, answer["degraded"])
        studio.painter.cards.pop()  # it was unloaded before the next answer came
        await studio.draw(allow_degrade=["model"])
        assert studio.jobs.metered[1].model == "fast"

    run(test)


def test_what_fits_nowhere_is_refused_as_an_answer_and_as_a_job() -> None:
    # FramePack#25: before its steps are paid; no job is made that can only fail
    async def test() -> None:
        studio = Studio()
        words = "request r needs 9 bytes, rep-0 has 8: ask for a smaller size"
        studio.painter.predicted = PictureEstimate({"denoise": 99.0}, 99.0, 0.0, "reject", unservable=words)
        for reply in (await studio.draw(), await studio.draw({"prefer": "respond-async"}), await studio.film()):
            error = reply.json()["error"]
            assert (reply.status, error["code"], error["message"]) == (400, "unservable", words)
            assert error["type"] == "invalid_request_error"
        assert (studio.painter.painted, studio.jobs.news) == ([], {})

    run(test)


def test_one_that_comes_while_its_only_replica_starts_again_waits_at_the_front() -> None:  # SPEC A11
    async def test() -> None:
        studio = Studio()

        def away(_request: DiffusionRequest) -> PictureEstimate:
            raise CapacityError("no replica is ready", status=503, code="no_replica")

        studio.painter.foresee = away
        assert (await studio.draw()).status == 200

    run(test)


def test_a_long_one_is_refused_unless_it_may_be_a_job() -> None:
    # SPEC H2
    async def test() -> None:
        studio = Studio()
        studio.painter.predicted = PictureEstimate({"denoise": 61.0}, 61.0, 0.0, "admit")
        refused = await studio.draw()
        assert (refused.status, refused.json()["error"]["code"]) == (400, "use_async")
        body = {"endpoint": "/v1/images/generations", "body": {"prompt": "x", "model": PAINTER}}
        assert (await studio.post("/v1/estimates", body)).json()["verdict"] == "use_async"
        body = {"endpoint": "/v1/videos", "body": {"prompt": "x", "model": FILMER}}
        assert (await studio.post("/v1/estimates", body)).json()["verdict"] == "admit"
        job = await studio.draw({"prefer": "respond-async"}, n=2, seed=1)
        assert job.status == 202
        told = [job.headers[name] for name in ("preference-applied", "location", "openai-poll-after-ms")]
        assert told == ["respond-async", f"/v1/images/{job.json()['id']}", "3050"]  # a 20th of 61 s
        assert {name: job.json()[name] for name in ("object", "status", "progress")} == {
            "object": "image.job",
            "status": "queued",
            "progress": 0,
        }
        assert studio.jobs.news[job.json()["id"]].device_s == 61.0

    run(test)


def test_one_key_is_one_run_and_another_body_is_a_conflict() -> None:
    # SPEC H1
    async def test() -> None:
        studio = Studio()
        key = {"idempotency-key": "k-1"}
        first, second = await asyncio.gather(studio.draw(key), studio.draw(key))
        third = await studio.draw(key)
        assert first.json() == second.json() == third.json()
        assert len(studio.painter.painted) == 1
        marks = [answer.headers.get("idempotent-replayed") for answer in (first, second, third)]
        assert marks == [None, "true", "true"]
        other = await studio.draw(key, seed=1)
        assert (other.status, other.json()["error"]["code"]) == (409, "idempotency_conflict")

    run(test)


def test_what_the_model_read_of_a_prompt_is_told() -> None:
    # SPEC M3, H1
    async def test() -> None:
        studio = Studio()
        padded = (await studio.draw()).json()
        assert padded["usage"]["input_tokens_details"]["text_tokens"] == LOOKS.text_tokens  # this engine does not tell
        assert "warnings" not in padded
        studio.painter.read = PromptRead(9)
        short = (await studio.draw()).json()
        assert (short["usage"]["input_tokens"], "warnings" in short) == (9, False)
        studio.painter.read = PromptRead(16, ("`prompt` has 40 tokens ...",))
        long = (await studio.draw()).json()
        assert (long["usage"]["input_tokens"], long["warnings"]) == (16, ["`prompt` has 40 tokens ..."])
        reply = await studio.draw(stream=True)
        assert json.loads(reply.events[-1])["warnings"] == ["`prompt` has 40 tokens ..."]
        kept = (await studio.get(f"/v1/images/{long['id']}")).json()
        assert (kept["prompt_tokens"], kept["warnings"]) == (16, ["`prompt` has 40 tokens ..."])

    run(test)


def test_a_stream_of_several_pictures_says_which_is_which() -> None:
    # SPEC H1
    async def test() -> None:
        studio = Studio()
        whole = (await studio.draw(n=3, seed=5)).json()
        reply = await studio.draw(stream=True, n=3, seed=5, partial_images=2)
        events = [json.loads(event) for event in reply.events]
        assert [event["type"].rpartition(".")[2] for event in events] == ["partial_image"] * 2 + ["completed"] * 3
        assert [(event["partial_image_index"], event["index"]) for event in events[:2]] == [(0, 0), (1, 0)]
        made = events[2:]
        assert [event["index"] for event in made] == [0, 1, 2]
        assert [event["seed"] for event in made] == whole["seeds"] == [5, 6, 7]
        assert [event["b64_json"] for event in made] == [one["b64_json"] for one in whole["data"]]
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            assert sum(event["usage"][name] for event in made) == whole["usage"][name]
        assert {event["gpu_seconds"] for event in made} == {whole["gpu_seconds"]}

    run(test)


def test_a_repeated_stream_is_its_finished_picture() -> None:
    async def test() -> None:
        studio = Studio()
        first, again = [
            (await studio.draw({"idempotency-key": "k"}, stream=True, partial_images=1)).events for _ in range(2)
        ]
        assert (len(first), len(again)) == (2, 1)
        assert json.loads(again[0]) == json.loads(first[1])
        assert len(studio.painter.painted) == 1

    run(test)


def test_a_failed_run_leaves_its_key_free() -> None:
    async def test() -> None:
        studio = Studio()
        studio.painter.error = ErrorOut(502, "engine_lost", "Lost.")
        assert (await studio.draw({"idempotency-key": "k"})).status == 502
        studio.painter.error = None
        assert (await studio.draw({"idempotency-key": "k"})).status == 200

    run(test)


def test_an_answer_that_a_stop_cuts_off_stands_for_its_key() -> None:
    # SPEC H1: its pictures are stored and metered
    async def test() -> None:
        studio = Studio()
        body, key = {"prompt": "a red circle", "model": PAINTER}, {"idempotency-key": "k"}
        client = Client(studio.app)
        client.slow.set()
        call = asyncio.ensure_future(client.call("POST", "/v1/images/generations", body, key))
        while not studio.jobs.metered:
            await asyncio.sleep(0)
        for _ in range(9):
            await asyncio.sleep(0)
        call.cancel()
        client.gone.set()
        client.slow.clear()
        await asyncio.gather(call, return_exceptions=True)
        again = await studio.draw(key)
        assert (again.status, again.headers["idempotent-replayed"]) == (200, "true")
        assert len(studio.painter.painted) == len(studio.jobs.metered) == 1

    run(test)


def test_who_waits_for_a_key_runs_it_when_its_first_client_leaves() -> None:
    # vllm-omni#1347: an abort is of one request, and others are untouched
    async def test() -> None:
        studio = Studio()
        studio.painter.held = True
        body, key = {"prompt": "x", "model": PAINTER}, {"idempotency-key": "k"}
        first, second = Client(studio.app), Client(studio.app)
        calls = [
            asyncio.ensure_future(one.call("POST", "/v1/images/generations", body, key)) for one in (first, second)
        ]
        while not studio.painter.painted:
            await asyncio.sleep(0)
        first.gone.set()
        await calls[0]
        while len(studio.painter.painted) < 2:
            await asyncio.sleep(0)
        studio.painter.paint(studio.painter.painted[1])
        assert (await calls[1]).status == 200
        assert (await studio.draw(key, prompt="x")).json() == second.reply.json()

    run(test)


def test_one_that_waits_for_a_key_and_leaves_runs_nothing() -> None:
    async def test() -> None:
        studio = Studio()
        studio.painter.held = True
        body, key = {"prompt": "x", "model": PAINTER}, {"idempotency-key": "k"}
        first, second = Client(studio.app), Client(studio.app)
        calls = [
            asyncio.ensure_future(one.call("POST", "/v1/images/generations", body, key)) for one in (first, second)
        ]
        while not studio.painter.painted:
            await asyncio.sleep(0)
        second.gone.set()
        await calls[1]
        studio.painter.paint(studio.painter.painted[0])
        assert (await calls[0]).status == 200
        assert len(studio.painter.painted) == 1

    run(test)


def test_keys_of_one_tenant_are_not_the_others() -> None:
    async def test() -> None:
        studio = Studio(KEYED)
        a, b = [await studio.draw({"idempotency-key": "k", "authorization": f"Bearer {who}"}) for who in "ab"]
        assert a.json()["id"] != b.json()["id"]

    run(test)


def test_a_deterministic_request_is_answered_again_without_device_time() -> None:
    # SPEC F7
    async def test() -> None:
        studio = Studio(KEYED)
        mine, other = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
        first, again = [(await studio.draw(mine, deterministic=True)).json() for _ in range(2)]
        assert again["data"] == first["data"]
        assert (again["cached"], again["gpu_seconds"], "cached" in first) == (True, 0.0, False)
        assert len(studio.painter.painted) == 1
        assert (await studio.draw(other, deterministic=True)).json()["data"] == first["data"]
        assert len(studio.painter.painted) == 2  # of another tenant nothing is known
        await studio.draw(mine, deterministic=True, num_inference_steps=5)
        assert len(studio.painter.painted) == 3

    run(test)


def test_a_degraded_answer_is_not_given_again() -> None:
    async def test() -> None:
        studio = Studio()
        studio.painter.degraded = (("steps", 2),)
        for _ in range(2):
            assert "cached" not in (await studio.draw(deterministic=True, allow_degrade=["steps"])).json()

    run(test)


def test_the_kept_answers_are_bounded() -> None:
    async def test() -> None:
        studio = Studio(GatewaySettings(limits=LimitSettings(result_cache_bytes=50)))
        for seed in (1, 2, 3, 3, 1):
            await studio.draw(deterministic=True, seed=seed)
        assert [request.seed for request in studio.painter.painted] == [1, 2, 3, 1]  # two of 20 bytes fit

    run(test)


def test_an_edit_brings_its_picture_as_a_form_or_as_json() -> None:
    # SPEC H1
    async def test() -> None:
        studio, body = Studio(), picture(form="JPEG")
        fields = [("prompt", "bluer"), ("model", PAINTER), ("strength", "0.25"), ("seed", "9"), ("n", "2")]
        whole, headers = form(fields, [("image[]", body), ("image[]", picture(colour=9))])
        by_form = await studio.post("/v1/images/edits", whole, headers)
        by_json = await studio.post(
            "/v1/images/edits",
            {"prompt": "bluer", "strength": 0.25, "seed": 9, "images": [{"image_url": data_url(body)}]},
        )
        assert by_form.json()["parameters"]["strength"] == 0.25
        assert data_of(by_form)[0] == data_of(by_json)[0] == b"bluer/9/4/0.25"
        assert [request.content.pictures[0] for request in studio.painter.painted] == [body, body]
        assert len(studio.painter.painted[0].content.pictures) == 2
        assert studio.jobs.news[by_form.json()["id"]].request.content.pictures == ()  # it is the client's

    run(test)


def test_a_variation_has_no_words() -> None:
    async def test() -> None:
        studio = Studio()
        whole, headers = form([], [("image", picture())])
        assert (await studio.post("/v1/images/variations", whole, headers)).status == 200
        whole, headers = form([("prompt", "x")], [("image", picture())])
        refused = await studio.post("/v1/images/variations", whole, headers)
        assert "/v1/images/edits" in refused.json()["error"]["message"]

    run(test)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "Missing required parameter: `image`"),
        ([("image", b"not a picture")], "no PNG, JPEG or WebP"),
        ([("image", picture()[:20])], "header is broken"),
        ([("image", picture(64, 65))], "64x65 pixels, the limit is 4096"),
        ([("image", picture()), ("mask", picture())], "edits whole pictures"),
        ([("image", picture())] * 3, "the limit is 2"),
        ([("thing", picture())], "files are image"),
        ([("input_reference", picture())], "takes no file `input_reference`"),
    ],
)
def test_a_picture_that_cannot_be_used_is_refused_before_it_is_decoded(
    files: list[tuple[str, bytes]], words: str
) -> None:
    # SPEC M5; vllm-omni#4634: one bad picture closed the executor
    async def test() -> None:
        studio = Studio(GatewaySettings(limits=LimitSettings(picture_pixels=4096, pictures=2)))
        reply = await studio.post("/v1/images/edits", *form([("prompt", "x"), ("model", PAINTER)], files))
        assert reply.status == 400
        assert words in reply.json()["error"]["message"]
        assert studio.painter.painted == []

    run(test)


@pytest.mark.parametrize("url", ["http://169.254.169.254/x.png", "file:///etc/passwd", "data:text/plain;base64,eA=="])
def test_addresses_are_not_fetched(url: str) -> None:
    # SPEC M5
    async def test() -> None:
        reply = await Studio().post("/v1/images/edits", {"prompt": "x", "images": [{"image_url": url}]})
        assert (reply.status, reply.json()["error"]["code"]) == (400, "invalid_image")

    run(test)


def test_without_a_diffusion_model_the_routes_say_so() -> None:
    async def test() -> None:
        app = build_app(Painter(), {MODEL: TOY}, GatewaySettings())
        reply = await Client(app).call("POST", "/v1/images/generations", {"prompt": "x"})
        assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")

    run(test)


def test_an_estimate_is_known_before_the_work() -> None:
    # SPEC F2
    async def test() -> None:
        studio = Studio()
        body = {"endpoint": "/v1/images/generations", "body": {"prompt": "x", "model": PAINTER}}
        answer = (await studio.post("/v1/estimates", body)).json()
        assert answer == {
            "model": PAINTER,
            "requested_model": PAINTER,
            "degraded": None,
            "gpu_seconds": 1.0,
            "price_usd": 0.0006944,  # 2.5 / 3600
            "eta_s": 1.5,
            "memory_bytes": None,
            "verdict": "admit",
            "stage_seconds": {"denoise": 1.0},
            "cold_start": False,
        }
        assert set(answer) <= set(ANSWERS["POST /v1/estimates"])
        studio.painter.predicted = PictureEstimate({"denoise": 1.0}, 1.0, 0.5, "admit", memory_bytes=777)
        assert (await studio.post("/v1/estimates", body)).json()["memory_bytes"] == 777
        wrong = await studio.post("/v1/estimates", {**body, "body": {"prompt": "x", "stepz": 1}})
        assert wrong.json()["error"]["code"] == "unknown_parameter"
        assert studio.painter.painted == []
        studio.painter.predicted = None
        assert (await studio.post("/v1/estimates", body)).status == 503

    run(test)
