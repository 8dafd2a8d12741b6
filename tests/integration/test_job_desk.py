"""The job desk on real tables and objects, before a front that paints in this process."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import openai
import pytest
from aiohttp import web
from sqlalchemy import create_engine
from tests.integration.job_rig import MODEL, SECRET, TENANT, Rig, desk, settings
from tests.integration.test_job_table import damage
from tests.postgres_server import Server, postgres, server

from headway.adapters.gateway.job_ports import Held, IdempotencyKey, JobQuery, KeptPicture, UsageQuery
from headway.adapters.jobs.usage import UsageTable
from headway.adapters.storage.settings import StorageSettings
from headway.core.effects import ErrorOut
from headway.core.errors import CapacityError, ConfigError, RequestError
from headway.core.evidence import EvidenceRecord, FrontMarks, WorkerMarks, evidence_record
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest, Request
from headway.core.units import NS_PER_S, Ns
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser
from headway.live.clock import Clock
from headway.live.jobs_settings import JobSettings, check_jobs, objects_folder
from headway.live.jobs_usage import GATHER_S
from headway.live.streams import Stream
from headway.sched.jobs.params import CheckpointParams


def on_desk(folder: Path, test: Callable[[Rig], Awaitable[None]], given: JobSettings | None = None) -> None:
    async def main() -> None:
        async with desk(folder, given) as rig:
            await test(rig)

    asyncio.run(main())


def painted(request: DiffusionRequest) -> bytes:
    """Its first output, in one go."""
    row = DenoiseRow(1, 0, request.steps, request.steps, request.n)
    plan = DenoisePlan(1, 0, (row,), request.height, request.width, new=(NewDenoise(1, request),))
    return SyntheticDenoiser(DenoiserParams(0, 0.0)).run(plan).made[0].made[0].body


def test_a_video_is_made_kept_previewed_and_metered(tmp_path: Path) -> None:
    # SPEC H2, H4, H6
    async def test(rig: Rig) -> None:
        new = rig.new("video_1")
        made = await rig.jobs.create(new)
        assert (made.is_replay, made.job.status, made.job.progress) == (False, "queued", 0)
        assert made.job.eta_s == pytest.approx(10.0)
        rig.desk.replicas = lambda _: 0  # the only one is drained
        assert (await rig.view("video_1")).eta_s is None
        view = await rig.over("video_1")
        assert (view.status, view.progress, view.gpu_seconds, view.attempts) == ("completed", 100, 2.0, 1)
        assert [output.kind for output in view.outputs] == ["preview", "spritesheet", "thumbnail", "video"]
        video = await rig.jobs.content("video_1", TENANT, "video")
        assert video is not None
        assert (video.media_type, video.body) == ("video/mp4", painted(new.request))
        for kind in ("thumbnail", "spritesheet"):
            body = await rig.jobs.content("video_1", None, "thumbnail" if kind == "thumbnail" else "spritesheet")
            assert body is not None
            assert (body.media_type, body.body[8:12]) == ("image/webp", b"WEBP")
        assert await rig.jobs.content("video_1", TenantId("other"), "video") is None
        await rig.until(_is(lambda: rig.desk.states() == [("completed", 1)]), "it is counted")
        (used,) = await rig.durable.meters.usage(UsageQuery(TENANT, "2000-01-01", "2999-01-01"))
        assert (used.model, used.gpu_seconds, used.frames, used.images, used.requests) == (MODEL, 2.0, 4, 0, 1)

    on_desk(tmp_path, test)


def test_what_admission_took_away_is_told_with_the_job(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.jobs.create(rig.new("video_1", allow_degrade=("steps",)))
        await rig.jobs.create(rig.new("video_2"))
        assert [(await rig.over(job)).degraded for job in ("video_1", "video_2")] == [
            {"model": "wan-small", "steps": 8},
            {},
        ]
        used = await rig.durable.meters.usage(UsageQuery(TENANT, "2000-01-01", "2999-01-01"))
        assert [(one.model, one.requests) for one in used] == [(MODEL, 1), ("wan-small", 1)]  # SPEC H6: what ran
        view = await rig.view("video_1")
        assert (view.model, view.ran) == (MODEL, "wan-small")

    on_desk(tmp_path, test)


def test_a_job_goes_on_with_the_steps_that_its_checkpoint_was_made_by(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.painter.hold(6)
        new = rig.new("video_1", allow_degrade=("steps",))
        await rig.jobs.create(new)
        await rig.at("video_1", 60)
        await rig.jobs.pause("video_1", TENANT)
        await rig.until(_is(lambda: not rig.painter.open), "it stopped")
        rig.painter.hold(None)
        await rig.jobs.resume("video_1", TENANT)
        view = await rig.over("video_1")
        again = rig.painter.submitted[-1]
        assert (again.model, again.steps, again.allow_degrade, again.begun > 0) == ("wan-small", 8, (), True)
        assert view.degraded == {"model": "wan-small", "steps": 8}
        video = await rig.jobs.content("video_1", TENANT, "video")
        assert video is not None
        assert video.body == painted(msgspec.structs.replace(new.request, model="wan-small", steps=8))

    on_desk(tmp_path, test)


def test_pictures_of_one_job_are_each_reproducible_alone(tmp_path: Path) -> None:
    """koboldcpp#1107: picture k has seed + k, and its row says so."""

    async def test(rig: Rig) -> None:
        await rig.jobs.create(rig.new("img_1", "image", n=3))
        view = await rig.over("img_1")
        pictures = [output for output in view.outputs if output.kind == "picture"]
        assert [(output.index, output.seed, output.media_type) for output in pictures] == [
            (0, 7, "image/png"),
            (1, 8, "image/png"),
            (2, 9, "image/png"),
        ]
        assert await rig.jobs.content("img_1", TENANT, "picture", 3) is None

    on_desk(tmp_path, test)


