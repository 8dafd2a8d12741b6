"""Progress by believed time (3DAIGC-API#4: wants progress per stage)."""

import asyncio
import json

from msgspec.structs import replace
from tests.unit.adapters.gateway.pictures.fakes import Studio

from headway.adapters.gateway.job_ports import JobView
from headway.adapters.gateway.pictures.progress import percent, progress_of
from headway.adapters.gateway.ports import PictureEstimate
from headway.core.ids import ModelId, TenantId

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
