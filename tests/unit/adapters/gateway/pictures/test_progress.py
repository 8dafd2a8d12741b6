"""Progress by believed time (3DAIGC-API#4: wants progress per stage)."""

import asyncio
import json

from msgspec.structs import replace
from tests.unit.adapters.gateway.pictures.fakes import Studio

from headway.adapters.gateway.job_ports import JobView
from headway.adapters.gateway.pictures.progress import percent, progress_of
from headway.adapters.gateway.ports import PictureEstimate
from headway.core.errors import CapacityError
from headway.core.ids import ModelId, TenantId
from headway.core.request import DiffusionRequest

STAGES = {"text_encode": 1.0, "vae_encode": 1.0, "denoise": 4.0, "vae_decode": 4.0}  # seconds


def test_each_stage_counts_by_its_share_of_the_time() -> None:  # 3DAIGC-API#4
    assert [percent(STAGES, done, 4) for done in range(5)] == [0, 29, 39, 49, 99]  # a last step is decoded at once


def test_progress_only_rises_and_is_whole_only_at_the_end() -> None:  # 3DAIGC-API#4
    for stages in (STAGES, {}, {"denoise": 0.0}, {"denoise": 3.0}, {"vae_decode": 9.0, "denoise": 1e-9}):
        for steps in (1, 3, 50):
            seen = [percent(stages, done, steps) for done in range(steps + 1)]
            assert seen == sorted(seen)
            assert (seen[0], max(seen)) == (0, 99)
    view = JobView("job-1", "video", TenantId("t"), ModelId("m"), "upload", "in_progress", 99, 0, done=4, steps=4)
    assert progress_of(view, STAGES) == 99
    assert progress_of(replace(view, status="completed", progress=100), STAGES) == 100


def test_without_an_estimate_steps_count_alone() -> None:
    view = JobView("job-1", "video", TenantId("t"), ModelId("m"), "denoise", "in_progress", 50, 0)
    assert progress_of(view, STAGES) == 50  # a table that does not tell steps
    assert progress_of(replace(view, done=1, steps=4), {}) == 24


def test_jobs_and_streams_tell_it() -> None:  # 3DAIGC-API#4
    async def test() -> None:
        studio = Studio()
        studio.painter.predicted = PictureEstimate(STAGES, 10.0, 0.0, "admit")
        job = (await studio.film()).json()["id"]
        studio.jobs.change(job, status="in_progress", done=1, steps=4)
        assert (await studio.get(f"/v1/videos/{job}")).json()["progress"] == percent(STAGES, 1, 4)
        image = (await studio.draw({"prefer": "respond-async"})).json()["id"]
        studio.jobs.change(image, status="in_progress", done=3, steps=4)
        assert (await studio.get(f"/v1/images/{image}")).json()["progress"] == percent(STAGES, 3, 4)
        events = [json.loads(event) for event in (await studio.draw(stream=True, partial_images=2)).events]
        told = [event["progress"] for event in events if event["type"].endswith("partial_image")]
        assert told == sorted(told)
        assert len(told) == 2
        assert 0 < told[0] < 99

    asyncio.run(test())


FEW = {"denoise": 2.0, "vae_decode": 8.0}


# A degraded job kept the steps and the weights of what was asked for.
def test_a_degraded_job_is_as_far_as_what_runs() -> None:  # SPEC F5
    async def test() -> None:
        studio = Studio()
        studio.painter.predicted = PictureEstimate(STAGES, 10.0, 0.0, "admit")
        job = (await studio.film()).json()["id"]
        asked = json.loads((await studio.jobs.get(job, None)).echo)["parameters"]["num_inference_steps"]
        studio.jobs.change(job, status="in_progress", done=1, steps=asked, degraded={"steps": asked // 2})
        half = {**STAGES, "denoise": STAGES["denoise"] * (asked // 2) / asked}
        told = (await studio.get(f"/v1/videos/{job}")).json()["progress"]
        assert told == percent(half, 1, asked // 2) != percent(STAGES, 1, asked)

    asyncio.run(test())


def test_a_job_of_another_model_has_its_weights_or_at_least_its_steps() -> None:  # SPEC F5
    seen = []

    async def test() -> None:
        studio = Studio()
        studio.painter.predicted = PictureEstimate(STAGES, 10.0, 0.0, "admit")
        image = (await studio.draw({"prefer": "respond-async"})).json()["id"]
        asked = json.loads((await studio.jobs.get(image, None)).echo)["parameters"]["num_inference_steps"]

        def foresee(request: DiffusionRequest) -> PictureEstimate:
            seen.append((request.model, request.steps, request.height, request.n))
            return PictureEstimate(FEW, 10.0, 0.0, "admit")

        studio.painter.foresee = foresee
        studio.jobs.change(image, status="in_progress", done=1, steps=asked, degraded={"model": "fast", "steps": 4})
        assert (await studio.get(f"/v1/images/{image}")).json()["progress"] == percent(FEW, 1, 4)
        assert seen == [("fast", 4, 64, 1)]

        def gone(request: DiffusionRequest) -> PictureEstimate:
            raise CapacityError("no replica", status=503, code="no_replica")

        studio.painter.foresee = gone
        told = (await studio.get(f"/v1/images/{image}")).json()["progress"]
        assert told == percent({**STAGES, "denoise": STAGES["denoise"] * 4 / asked}, 1, 4)

    asyncio.run(test())


def test_the_weights_of_a_job_are_those_of_all_that_was_asked_for() -> None:
    async def test() -> None:
        studio = Studio()

        def foresee(request: DiffusionRequest) -> PictureEstimate:
            if request.allow_degrade:  # an estimate is of what admission would leave now
                return PictureEstimate(FEW, 2.0, 0.0, "degrade", {"steps": 2})
            return PictureEstimate(STAGES, 10.0, 0.0, "reject")

        studio.painter.foresee = foresee
        made = await studio.draw({"prefer": "respond-async"}, allow_degrade=["steps"])
        view = await studio.jobs.get(made.json()["id"], None)
        assert json.loads(view.echo)["stages"] == STAGES

    asyncio.run(test())


def test_a_stream_with_fewer_steps_than_foreseen_counts_those() -> None:  # SPEC F5
    async def test() -> None:
        studio = Studio()
        studio.painter.predicted = PictureEstimate(STAGES, 10.0, 0.0, "degrade", {"steps": 400})
        events = [json.loads(event) for event in (await studio.draw(stream=True, partial_images=1)).events]
        (told,) = [event["progress"] for event in events if event["type"].endswith("partial_image")]
        studio.painter.predicted = PictureEstimate(STAGES, 10.0, 0.0, "admit")
        events = [json.loads(event) for event in (await studio.draw(stream=True, partial_images=1)).events]
        (whole,) = [event["progress"] for event in events if event["type"].endswith("partial_image")]
        assert told < whole  # 400 steps were believed to take what a few do: the decode is most of it

    asyncio.run(test())