def test_cancelling_one_job_stops_it_and_leaves_the_others(tmp_path: Path) -> None:
    """vllm-omni#6403, vllm-omni#1347, InvokeAI#6089."""

    async def test(rig: Rig) -> None:
        rig.painter.hold(3)
        for name in ("video_1", "video_2"):
            await rig.jobs.create(rig.new(name))
            await rig.at(name, 30)
        gone = await rig.jobs.cancel("video_1", TENANT)
        assert gone is not None
        assert (gone.status, gone.error and gone.error.code) == ("failed", "cancelled")
        await rig.until(_is(lambda: list(rig.painter.open) == ["video_2"]), "only the other one runs")
        assert rig.painter.cancelled == ["video_1"]
        rig.painter.hold(None)
        assert (await rig.over("video_2")).status == "completed"
        assert (await rig.view("video_1")).attempts == 1
        assert await rig.durable.meters.usage(UsageQuery(TENANT, "2000-01-01", "2999-01-01")) != []

    on_desk(tmp_path, test)


def _is(claim: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return claim()

    return found


def test_a_paused_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """ComfyUI#1032."""

    async def test(rig: Rig) -> None:
        rig.painter.hold(7)
        new = rig.new("video_1")
        await rig.jobs.create(new)
        await rig.at("video_1", 70)
        held = await rig.jobs.pause("video_1", TENANT)
        assert held is not None
        assert (held.is_paused, held.status) == (True, "in_progress")
        await rig.until(_is(lambda: not rig.painter.open), "it stopped")
        assert (await rig.view("video_1")).state == "preempted"
        rig.painter.hold(None)
        await rig.jobs.create(rig.new("video_2"))
        await rig.over("video_2")
        assert (await rig.view("video_1")).is_paused
        await rig.jobs.resume("video_1", TENANT)
        await rig.over("video_1")
        again = [request for request in rig.painter.submitted if request.id == "video_1"]
        assert [request.begun for request in again] == [0, 8]  # at its next step boundary
        assert [bool(request.checkpoint) for request in again] == [False, True]
        video = await rig.jobs.content("video_1", TENANT, "video")
        assert video is not None
        assert video.body == painted(new.request)

    on_desk(tmp_path, test)


# SPEC H3
def test_a_job_waits_for_an_object_store_that_is_away_and_has_failed_nothing(tmp_path: Path) -> None:
    """Its checkpoint cannot be read, so nothing is begun: with one attempt only it is completed all the same."""

    async def test(rig: Rig) -> None:
        rig.painter.hold(7)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 70)
        await rig.jobs.pause("video_1", TENANT)
        await rig.until(_is(lambda: not rig.painter.open), "it stopped")
        rig.painter.hold(None)
        get, asked = rig.desk.store.get, []

        async def away(key: str) -> bytes | None:
            asked.append(key)
            if len(asked) <= 2:
                raise CapacityError("the object store does not answer", status=503)
            return await get(key)

        rig.desk.store.get = away  # type: ignore[method-assign]  # gone for a while
        await rig.jobs.resume("video_1", TENANT)
        view = await rig.over("video_1")
        assert (view.status, view.attempts, view.restarts) == ("completed", 4, 0)

    on_desk(tmp_path, test, settings(tmp_path, attempts_max=1))


