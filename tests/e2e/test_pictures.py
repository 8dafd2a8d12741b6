"""The official client against `headway serve`: pictures, videos and their jobs, from the synthetic engine."""

import base64
import io
import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest
from PIL import Image
from tests.e2e.serving import Server, serve, until

MODELS = (
    "model.replicas=0",
    "jobs.lease_s=2",
    "jobs.progress_s=0.25",
    "diffusion=[{name='painter', engine='synthetic', steps=4, memory_mb=64, synthetic={step_ms=10, megapixel_ms=0}},"
    " {name='filmer', engine='synthetic', fps=4, steps=20, synthetic={step_ms=20, megapixel_ms=0}}]",
)
LONG = 200  # steps of 10 or 20 ms


class Studio:
    """A server and its client."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key="sk-test", max_retries=0, timeout=60)

    def film(self, **fields: object) -> openai.types.Video:
        extra = {"extra_body": fields.pop("extra")} if "extra" in fields else {}
        headers = {"extra_headers": fields.pop("headers")} if "headers" in fields else {}
        return self.client.videos.create(**{"model": "filmer", "prompt": "a red circle", **fields, **extra, **headers})

    def draw(self, n: int = 1, **extra: object) -> openai.types.ImagesResponse:
        return self.client.images.generate(model="painter", prompt="a red circle", size="64x64", n=n, extra_body=extra)

    def once(self, video: str, *states: str) -> openai.types.Video:
        until(lambda: self.client.videos.retrieve(video).status in states, f"{video} is {states}")
        return self.client.videos.retrieve(video)

    def get(self, path: str) -> dict[str, object]:
        status, body = self.server.call(path)
        assert status == 200, body
        return json.loads(body)

    def steps_done(self, job: str) -> int:
        return self.get(f"/v1/requests/{job}/evidence")["steps_done"]


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    folder: Path = tmp_path_factory.mktemp("state")
    sets = [part for model in MODELS for part in ("--set", model)]
    with warnings.catch_warnings(), serve(*sets, HEADWAY_STATE=str(folder)) as server:
        warnings.simplefilter("ignore", DeprecationWarning)  # OpenAI's own videos are no more
        made = Studio(server)
        with made.client:
            yield made
        server.process.terminate()
        assert server.end() == 0
        assert not any("Traceback" in line for line in server.errors), server.errors


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def pictures(answer: openai.types.ImagesResponse) -> list[bytes]:
    return [base64.b64decode(one.b64_json or "") for one in answer.data or []]


def test_pictures_edits_and_streams(studio: Studio) -> None:
    # SPEC H1, F7
    assert [model.id for model in studio.client.models.list()] == ["painter", "filmer"]
    three = studio.draw(n=3, seed=20)
    alone = [pictures(studio.draw(seed=20 + k))[0] for k in range(3)]
    assert pictures(three) == alone  # A1111#14273, diffusers#6233
    assert Image.open(io.BytesIO(alone[0])).size == (64, 64)
    extra = three.model_extra or {}
    assert extra["seeds"] == [20, 21, 22]
    assert sum(extra["stage_seconds"].values()) == pytest.approx(extra["gpu_seconds"])
    assert extra["gpu_seconds"] > 0
    edit = studio.client.images.edit(
        model="painter",
        image=("in.png", alone[0], "image/png"),
        prompt="bluer",
        extra_body={"seed": 1, "strength": 0.5},
    )
    assert (edit.model_extra or {})["parameters"]["strength"] == 0.5
    assert pictures(edit) != alone[:1]
    stream = studio.client.images.generate(model="painter", prompt="x", stream=True, partial_images=2)
    kinds = [event.type for event in stream]
    assert kinds == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    stream = studio.client.images.generate(
        model="painter", prompt="a red circle", stream=True, n=2, extra_body={"seed": 20}
    )
    last = list(stream)
    assert [(event.type, (event.model_extra or {})["index"]) for event in last] == [
        ("image_generation.completed", 0),
        ("image_generation.completed", 1),
    ]
    assert [base64.b64decode(event.b64_json) for event in last] == alone[:2]
    with pytest.raises(openai.BadRequestError, match="guidance_scale"):
        studio.draw(guidance_scal=1)
    with pytest.raises(openai.NotFoundError):
        studio.client.images.generate(model="nope", prompt="x")


def test_a_crowd_gets_what_each_gets_alone(studio: Studio) -> None:
    # SPEC F4; sglang#28502: batches damaged pictures of the same seed
    alone = [pictures(studio.draw(seed=seed)) for seed in range(3)]
    with ThreadPoolExecutor(9) as pool:
        crowd = list(pool.map(lambda number: pictures(studio.draw(seed=number % 3)), range(9)))
    assert crowd == [alone[number % 3] for number in range(9)]


def test_what_does_not_fit_in_memory_is_refused_with_its_bytes(studio: Studio) -> None:
    # SPEC F2, F5, L-2; FramePack#25, ai-toolkit PR#819: out of memory when all steps were paid
    def asked(size: str) -> tuple[str, dict[str, object]]:
        return "/v1/estimates", {
            "endpoint": "/v1/images/generations",
            "body": {"model": "painter", "prompt": "x", "size": size},
        }

    pixel = 64 * 2**20 / 1e6  # bytes of the virtual device
    for size, verdict in ((512, "admit"), (1024, "reject")):
        status, body = studio.server.call(*asked(f"{size}x{size}"))
        estimate = json.loads(body)
        assert (status, estimate["memory_bytes"], estimate["verdict"]) == (200, round(pixel * size**2), verdict)
    for headers in ({}, {"prefer": "respond-async"}):
        with pytest.raises(openai.BadRequestError) as refused:
            studio.client.images.generate(model="painter", prompt="x", size="1024x1024", extra_headers=headers)
        assert refused.value.code == "unservable"
        for words in (f"needs {round(pixel * 1024**2)} bytes", f"has {64 << 20}", "ask for a smaller size"):
            assert words in refused.value.message
    assert pictures(studio.client.images.generate(model="painter", prompt="x", size="512x512"))
    replicas = studio.get("/v1/replicas")["data"]
    assert isinstance(replicas, list)
    assert [one["memory_room_bytes"] for one in replicas] == [64 << 20, None]
    assert {(one["warm"], one["checkpoint_save_ms"]) for one in replicas} == {(None, None)}  # of a virtual device

    def held() -> dict[str, int]:
        accounts = studio.get("/v1/ledger")["accounts"]
        assert isinstance(accounts, list)
        return {one["name"]: one["used"] for one in accounts if one["name"].endswith("bytes")}

    until(lambda: not any(held().values()), lambda: f"bytes are held: {held()}")
    assert {"device/rep-0/bytes", "replica/rep-0/checkpoint_bytes"} <= set(held())


def test_a_client_that_leaves_frees_the_device(studio: Studio) -> None:
    # vllm-omni#1347: no abort on disconnect; SPEC H2
    address = urlsplit(studio.server.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    body = json.dumps({"model": "painter", "prompt": "x", "num_inference_steps": LONG})
    headers = {"content-type": "application/json", "x-request-id": "leaves"}
    connection.request("POST", "/v1/images/generations", body, headers)
    until(lambda: "gateway/in_flight" in studio.server.held(), "it runs")
    connection.close()
    until(lambda: not studio.server.held(), lambda: f"nothing is held: {studio.server.held()}")
    evidence = studio.get("/v1/requests/leaves/evidence")
    assert evidence["outcome"] == "cancelled"
    assert studio.steps_done("leaves") < LONG // 2


def test_a_video_from_its_order_to_its_end(studio: Studio) -> None:
    # SPEC H1, H2, H4
    video = studio.client.videos.create_and_poll(model="filmer", prompt="a red circle", seconds="4", size="64x64")
    assert (video.status, video.progress, video.seconds, video.size) == ("completed", 100, "4", "64x64")
    film = studio.client.videos.download_content(video.id)
    assert film.read()[4:8] == b"ftyp"
    assert film.response.headers["content-type"] == "video/mp4"
    assert studio.client.videos.download_content(video.id, variant="thumbnail").read()
    status, preview = studio.server.call(f"/v1/videos/{video.id}/content?variant=preview&index=1")
    assert (status, preview[:4]) == (200, b"\x89PNG")
    assert studio.steps_done(video.id) == 20
    evidence = studio.get(f"/v1/requests/{video.id}/evidence")
    segments = evidence["segments"]
    assert isinstance(segments, dict)
    assert segments["upload"] > 0  # SPEC I2
    assert sum(segments.values()) == pytest.approx(evidence["e2e_ms"], rel=0.01)
    assert segments["denoise"] > 0.9 * 20 * 20  # ms
    gone = studio.client.videos.delete(video.id)
    assert (gone.deleted, gone.object) == (True, "video.deleted")
    with pytest.raises(openai.NotFoundError):
        studio.client.videos.retrieve(video.id)


def test_a_waiting_video_is_queued_until_a_worker_has_done_a_step(studio: Studio) -> None:
    # vllm-omni#6403: in_progress while it waited
    first = studio.film(extra={"num_inference_steps": 100})
    second = studio.film()
    studio.once(first.id, "in_progress")
    waiting = studio.client.videos.retrieve(second.id)
    assert (waiting.status, waiting.progress) == ("queued", 0)
    seen = []
    until(lambda: seen.append(studio.client.videos.retrieve(first.id)) or seen[-1].status == "completed", "done")
    progress = [one.progress for one in seen]
    assert progress == sorted(progress)  # ComfyUI_frontend#3856: it lives in the row
    assert any(0 < one < 100 for one in progress)
    studio.once(second.id, "completed")


def test_cancel_stops_one_within_a_step_and_no_other(studio: Studio) -> None:
    # SPEC H2; vllm-omni#6403, InvokeAI#6049: the device went on, or another job was stopped
    first, second = (studio.film(extra={"num_inference_steps": LONG}) for _ in range(2))
    studio.once(first.id, "in_progress")
    assert studio.server.call(f"/v1/videos/{second.id}/cancel", {})[0] == 200
    assert studio.client.videos.retrieve(first.id).status == "in_progress"
    assert studio.server.call(f"/v1/videos/{first.id}/cancel", {})[0] == 200
    for job in (first.id, second.id):
        view = studio.once(job, "failed")
        assert view.error is not None
        assert view.error.code == "cancelled"
    third = studio.film()  # its turn comes at once
    studio.once(third.id, "in_progress", "completed")
    assert studio.steps_done(first.id) < LONG // 2
    studio.once(third.id, "completed")
    until(lambda: not studio.server.held(), lambda: f"nothing is held: {studio.server.held()}")


def test_the_list_is_paged_by_the_client(studio: Studio) -> None:
    # SPEC H1
    made = [studio.film(extra={"seed": seed}).id for seed in range(3)]
    listed = [video.id for video in studio.client.videos.list(limit=2)]
    assert listed[:3] == made[::-1]
    assert [video.id for video in studio.client.videos.list(limit=2, order="asc")] == listed[::-1]
    for job in made:
        studio.client.videos.delete(job)
    assert not set(made) & {video.id for video in studio.client.videos.list()}


def test_a_remix_has_other_words_and_else_the_same(studio: Studio) -> None:
    video = studio.once(studio.film(extra={"seed": 5, "guidance_scale": 1.5}).id, "completed")
    remix = studio.client.videos.remix(video.id, prompt="a blue circle")
    assert remix.remixed_from_video_id == video.id
    assert (remix.model_extra or {})["parameters"] == (video.model_extra or {})["parameters"]
    studio.once(remix.id, "completed")
    films = [studio.client.videos.download_content(one).read() for one in (video.id, remix.id)]
    assert films[0] != films[1]


def test_one_key_is_one_video_and_one_picture(studio: Studio) -> None:
    # SPEC H1
    headers = {"idempotency-key": "film-1"}
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: studio.film(headers=headers).id, range(2))
    assert first == second
    with pytest.raises(openai.ConflictError):
        studio.film(headers=headers, prompt="another")

    def draw(prompt: str = "x") -> openai.types.ImagesResponse:
        key = {"idempotency-key": "picture-1"}
        return studio.client.images.generate(model="painter", prompt=prompt, extra_headers=key)

    with ThreadPoolExecutor(2) as pool:
        a, b = pool.map(lambda _: draw(), range(2))
    assert a.data == b.data
    with pytest.raises(openai.ConflictError):
        draw("y")


def test_pictures_as_a_job_go_on_without_their_client(studio: Studio) -> None:
    # SPEC H2; koboldcpp#1531: a disconnect lost a picture that the user wanted
    body = {"model": "painter", "prompt": "x", "n": 2, "seed": 3, "num_inference_steps": 100}
    address = urlsplit(studio.server.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    headers = {"content-type": "application/json", "prefer": "respond-async"}
    connection.request("POST", "/v1/images/generations", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 202
    job = json.loads(response.read())["id"]
    connection.close()
    until(lambda: studio.get(f"/v1/images/{job}")["status"] == "completed", "the pictures are made")
    data = studio.get(f"/v1/images/{job}")["data"]
    alone = studio.client.images.generate(
        model="painter", prompt="x", extra_body={"seed": 4, "num_inference_steps": 100}
    )
    assert isinstance(data, list)
    assert [one["seed"] for one in data] == [3, 4]
    assert alone.data is not None
    assert data[1]["b64_json"] == alone.data[0].b64_json


def test_usage_counts_pictures_frames_and_device_time(studio: Studio) -> None:
    # SPEC H6
    before = {row["model"]: row for row in studio.get("/v1/usage")["data"]}  # type: ignore[attr-defined]  # JSON
    studio.client.images.generate(model="painter", prompt="x", n=3)
    studio.once(studio.film(seconds="8").id, "completed")

    def grown(model: str, what: str) -> float:
        rows = {row["model"]: row for row in studio.get("/v1/usage")["data"]}  # type: ignore[attr-defined]  # JSON
        return rows[model][what] - before.get(model, {}).get(what, 0)

    assert grown("painter", "images") == 3
    until(lambda: grown("filmer", "frames") == 32, "a video of 8 s at 4 fps is metered")
    assert grown("filmer", "gpu_seconds") > 0.3


def test_what_a_video_took_is_what_was_predicted(studio: Studio) -> None:
    # SPEC F2
    body = {"model": "filmer", "prompt": "x", "num_inference_steps": 50}
    asked = {"endpoint": "/v1/videos", "body": body}
    predicted = json.loads(studio.server.call("/v1/estimates", asked)[1])
    video = studio.once(studio.film(extra={"num_inference_steps": 50}).id, "completed")
    took = (video.model_extra or {})["gpu_seconds"]
    assert 0.5 < predicted["gpu_seconds"] / took < 2  # the check's own bounds