# SPEC H3, H6
def test_a_job_whose_last_attempt_still_ends_its_step_is_not_submitted_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front takes an id once at a time, and a step of a large video is long: the job goes back into the line,
    which counts as no failure, and is begun here once the step is over."""
    monkeypatch.setattr("headway.live.jobs_spent._LET_GO_S", 0.01)

    async def test(rig: Rig) -> None:
        records: list[EvidenceRecord] = []
        observe, rig.painter.record = rig.painter.record, records.append  # its replica says nothing yet
        rig.painter.hold(7)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 70)
        await rig.jobs.pause("video_1", TENANT)
        await rig.until(_is(lambda: bool(records)), "it stopped")
        rig.painter.hold(None)
        await rig.jobs.resume("video_1", TENANT)

        async def tried() -> bool:
            return (await rig.view("video_1")).attempts >= 3

        await rig.until(tried, "it is tried again")
        assert len(rig.painter.submitted) == 1
        rig.painter.record = observe
        observe(records[0])
        assert (await rig.over("video_1")).status == "completed"
        assert len(rig.painter.submitted) == 2

    on_desk(tmp_path, test, settings(tmp_path, attempts_max=1))


def _spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _turn(path: Path) -> None:
    """One bit of what it holds; it still reads well."""
    body = bytearray(path.read_bytes())
    body[-3] ^= 1
    path.write_bytes(body)


def _swap(path: Path) -> None:
    request = DiffusionRequest(RequestId("video_1"), TENANT, MODEL, 10, 32, 32, 8, 0)  # another seed
    row = DenoiseRow(1, 0, 3, 10, 1)
    plan = DenoisePlan(1, 0, (row,), 32, 32, new=(NewDenoise(1, request),), save=(1,))
    path.write_bytes(SyntheticDenoiser(DenoiserParams(0, 0.0)).run(plan).made[0].made[0].body)


@pytest.mark.parametrize("break_it", [_spoil, _swap, _turn, Path.unlink], ids=["cut", "other steps", "a bit", "gone"])
def test_a_job_whose_checkpoint_cannot_be_used_begins_anew_and_says_so(
    tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    # SPEC H3
    async def test(rig: Rig) -> None:
        rig.painter.hold(7)
        new = rig.new("video_1")
        await rig.jobs.create(new)
        await rig.at("video_1", 70)
        await rig.jobs.pause("video_1", TENANT)
        await rig.until(_is(lambda: not rig.painter.open), "it stopped")
        for name in rig.objects():
            if "checkpoint" in name:
                break_it(rig.folder / "objects" / name)
        rig.painter.hold(None)
        await rig.jobs.resume("video_1", TENANT)
        view = await rig.over("video_1")
        assert (view.status, view.restarts) == ("completed", 1)
        assert view.restart_reason is not None
        assert view.restart_reason.startswith("bad_checkpoint: ")
        assert rig.painter.submitted[-1].begun == 0
        video = await rig.jobs.content("video_1", TENANT, "video")
        assert video is not None
        assert video.body == painted(new.request)
        (used,) = await rig.durable.meters.usage(UsageQuery(TENANT, "2000-01-01", "2999-01-01"))
        assert (used.gpu_seconds, used.frames, used.requests) == (2.0, 4, 1)  # of the attempt that made it

    on_desk(tmp_path, test)


def test_an_output_that_is_damaged_is_told_and_not_given_out(tmp_path: Path) -> None:
    # SPEC H4
    async def test(rig: Rig) -> None:
        await rig.jobs.create(rig.new("video_1"))
        await rig.over("video_1")
        (made,) = [name for name in rig.objects() if "/video-0." in name]
        _spoil(rig.folder / "objects" / made)
        with pytest.raises(RequestError) as caught:
            await rig.jobs.content("video_1", TENANT, "video")
        assert (caught.value.status, caught.value.code) == (500, "content_damaged")

    on_desk(tmp_path, test)


def test_a_process_that_ends_saves_its_jobs_and_hands_them_to_the_next_one_at_once(tmp_path: Path) -> None:
    # SPEC H3: no step that was done is done again, whatever the interval of its checkpoints
    rare = msgspec.structs.replace(settings(tmp_path), checkpoint=CheckpointParams(failure_every_s=1e6))
    requests: dict[str, DiffusionRequest] = {}

    async def first(rig: Rig) -> None:
        rig.painter.hold(7)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 70)
        (requests["first"],) = rig.painter.submitted
        assert requests["first"].save_every == 0

    async def second(rig: Rig) -> None:
        view = await rig.over("video_1")
        assert (view.status, view.attempts) == ("completed", 2)
        assert [request.begun for request in rig.painter.submitted] == [8]  # at its next step boundary
        found = await rig.jobs.content("video_1", TENANT, "video")
        assert found is not None
        assert found.body == painted(requests["first"])
        is_clean = _is(lambda: not [name for name in rig.objects() if "checkpoint" in name])
        await rig.until(is_clean, "its checkpoints are gone")

    on_desk(tmp_path, first, rare)
    on_desk(tmp_path, second, rare)


def test_a_refusal_is_waited_out_and_a_fault_of_its_own_ends_a_job(tmp_path: Path) -> None:
    """vllm-omni#2327: out of memory fails the job, and the next one passes."""

    async def test(rig: Rig) -> None:
        rig.painter.ends = [ErrorOut(429, "queue_full", "full", 1), ErrorOut(503, "no_replica", "none")]
        await rig.jobs.create(rig.new("video_1"))
        view = await rig.over("video_1")
        assert (view.status, view.attempts) == ("completed", 3)
        rig.painter.ends = [ErrorOut(500, "out_of_memory", "720p does not fit")]
        await rig.jobs.create(rig.new("video_2"))
        view = await rig.over("video_2")
        assert view.error is not None
        assert (view.status, view.error.code, view.error.message) == ("failed", "out_of_memory", "720p does not fit")
        retried = await rig.jobs.retry("video_2", TENANT)
        assert retried is not None
        assert retried.status == "queued"
        assert (await rig.over("video_2")).status == "completed"

    on_desk(tmp_path, test)


def test_a_job_that_breaks_every_attempt_is_lost_with_its_story(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.painter.ends = [ErrorOut(502, "engine_lost", "the worker died")] * 3
        await rig.jobs.create(rig.new("video_1"))
        view = await rig.over("video_1")
        assert view.error is not None
        assert (view.state, view.status, view.error.code, view.attempts) == ("lost", "failed", "lost", 3)
        assert "engine_lost: the worker died" in view.error.message

    on_desk(tmp_path, test, settings(tmp_path, attempts_max=3))


def test_a_bug_in_an_attempt_costs_that_attempt_and_no_more(tmp_path: Path) -> None:
    """Its row is not kept for ever by the heartbeats of nobody."""

    async def test(rig: Rig) -> None:
        submit, calls = rig.painter.submit, []

        def once(request: Request, received_ns: Ns, body_ns: Ns) -> Stream:
            calls.append(request.id)
            if len(calls) == 1:
                raise ZeroDivisionError
            return submit(request, received_ns, body_ns)

        rig.painter.submit = once  # type: ignore[method-assign]  # breaks the first time
        await rig.jobs.create(rig.new("video_1"))
        view = await rig.over("video_1")
        assert (view.status, view.attempts, len(calls)) == ("completed", 2, 2)

    on_desk(tmp_path, test)


def test_a_deleted_job_stops_and_leaves_no_object(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.jobs.create(rig.new("video_1"))
        await rig.over("video_1")
        rig.painter.hold(5)
        await rig.jobs.create(rig.new("video_2"))
        await rig.at("video_2", 50)
        assert not await rig.jobs.delete("video_1", TenantId("other"))
        assert await rig.jobs.delete("video_1", TENANT)
        assert await rig.jobs.delete("video_2", TENANT)
        assert not await rig.jobs.delete("video_2", TENANT)
        await rig.until(_is(lambda: not rig.painter.open), "it stopped")
        assert await rig.jobs.get("video_1", None) is None
        assert rig.objects() == []

    on_desk(tmp_path, test)


def test_what_is_over_disappears_with_its_objects_when_its_time_has_passed(tmp_path: Path) -> None:
    # SPEC H4
    async def test(rig: Rig) -> None:
        await rig.jobs.create(rig.new("video_1"))

        async def is_gone() -> bool:
            return await rig.jobs.get("video_1", None) is None and bool(rig.painter.submitted)

        await rig.until(is_gone, "it expired")
        assert rig.objects() == []

    on_desk(tmp_path, test, settings(tmp_path, keep_hours=0.3 / 3600, sweep_s=0.1))


def test_a_webhook_tells_of_the_end_until_it_is_taken(tmp_path: Path) -> None:
    # SPEC H2
    async def test(rig: Rig) -> None:
        got: list[tuple[dict[str, str], str]] = []

        async def take(request: web.Request) -> web.Response:
            got.append(({name.lower(): value for name, value in request.headers.items()}, await request.text()))
            return web.Response(status=503 if len(got) < 3 else 200)

        app = web.Application()
        app.router.add_post("/hook", take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        await rig.jobs.create(rig.new("video_1", webhook_url=url))
        await rig.until(_is(lambda: len(got) == 3), "told three times")
        client = openai.OpenAI(api_key="k", webhook_secret=SECRET)
        events = [client.webhooks.unwrap(body, headers) for headers, body in got]
        assert {(event.type, event.id) for event in events} == {("video.completed", json.loads(got[0][1])["id"])}
        assert json.loads(got[0][1])["data"] == {"id": "video_1"}
        await rig.until(_is(lambda: dict(rig.desk.webhooks())["delivered"] == 1), "counted")
        assert rig.desk.webhooks() == (("delivered", 1), ("retried", 2), ("given_up", 0))
        with pytest.raises(RequestError, match="not a public address"):
            await rig.jobs.create(rig.new("video_2", webhook_url="http://10.0.0.1/"))
        await runner.cleanup()

    on_desk(tmp_path, test)


def test_a_key_makes_one_job_however_often_it_is_sent(tmp_path: Path) -> None:
    # SPEC F7
    async def test(rig: Rig) -> None:
        key = IdempotencyKey("k", b"body")
        made = await asyncio.gather(*(rig.jobs.create(rig.new(f"video_{n}", key=key)) for n in range(5)))
        assert {one.job.id for one in made} == {"video_0"}
        assert [one.is_replay for one in made] == [False, True, True, True, True]
        page = await rig.jobs.list(JobQuery(TENANT, "video"))
        assert [view.id for view in page.jobs] == ["video_0"]

    on_desk(tmp_path, test)


def test_a_second_request_under_a_key_waits_for_the_answer_of_the_first(tmp_path: Path) -> None:
    # SPEC F7
    async def test(rig: Rig) -> None:
        answers, key = rig.durable.answers, IdempotencyKey("k", b"body")
        assert await answers.begin(TENANT, key) == Held()
        second = asyncio.ensure_future(answers.begin(TENANT, key))
        third = asyncio.ensure_future(answers.begin(TENANT, key))
        await answers.abandon(TENANT, key)
        done, waiting = await asyncio.wait({second, third}, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [Held()]
        await answers.finish(TENANT, key, b"answer")
        assert await waiting.pop() == Held(b"answer")
        assert await answers.begin(TENANT, key) == Held(b"answer")

    on_desk(tmp_path, test)


def test_a_client_that_leaves_while_its_key_is_taken_leaves_it_free(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        answers, key = rig.durable.answers, IdempotencyKey("k", b"body")
        left = asyncio.ensure_future(answers.begin(TENANT, key))
        await asyncio.sleep(0)
        left.cancel()
        assert await asyncio.wait_for(answers.begin(TENANT, key), 10) == Held()

    on_desk(tmp_path, test)


def test_kept_pictures_are_found_like_those_of_jobs_and_metered_with_them(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        kept = await rig.durable.pictures.keep(rig.new("img_1", "image"), [KeptPicture(0, "image/png", b"png", 7)], 1.5)
        assert (kept.status, kept.gpu_seconds) == ("completed", 1.5)
        body = await rig.jobs.content("img_1", TENANT, "picture")
        assert body is not None
        assert (body.media_type, body.body) == ("image/png", b"png")
        (used,) = await rig.durable.meters.usage(UsageQuery(None, "2000-01-01", "2999-01-01"))
        assert (used.gpu_seconds, used.images) == (1.5, 1)

    on_desk(tmp_path, test)


def test_a_result_that_cannot_be_stored_is_made_again_and_never_called_completed(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        blocked = tmp_path / "objects" / "acme"
        blocked.write_text("a file where the tenant's folder should be")
        await rig.jobs.create(rig.new("video_1"))
        await rig.until(_is(lambda: len(rig.painter.submitted) >= 2), "it is tried again")
        assert (await rig.view("video_1")).status != "completed"
        blocked.unlink()
        assert (await rig.over("video_1")).status == "completed"

    on_desk(tmp_path, test)


def test_two_gateways_on_one_postgresql_share_the_jobs_and_take_over_from_each_other(tmp_path: Path) -> None:
    """The one that dies says nothing: its leases end, and the other goes on from the checkpoints."""

    # SPEC H3
    async def test(url: str) -> None:
        shared = settings(tmp_path, url=url, running_max=2)
        store = StorageSettings(str(tmp_path / "objects"))
        async with desk(tmp_path, shared, store, 0.0) as dying:
            dying.painter.hold(7)
            for name in ("video_1", "video_2"):
                await dying.jobs.create(dying.new(name))
                await dying.at(name, 70)
            dying.desk.feed = lambda _: None  # type: ignore[method-assign]  # it is dead: no heartbeat, no hand-over
            async with desk(tmp_path, shared, store) as living:
                for name in ("video_1", "video_2"):
                    view = await living.over(name)
                    assert (view.status, view.attempts) == ("completed", 2)
                assert all(request.begun >= 6 for request in living.painter.submitted)  # how often is learned
                (used,) = await living.durable.meters.usage(UsageQuery(TENANT, "2000-01-01", "2999-01-01"))
                assert used.requests == 2

    with postgres() as url:
        asyncio.run(test(url))


@pytest.fixture(scope="module")
def shared_table() -> Iterator[str]:
    with postgres() as url:
        yield url


@contextlib.asynccontextmanager
async def two_gateways(folder: Path, url: str, **changes: object) -> AsyncIterator[tuple[Rig, Rig]]:
    """One that runs jobs, and one that finds none by itself: the table is all that they have in common."""
    shared, store = settings(folder, url=url, **changes), StorageSettings(str(folder / "objects"))
    asked = msgspec.structs.replace(shared, poll_s=60.0)
    async with desk(folder, shared, store) as one, desk(folder, asked, store) as other:
        yield one, other


@pytest.mark.parametrize("how", ["pause", "hold"])
def test_what_is_paused_at_one_gateway_is_saved_at_its_next_step_by_the_one_that_runs_it(
    tmp_path: Path, how: str, shared_table: str
) -> None:
    """ComfyUI#1032."""

    async def test() -> None:
        rare = CheckpointParams(failure_every_s=1e6)  # no checkpoint is due before the job is over
        async with two_gateways(tmp_path, shared_table, checkpoint=rare) as (runs, asked):
            for rig in (runs, asked):  # the other one may see it first
                rig.painter.hold(5)
            job = f"video_{how}"
            new = runs.new(job)
            await runs.jobs.create(new)
            await runs.at(job, 50)
            if how == "pause":
                await asked.jobs.pause(job, TENANT)
            else:
                await asked.durable.queue.hold(str(MODEL), "checkpoint")

            async def is_back() -> bool:
                return (await asked.view(job)).state == "preempted"

            await runs.until(is_back, "it is handed back")
            assert not runs.painter.open
            for rig in (runs, asked):
                rig.painter.hold(None)
            if how == "pause":
                await asked.jobs.resume(job, TENANT)
            else:
                await asked.durable.queue.release(None)
            assert (await runs.over(job)).status == "completed"
            submitted = [*runs.painter.submitted, *asked.painter.submitted]  # whoever claims it goes on with it
            assert sorted(request.begun for request in submitted) == [0, 6]
            video = await asked.jobs.content(job, TENANT, "video")
            assert video is not None
            assert video.body == painted(new.request)

    asyncio.run(test())


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_what_is_cancelled_at_one_gateway_stops_soon_at_the_one_that_runs_it(
    tmp_path: Path, how: str, shared_table: str
) -> None:
    """vllm-omni#6403. Not with its next heartbeat, which comes once a third of a lease at least."""

    async def test() -> None:
        async with two_gateways(tmp_path, shared_table, lease_s=1000.0) as (runs, asked):
            runs.painter.hold(5)
            job = f"video_{how}"
            await runs.jobs.create(runs.new(job))
            await runs.at(job, 50)
            await (asked.jobs.cancel if how == "cancel" else asked.jobs.delete)(job, TENANT)
            await runs.until(_is(lambda: not runs.painter.open), "it stopped")
            assert runs.painter.cancelled == [job]

    asyncio.run(test())


def _checkpoints(rig: Rig) -> set[int]:
    """Those that are there: the older ones go once the table was told of the newest."""
    return {int(name.rpartition("-")[2].partition(".")[0]) for name in rig.objects() if "/checkpoint-" in name}


def test_an_orderly_end_within_a_long_step_loses_that_step_and_nothing_else(tmp_path: Path) -> None:
    """SPEC H3: seven of its steps are done, the eighth outlasts the end, whatever the interval of its checkpoints."""
    rare = msgspec.structs.replace(settings(tmp_path), checkpoint=CheckpointParams(failure_every_s=1e6))
    requests: dict[str, DiffusionRequest] = {}

    async def first() -> None:
        async with desk(tmp_path, rare, grace_s=0.05) as ending:
            ending.painter.hold(7)
            await ending.jobs.create(ending.new("video_deep"))
            await ending.until(_is(lambda: _checkpoints(ending) == {6, 7}), "step 7 is saved, and told to the table")
            (requests["first"],) = ending.painter.submitted
            ending.painter.is_deep = True

    async def second(rig: Rig) -> None:
        view = await rig.over("video_deep")
        assert (view.status, view.attempts) == ("completed", 2)
        assert [request.begun for request in rig.painter.submitted] == [7]
        found = await rig.jobs.content("video_deep", TENANT, "video")
        assert found is not None
        assert found.body == painted(requests["first"])
        (used,) = await rig.durable.meters.usage(UsageQuery(TENANT, "2000-01-01", "2999-01-01"))
        assert (used.requests, used.frames) == (1, 4)

    asyncio.run(first())
    on_desk(tmp_path, second, rare)


def test_an_orderly_end_says_what_becomes_of_jobs_that_run(tmp_path: Path) -> None:  # SPEC H3
    async def test() -> None:
        async with desk(tmp_path) as rig:
            rig.painter.hold(7)
            await rig.jobs.create(rig.new("video_1"))
            await rig.at("video_1", 70)
            assert await rig.desk.stop(10.0) == "jobs that ran go on at the next start: video_1 from step 8"
            assert await rig.desk.stop(10.0) == ""

    asyncio.run(test())


def test_a_gateway_that_ends_within_a_long_step_gives_its_jobs_back_at_once(tmp_path: Path, shared_table: str) -> None:
    # SPEC H3: nobody waits for a lease, and what was saved before is not done again
    async def test() -> None:
        shared = settings(tmp_path, url=shared_table, lease_s=1000.0)
        store = StorageSettings(str(tmp_path / "objects"))
        async with desk(tmp_path, shared, store, 0.05) as ending:
            ending.painter.hold(7)
            new = ending.new("video_deep")
            await ending.jobs.create(new)
            await ending.at("video_deep", 70)
            ending.painter.is_deep = True
        async with desk(tmp_path, shared, store) as other:
            view = await other.over("video_deep")
            assert (view.status, view.attempts) == ("completed", 2)
            (request,) = other.painter.submitted
            assert request.begun >= 6
            video = await other.jobs.content("video_deep", TENANT, "video")
            assert video is not None
            assert video.body == painted(new.request)

    asyncio.run(test())


def test_a_table_that_goes_away_for_a_while_loses_and_doubles_nothing(tmp_path: Path) -> None:
    # SPEC H3
    async def test(table: Server) -> None:
        shared = settings(tmp_path, url=table.url)
        async with desk(tmp_path, shared, StorageSettings(str(tmp_path / "objects"))) as rig:
            rig.painter.hold(5)
            await rig.jobs.create(rig.new("video_1"))
            await rig.at("video_1", 50)
            await asyncio.to_thread(table.stop)
            with pytest.raises(CapacityError, match="does not answer"):
                await rig.jobs.create(rig.new("video_2"))
            rig.painter.hold(None)
            await rig.until(_is(lambda: not rig.painter.open), "it ended while nobody could write that down")
            await asyncio.to_thread(table.start)
            assert (await rig.over("video_1")).status == "completed"
            await rig.jobs.create(rig.new("video_3"))
            assert (await rig.over("video_3")).status == "completed"
            assert await rig.jobs.get("video_2", None) is None
            (used,) = await rig.durable.meters.usage(UsageQuery(TENANT, "2000-01-01", "2999-01-01"))
            assert used.requests == 2

    with server() as table:
        asyncio.run(test(table))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (JobSettings(progress_s=10.0), "jobs.progress_s"),
        (JobSettings(url="mysql://host/db"), "jobs.url"),
        (JobSettings(url="postgresql://host/db"), "storage.url"),
        (settings(Path(), backoff=settings(Path()).backoff.__class__(9.0, 1.0)), "jobs.backoff"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(given: JobSettings, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        check_jobs(given, StorageSettings())


def test_a_shared_table_needs_shared_objects() -> None:
    with pytest.raises(ConfigError, match=r"storage\.url"):
        objects_folder("postgresql://host/db")


def test_a_table_that_is_damaged_is_told_in_words_at_the_start(tmp_path: Path) -> None:
    async def nothing(_: Rig) -> None:
        """It only has to start."""

    on_desk(tmp_path, nothing)
    for name in ("jobs", "jobs_in_line"):
        damage(tmp_path / "jobs.db", name)
    with pytest.raises(ConfigError, match=r"jobs\.url.*malformed"):
        on_desk(tmp_path, nothing)


def test_what_came_with_a_job_is_its_tenants_to_use_again(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.jobs.create(rig.new("video_1", content=Content("cat", pictures=(b"first", b"second"), form="mp4")))
        assert await rig.jobs.pictures("video_1", TENANT) == (b"first", b"second")
        assert await rig.jobs.pictures("video_1", TenantId("other")) == ()
        assert await rig.jobs.pictures("video_2", None) == ()

    on_desk(tmp_path, test)


def test_nothing_is_left_of_a_job_that_is_deleted_while_its_outputs_are_stored(tmp_path: Path) -> None:
    """Its row is gone, so no sweep would find them."""

    async def test(rig: Rig) -> None:
        arrived, go_on, stored = asyncio.Event(), asyncio.Event(), asyncio.Event()
        put = rig.store.put

        async def slowly(key: str, body: bytes) -> None:
            if "/video-0." in key:
                arrived.set()
                await go_on.wait()
            await put(key, body)
            if arrived.is_set():
                stored.set()

        rig.store.put = slowly  # type: ignore[method-assign]  # an object store that is slow at the wrong moment
        await rig.jobs.create(rig.new("video_1"))
        await arrived.wait()
        assert await rig.jobs.delete("video_1", TENANT)
        assert rig.objects() == []
        go_on.set()
        await stored.wait()
        await rig.until(_is(lambda: not rig.objects()), "they are deleted again")
        assert not await rig.jobs.delete("video_1", TENANT)

    on_desk(tmp_path, test)


def test_a_job_that_is_taken_while_its_outputs_are_stored_keeps_its_checkpoints(tmp_path: Path) -> None:
    """SPEC H3: whoever goes on with it needs them."""

    async def test(rig: Rig) -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()
        put, delete, deleted = rig.store.put, rig.store.delete, list[str]()

        async def slowly(key: str, body: bytes) -> None:
            if "/video-0." in key:
                arrived.set()
                await go_on.wait()
            await put(key, body)

        async def noted(keys: Sequence[str]) -> None:
            deleted.extend(keys)
            await delete(keys)

        rig.store.put = slowly  # type: ignore[method-assign]  # an object store that is slow at the wrong moment
        await rig.jobs.create(rig.new("video_1"))
        await arrived.wait()
        saved = {name for name in rig.objects() if "/checkpoint-" in name}
        assert saved
        rig.store.delete = noted  # type: ignore[method-assign]
        await rig.durable.queue.hold(None, "stop")
        go_on.set()
        await rig.until(_is(lambda: rig.desk._node.is_idle and not rig.desk._runs._cleaning), "it is tidied up")
        assert not saved.intersection(deleted)
        await rig.durable.queue.release(None)
        view = await rig.over("video_1")
        assert (view.status, view.restarts) == ("completed", 0)
        assert [request.begun > 0 for request in rig.painter.submitted] == [False, True]

    on_desk(tmp_path, test)


def test_a_paused_queue_stays_paused_over_a_restart_and_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    """ComfyUI#1032."""

    async def first(rig: Rig) -> None:
        rig.painter.hold(5)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 50)
        view = await rig.durable.queue.hold(str(MODEL), "checkpoint")
        assert [(hold.model, hold.running) for hold in view.holds] == [(MODEL, "checkpoint")]
        await rig.until(_is(lambda: not rig.painter.open), "it stopped")
        made = await rig.jobs.create(rig.new("video_2"))
        assert (made.job.is_held, made.job.eta_s) == (True, None)

    async def second(rig: Rig) -> None:
        assert rig.desk.held() == (MODEL,)
        rig.painter.hold(None)
        await rig.jobs.create(rig.new("video_3", model=ModelId("other")))
        await rig.over("video_3")
        assert [request.id for request in rig.painter.submitted] == ["video_3"]
        await rig.durable.queue.release(str(MODEL))
        for job in ("video_1", "video_2"):
            assert (await rig.over(job)).status == "completed"
        begun = {request.id: request.begun for request in rig.painter.submitted}
        assert (begun["video_1"], begun["video_2"]) == (6, 0)

    on_desk(tmp_path, first)
    on_desk(tmp_path, second)


def test_a_queue_that_is_stopped_takes_what_runs_from_its_worker_at_once(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.painter.hold(3)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 30)
        await rig.durable.queue.hold(None, "stop")
        await rig.until(_is(lambda: not rig.painter.open), "it stopped")
        view = await rig.view("video_1")
        assert (view.status, view.is_held, view.attempts) == ("in_progress", True, 1)
        rig.painter.hold(None)
        await rig.durable.queue.release(None)
        assert (await rig.over("video_1")).status == "completed"

    on_desk(tmp_path, test)


def test_tokens_of_text_are_metered_by_tenant_and_model_and_outlive_a_stop(tmp_path: Path) -> None:
    # SPEC H6
    def ended(tenant: str, replica: str | None = "rep-0", prompt: int | None = 10) -> EvidenceRecord:
        worker = None if replica is None else WorkerMarks(NodeId(replica), 0, cached_tokens=4, steps=3, device_ns=10**9)
        tokens = None if prompt is None else prompt
        marks = FrontMarks(
            RequestId("req-1"), TenantId(tenant), 0, 0, 0, 0, 1, 2, 3, 5, model=ModelId("llm"), prompt_tokens=tokens
        )
        return evidence_record(marks, worker)

    async def first(rig: Rig) -> None:
        for record in (ended("a"), ended("a"), ended("b"), ended("a", None), ended("a", prompt=None)):
            rig.desk.tokens.observe(record)

    async def second(rig: Rig) -> None:
        rig.desk.tokens.observe(ended("a"))
        await rig.desk.tokens.flush()
        rows = await rig.durable.meters.usage(UsageQuery(None, "2000-01-01", "2999-01-01"))
        assert [(one.tenant, one.model, one.requests, one.gpu_seconds) for one in rows] == [
            ("a", "llm", 3, 4.0),  # a picture that nobody kept cost its device time
            ("b", "llm", 1, 1.0),
        ]
        assert [(one.prompt_tokens, one.cached_tokens, one.output_tokens) for one in rows] == [(30, 12, 15), (10, 4, 5)]

    on_desk(tmp_path, first)
    on_desk(tmp_path, second)


async def _used(rig: Rig) -> list[tuple[float, int, int]]:
    rows = await rig.durable.meters.usage(EVER)
    return [(round(one.gpu_seconds, 1), one.frames, one.requests) for one in rows]


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_job_that_is_cancelled_while_it_runs_costs_the_device_time_that_it_took(tmp_path: Path, how: str) -> None:
    # SPEC H6
    async def test(rig: Rig) -> None:
        rig.painter.hold(3)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 30)
        await (rig.jobs.cancel if how == "cancel" else rig.jobs.delete)("video_1", TENANT)

        async def is_metered() -> bool:
            return await _used(rig) == [(0.6, 0, 0)]

        await rig.until(is_metered, "three steps are metered")

    on_desk(tmp_path, test)


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_job_that_is_cancelled_while_its_outputs_are_stored_costs_what_it_took(tmp_path: Path, how: str) -> None:
    # SPEC H6
    async def test(rig: Rig) -> None:
        arrived, go_on, put = asyncio.Event(), asyncio.Event(), rig.store.put

        async def slowly(key: str, body: bytes) -> None:
            if "/video-0." in key:
                arrived.set()
                await go_on.wait()
            await put(key, body)

        rig.store.put = slowly  # type: ignore[method-assign]  # an object store that is slow at the wrong moment
        await rig.jobs.create(rig.new("video_1"))
        await arrived.wait()
        await (rig.jobs.cancel if how == "cancel" else rig.jobs.delete)("video_1", TENANT)
        go_on.set()

        async def is_over() -> bool:
            return rig.desk._node.is_idle and not rig.desk._runs.spending.tasks

        await rig.until(is_over, "it is over, and what it took is written")
        assert await _used(rig) == [(2.0, 0, 0)]

    on_desk(tmp_path, test)


def test_a_job_that_is_cancelled_after_it_was_saved_is_metered_once(tmp_path: Path) -> None:
    # SPEC H6
    async def test(rig: Rig) -> None:
        rig.painter.hold(8)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 80)
        assert [name for name in rig.objects() if "checkpoint" in name]
        await rig.jobs.cancel("video_1", TENANT)

        async def is_metered() -> bool:
            return await _used(rig) == [(1.6, 0, 0)]

        await rig.until(is_metered, "eight steps are metered")
        rig.painter.hold(None)
        await rig.jobs.retry("video_1", TENANT)
        await rig.over("video_1")
        assert await _used(rig) == [(3.6, 4, 1)]  # and what its second life took

    on_desk(tmp_path, test)


def test_a_job_that_fails_costs_its_device_time_and_makes_no_picture(tmp_path: Path) -> None:
    # SPEC H6
    async def test(rig: Rig) -> None:
        end = ErrorOut(500, "out_of_memory", "the decode does not fit")
        rig.painter.ends = [end]
        await rig.jobs.create(rig.new("video_1"))
        assert (await rig.over("video_1")).status == "failed"
        assert await _used(rig) == [(0.4, 0, 0)]

    on_desk(tmp_path, test)


def test_pictures_that_nobody_kept_cost_their_device_time_and_those_that_are_kept_not_twice(tmp_path: Path) -> None:
    # SPEC H6: the client left, or a step failed
    def ended(request: str, device_ns: int) -> EvidenceRecord:
        marks = FrontMarks(RequestId(request), TENANT, 0, 0, 0, 0, None, None, 5, 0, model=MODEL)
        return evidence_record(marks, WorkerMarks(NodeId("rep-0"), 0, steps=1, device_ns=device_ns))

    async def test(rig: Rig) -> None:
        await rig.durable.pictures.keep(rig.new("img_1", "image"), [KeptPicture(0, "image/png", b"png", 7)], 1.5)
        rig.desk.observe(ended("img_1", 3 * 10**9 // 2))
        rig.desk.observe(ended("img_2", 10**9))
        await rig.desk.tokens.flush()
        (used,) = await rig.durable.meters.usage(EVER)
        assert (used.gpu_seconds, used.images, used.requests) == (2.5, 1, 1)

    on_desk(tmp_path, test)


def test_pictures_that_could_not_be_kept_are_metered_by_their_end(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        tokens, request = rig.desk.tokens, RequestId("img_1")
        tokens.metered(request)
        tokens.unmetered(request)
        marks = FrontMarks(request, TENANT, 0, 0, 0, 0, None, None, 5, 0, model=MODEL)
        rig.desk.observe(evidence_record(marks, WorkerMarks(NodeId("rep-0"), 0, steps=1, device_ns=10**9)))
        await tokens.flush()
        assert [one.gpu_seconds for one in await rig.durable.meters.usage(EVER)] == [1.0]

    on_desk(tmp_path, test)


def answered(tenant: str = "a") -> EvidenceRecord:
    """Text of ten and five tokens, by an engine of ours."""
    marks = FrontMarks(
        RequestId("req-1"), TenantId(tenant), 0, 0, 0, 0, 1, 2, 3, 5, model=ModelId("llm"), prompt_tokens=10
    )
    return evidence_record(marks, WorkerMarks(NodeId("rep-0"), 0, steps=3, device_ns=10**9))


EVER = UsageQuery(None, "2000-01-01", "2999-01-01")


def test_what_ended_is_in_the_table_soon_and_not_only_at_the_end(tmp_path: Path) -> None:
    # SPEC H6: a kill -9 may leave out what ended within the last GATHER_S
    async def test(rig: Rig) -> None:
        assert GATHER_S <= 0.25
        for count in (1, 2):  # also what comes after it was written once
            rig.desk.tokens.observe(answered())

            async def is_written(count: int = count) -> bool:
                return [row.requests for row in await rig.durable.meters.usage(EVER)] == [count]

            await rig.until(is_written, "it is metered")
        assert rig.durable.meters.since is None

    on_desk(tmp_path, test)


def test_what_ends_while_the_process_ends_is_metered_too(tmp_path: Path) -> None:
    # SPEC H6: streams are cut when the replicas end, which is after jobs were handed back
    async def first() -> None:
        async with desk(tmp_path) as rig:
            await rig.desk.stop(10.0)
            rig.desk.tokens.observe(answered())

    async def second(rig: Rig) -> None:
        assert [row.output_tokens for row in await rig.durable.meters.usage(EVER)] == [5]

    asyncio.run(first())
    on_desk(tmp_path, second)


def test_tokens_wait_while_the_table_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SPEC H6
    async def test(rig: Rig) -> None:
        with monkeypatch.context() as broken:

            def away(*_: object) -> None:
                raise CapacityError("it does not answer", status=503)

            broken.setattr(UsageTable, "add_all", away)
            rig.desk.tokens.observe(answered())
            assert not await rig.desk.tokens.flush()
        rig.desk.tokens.observe(answered("b"))
        assert await rig.desk.tokens.flush()
        rows = await rig.durable.meters.usage(EVER)
        assert [(row.tenant, row.prompt_tokens, row.output_tokens) for row in rows] == [("a", 10, 5), ("b", 10, 5)]

    on_desk(tmp_path, test)


def test_what_is_away_is_told_until_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SPEC M2, H4
    monkeypatch.setattr("headway.live.jobs._STATES_NS", 0)
    monkeypatch.setattr("headway.live.jobs._LOOK_NS", 0)

    async def test(rig: Rig) -> None:
        database, store = rig.desk._tables.database, rig.desk.store
        assert rig.desk.degraded() == ()
        engine, database.engine = database.engine, create_engine("sqlite:////proc/none/jobs.db")
        await rig.until(_is(lambda: rig.desk.degraded() == ("job table does not answer",)), "it is missed")
        database.engine = engine
        store.outage.failed("it was stopped")
        assert rig.desk.degraded()[-1] == "object store does not answer"
        await rig.until(_is(lambda: rig.desk.degraded() == ()), "both are back")
        assert await store.get("probe") is None

    on_desk(tmp_path, test)


class SkippedClock(Clock):
    """Whose time a test lets pass."""

    skipped_ns = 0

    def now_ns(self) -> Ns:
        return super().now_ns() + self.skipped_ns


def test_the_evidence_of_a_job_is_closed_after_its_objects_are_stored(tmp_path: Path) -> None:
    # SPEC I2: `upload`
    records: list[EvidenceRecord] = []

    async def main() -> None:
        clock = SkippedClock()
        async with desk(tmp_path, clock=clock) as rig:
            put, observe = rig.store.put, rig.painter.record

            async def slowly(key: str, body: bytes) -> None:
                if "/video-0." in key or "/thumbnail." in key:
                    clock.skipped_ns += NS_PER_S // 2
                await put(key, body)

            def record(told: EvidenceRecord) -> None:
                records.append(told)
                observe(told)

            rig.store.put = slowly  # type: ignore[method-assign]  # an object store that takes its time
            rig.painter.record = record
            await rig.jobs.create(rig.new("video_1"))
            assert (await rig.over("video_1")).status == "completed"

    asyncio.run(main())
    (told,) = records
    assert told.segments["upload"] >= 1000.0
    assert sum(told.segments.values()) == pytest.approx(told.e2e_ms, rel=0.01)  # SPEC I2


def test_the_evidence_of_every_attempt_outlives_the_gateways_that_ran_them(tmp_path: Path) -> None:
    # SPEC I1
    began_ns = time.monotonic_ns()

    async def life(test: Callable[[Rig], Awaitable[None]], ago_s: int) -> None:
        async with desk(tmp_path, clock=Clock(began_ns - ago_s * NS_PER_S)) as rig:
            await test(rig)

    async def first(rig: Rig) -> None:
        rig.painter.hold(7)
        await rig.jobs.create(rig.new("video_1"))
        await rig.at("video_1", 70)

    async def second(rig: Rig) -> None:
        assert (await rig.over("video_1")).status == "completed"

    async def third(rig: Rig) -> None:
        found = await rig.jobs.evidence("video_1", TENANT)
        assert [(attempt, record.steps_done) for attempt, record in found] == [(1, 8), (2, 2)]
        assert all(record.ended_ns - 700 * NS_PER_S > -60 * NS_PER_S for _, record in found)  # in the time of this run
        assert all(record.ended_ns < rig.painter.now_ns() for _, record in found)
        assert await rig.jobs.evidence("video_1", TenantId("other")) == []
        assert await rig.jobs.delete("video_1", TENANT)
        assert await rig.jobs.evidence("video_1", None) == []

    for test, ago_s in ((first, 300), (second, 500), (third, 700)):
        asyncio.run(life(test, ago_s))
