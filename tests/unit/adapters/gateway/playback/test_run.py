"""One session from its first event to its last (SPEC H5). Time leaps: what is said of it is exact."""

import asyncio
from itertools import pairwise

import msgspec
import pytest
from tests.unit.adapters.gateway.playback.fakes import (
    CHUNK_S,
    CHUNKS,
    SESSIONS,
    STREAMER,
    Cinema,
    leap,
    on_leaps,
    one_session,
)

from headway.adapters.gateway.settings import GatewaySettings
from headway.core.artifacts import PromptRead
from headway.core.effects import ErrorOut
from headway.core.request import FinishReason
from headway.core.units import NS_PER_S


def test_chunks_come_one_after_the_other_and_go_on_from_each_other() -> None:
    # SPEC H5, H6
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(seconds=6)
        await viewer.done
        created, *chunks, completed = viewer.events
        assert (viewer.status, viewer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert viewer.is_done
        name = created.pop("id")
        assert created == {
            "type": "video.session.created",
            "model": STREAMER,
            "fps": 2,
            "size": "64x64",
            "chunk_frames": 4,
            "chunk_seconds": CHUNK_S,
            "predicted_chunk_seconds": 0.5,
            "realtime": True,
            "seed": 7,
        }
        assert [(one["id"], one["index"], one["first_frame"], one["seed"]) for one in chunks] == [
            (name, k, 4 * k, 7 + k) for k in range(3)
        ]
        assert viewer.films == [
            "a red circle//7/4/3/4<",
            "a red circle//8/4/3/8<after 7",
            "a red circle//9/4/3/8<after 8",
        ]
        assert [one.hand_on for one in cinema.projector.painted] == [4, 4, 0]  # nothing goes on from the last one
        assert {(one["frames"], one["seconds"], one["gpu_seconds"], one["late_ms"]) for one in chunks} == {
            (4, CHUNK_S, 0.5, 0.0)
        }
        assert chunks[0]["cost"]["stage_seconds"]["vae_decode"] == 0.125
        assert [one.frames for one in cinema.metered] == [4, 4, 4]
        assert [one.requests for one in cinema.metered] == [1, 0, 0]  # a session is one request
        usd = pytest.approx(sum(one["cost"]["usd"] for one in chunks))
        assert completed == {
            "type": "video.session.completed",
            "id": name,
            "reason": "length",
            "chunks": 3,
            "frames": 12,
            "late_chunks": 0,
            "gpu_seconds": 1.5,
            "usd": usd,
        }
        await cinema.left_nothing()

    on_leaps(test)


@pytest.mark.parametrize(("ahead", "begun"), [(1, [0, 0.5, 2.5, 4.5]), (2, [0, 0.5, 1.0, 2.5])])
def test_no_chunk_is_begun_earlier_than_so_many_ahead_of_its_playback(ahead: int, begun: list[float]) -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(seconds=8, ahead=ahead)
        await viewer.done
        assert cinema.projector.begun_s == begun
        due = [one.played_ns / NS_PER_S for one in cinema.projector.painted]
        assert due == [CHUNK_S, 2.5, 4.5, 6.5]  # the first one: as if it were awaited for as long as it plays

    on_leaps(test)


def test_late_chunks_are_said_to_be_late_and_move_what_follows() -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.takes_s = 3.0
        viewer = cinema.watch(seconds=6)
        await viewer.done
        assert [one["late_ms"] for one in viewer.chunks] == [0, 1000, 1000]
        assert viewer.events[-1]["late_chunks"] == 2
        assert [one.slo.e2e_deadline_ns for one in cinema.projector.painted] == [None] * 3  # late is not lost
        text = cinema.app.metrics.render().decode()
        assert f'headway_video_chunks_total{{model="{STREAMER}"}} 3.0' in text
        assert f'headway_video_chunks_late_total{{model="{STREAMER}"}} 2.0' in text

    on_leaps(test)


def test_a_client_that_does_not_read_has_nothing_made_for_it_and_is_cut_off() -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(ahead=8)
        await viewer.until(1)
        viewer.reads.clear()
        await viewer.done
        stall_s = GatewaySettings().stream.stall_timeout_s
        assert len(cinema.projector.painted) == 2  # the one that cannot be sent, and none after it
        assert asyncio.get_running_loop().time() == 1.0 + stall_s
        await cinema.left_nothing()

    on_leaps(test)


def test_who_reads_again_in_time_goes_on() -> None:
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(seconds=6)
        await viewer.until(1)
        viewer.reads.clear()
        await leap(30)
        viewer.reads.set()
        await viewer.done
        assert viewer.is_done
        assert [one["late_ms"] for one in viewer.chunks] == [0, 0, 0]  # made in time; what waited was its reader

    on_leaps(test)


def test_silence_is_filled_with_comments() -> None:
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.takes_s = 35.0
        viewer = cinema.watch(seconds=2)
        await viewer.done
        assert viewer.body.count(b": ping\n\n") == 3
        assert viewer.is_done

    on_leaps(test)


def test_other_words_count_from_the_next_chunk_on() -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(seconds=6)
        name = await viewer.until(1)
        await leap(0.1)  # chunk 1 is being made
        for nothing in ({}, {"prompt": None}):
            status, refused = await cinema.ask("POST", f"{SESSIONS}/{name}", nothing)
            assert (status, refused["error"]["code"]) == (400, "missing_required_parameter")
        change = {"prompt": "a blue square", "negative_prompt": "red", "guidance_scale": 2.0}
        status, view = await cinema.ask("POST", f"{SESSIONS}/{name}", change)
        assert (status, view["from_chunk"], view["next_chunk"], view["chunks"]) == (200, 2, 2, 1)
        assert (view["prompt"], view["negative_prompt"], view["guidance_scale"]) == ("a blue square", "red", 2.0)
        await viewer.until(3)
        assert [one["prompt"] for one in viewer.chunks] == ["a red circle", "a red circle", "a blue square"]
        assert viewer.films[2] == "a blue square/red/9/4/2/8<after 8"
        assert [one.passes for one in cinema.projector.painted] == [2, 2, 2]
        await viewer.done

    on_leaps(test)


def test_guidance_that_leaves_words_unread_is_refused_and_ends_no_session() -> None:
    # SPEC H5, F1
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(seconds=6, negative_prompt="red")
        name = await viewer.until(1)
        await leap(0.1)  # chunk 1 is being made
        status, answer = await cinema.ask("POST", f"{SESSIONS}/{name}", {"guidance_scale": 1.0})
        assert (status, answer["error"]["param"]) == (400, "negative_prompt")
        change = {"guidance_scale": 1.0, "negative_prompt": ""}
        assert (await cinema.ask("POST", f"{SESSIONS}/{name}", change))[0] == 200
        await viewer.done
        assert [one.passes for one in cinema.projector.painted] == [2, 2, 1]

    on_leaps(test)


def test_words_that_its_model_cannot_read_are_refused_and_end_no_session() -> None:
    # SPEC H5, F1
    async def test() -> None:
        cinema = Cinema()
        cards = cinema.projector.cards
        cards[-1] = msgspec.structs.replace(cards[-1], pictures=msgspec.structs.replace(CHUNKS, passes=1))
        opened = cinema.watch(seconds=4, negative_prompt="red")
        await opened.done
        assert (opened.status, msgspec.json.decode(opened.body)["error"]["param"]) == (400, "negative_prompt")
        viewer = cinema.watch(seconds=6)
        name = await viewer.until(1)
        change = {"prompt": "a blue square", "negative_prompt": "red"}
        status, answer = await cinema.ask("POST", f"{SESSIONS}/{name}", change)
        assert (status, answer["error"]["param"]) == (400, "negative_prompt")
        assert (await cinema.ask("POST", f"{SESSIONS}/{name}", {"negative_prompt": ""}))[0] == 200
        await viewer.done
        assert [one["prompt"] for one in viewer.chunks] == ["a red circle"] * 3  # all of a refused change is
        assert len(cinema.projector.painted) == 3

    on_leaps(test)


def test_nothing_can_be_changed_once_the_last_chunk_is_begun() -> None:
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch(seconds=4)
        name = await viewer.until(1)
        await leap(0.1)
        status, answer = await cinema.ask("POST", f"{SESSIONS}/{name}", {"prompt": "x"})
        assert (status, answer["error"]["code"]) == (409, "session_over")
        await viewer.done

    on_leaps(test)


@pytest.mark.parametrize("wait_s", [0.1, 0.6, 2.6])
def test_an_end_stops_what_is_being_made_and_says_so(wait_s: float) -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch()
        await leap(wait_s)
        name = str(viewer.events[0]["id"])
        status, answer = await cinema.ask("DELETE", f"{SESSIONS}/{name}")
        assert (status, answer["deleted"]) == (200, True)
        await viewer.done
        assert asyncio.get_running_loop().time() == pytest.approx(wait_s)
        assert viewer.is_done
        assert viewer.events[-1]["reason"] == "stopped"
        assert viewer.events[-1]["chunks"] == len(viewer.chunks)
        assert (await cinema.ask("GET", f"{SESSIONS}/{name}"))[0] == 404
        await cinema.left_nothing()

    on_leaps(test)


def test_an_end_while_it_waits_for_its_playback_needs_no_device() -> None:
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch()
        name = await viewer.until(2)  # chunk 2 is begun when chunk 1 is played
        assert (await cinema.ask("DELETE", f"{SESSIONS}/{name}"))[0] == 200
        await viewer.done
        assert (cinema.projector.cancelled, len(cinema.projector.painted)) == ([], 2)
        assert viewer.events[-1]["reason"] == "stopped"

    on_leaps(test)


@pytest.mark.parametrize("wait_s", [0.0, 0.2, 0.5, 0.7, 1.2, 2.6])
def test_a_client_that_leaves_cancels_what_is_being_made(wait_s: float) -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch()
        await leap(wait_s)
        viewer.leave()
        await viewer.done
        assert asyncio.get_running_loop().time() == pytest.approx(wait_s)
        assert len(cinema.projector.cancelled) <= 1
        await cinema.left_nothing()

    on_leaps(test)


def test_without_a_length_it_ends_at_the_limit() -> None:
    async def test() -> None:
        cinema = Cinema(one_session(seconds_max=5.0))
        viewer = cinema.watch()
        await viewer.done
        assert (len(viewer.chunks), viewer.events[-1]["reason"]) == (2, "limit")

    on_leaps(test)


def test_what_is_refused_at_once_has_a_status() -> None:
    # SPEC H5, A8
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.refusals[0] = ErrorOut(429, "quota_exceeded", "No device time is left.", 3000)
        viewer = cinema.watch()
        await viewer.done
        assert (viewer.status, viewer.headers["retry-after-ms"]) == (429, "3000")
        assert viewer.events == []
        assert b"quota_exceeded" in viewer.body
        await cinema.left_nothing()

    on_leaps(test)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_refusal_or_a_failure_of_a_later_chunk_ends_the_stream_with_it(is_late: bool) -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        error = ErrorOut(502, "engine_lost", "Three replicas were lost.")
        if is_late:
            cinema.projector.errors[1] = FinishReason.LOST, error
        else:
            cinema.projector.refusals[1] = error
        viewer = cinema.watch()
        await viewer.done
        assert viewer.events[-1]["error"]["code"] == "engine_lost"
        assert (len(viewer.chunks), viewer.is_done, viewer.is_complete) == (1, False, True)
        assert len(cinema.metered) == 1
        await cinema.left_nothing()

    on_leaps(test)


def test_a_server_that_stops_says_so() -> None:
    # SPEC A11
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch()
        await viewer.until(1)
        viewer.done.cancel()
        await viewer.done
        assert viewer.events[-1]["error"]["code"] == "shutting_down"
        assert not viewer.is_done
        await cinema.left_nothing()

    on_leaps(test)


@pytest.mark.parametrize("wait_s", [2.6, 13.0])
def test_a_server_that_stops_waits_for_no_client_that_takes_nothing(wait_s: float) -> None:
    """2.6 s: while a chunk waits to be sent; 13 s: while one is made and a ping waits."""

    # SPEC A11, B5
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.takes_s = 0.5 if wait_s < 10 else 60.0
        viewer = cinema.watch(ahead=8)
        if wait_s < 10:
            await viewer.until(1)
        else:
            await leap(0.1)
        viewer.reads.clear()
        await leap(wait_s)
        at_s = asyncio.get_running_loop().time()
        viewer.done.cancel()
        await leap(0)
        await leap(0)
        assert cinema.projector.open == set()  # the device works on no chunk of it, whatever its client does
        await viewer.done
        assert asyncio.get_running_loop().time() == pytest.approx(at_s + 1.0)
        assert viewer.is_gone
        await cinema.left_nothing()

    on_leaps(test)


def test_an_end_gives_the_place_of_a_client_back_that_takes_nothing() -> None:
    # SPEC H5, B5
    async def test() -> None:
        cinema = Cinema(one_session(tenant_open_max=1))
        viewer = cinema.watch()
        name = await viewer.until(1)
        viewer.reads.clear()
        await leap(3)
        for _ in range(2):  # twice: it is not over yet
            assert (await cinema.ask("DELETE", f"{SESSIONS}/{name}"))[0] == 200
        refused = cinema.watch()
        await refused.done
        wait_s = int(refused.headers["retry-after-ms"]) / 1000
        await leap(wait_s)
        assert viewer.is_gone
        again = cinema.watch(seconds=2)
        await again.done
        assert (again.status, len(again.chunks)) == (200, 1)
        assert (await cinema.ask("DELETE", f"{SESSIONS}/{name}"))[0] == 404
        await cinema.left_nothing()

    on_leaps(test)


def test_an_ended_session_whose_client_is_only_slow_is_told_its_sums() -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch()
        name = await viewer.until(1)
        viewer.reads.clear()
        await leap(3)
        assert (await cinema.ask("DELETE", f"{SESSIONS}/{name}"))[0] == 200
        await leap(4)
        viewer.reads.set()
        await viewer.done
        assert viewer.is_done
        assert (viewer.events[-1]["reason"], viewer.events[-1]["chunks"]) == ("stopped", 2)
        await cinema.left_nothing()

    on_leaps(test)


def test_what_admission_takes_away_is_told_and_the_model_never_is() -> None:
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.degraded = (("steps", 2),)
        viewer = cinema.watch(seconds=2, allow_degrade=["steps"])
        await viewer.done
        assert viewer.chunks[0]["degraded"] == {"steps": 2}
        assert cinema.projector.painted[0].allow_degrade == ("steps",)
        refused = cinema.watch(allow_degrade=["model"])
        await refused.done
        assert refused.status == 400

    on_leaps(test)


def test_what_of_the_prompt_was_cut_off_is_told_with_each_chunk() -> None:
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.read = PromptRead(77, ("CLIP read 77 of 90 tokens.",))
        viewer = cinema.watch(seconds=2)
        await viewer.done
        assert viewer.chunks[0]["warnings"] == ["CLIP read 77 of 90 tokens."]

    on_leaps(test)


def test_a_promise_is_of_each_chunk() -> None:
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch({"x-slo-e2e-ms": "1500"}, seconds=4)
        await viewer.done
        ends = [one.slo.e2e_deadline_ns - one.arrived_ns for one in cinema.projector.painted]
        assert ends == [1_500_000_000] * 2

    on_leaps(test)


def test_the_same_body_gives_the_same_chunks() -> None:
    # SPEC H5
    async def test() -> None:
        cinema = Cinema()
        twice = [cinema.watch(seconds=4), cinema.watch(seconds=4)]
        for viewer in twice:
            await viewer.done
        assert twice[0].films == twice[1].films
        drawn = cinema.watch(seconds=2, seed=None)
        await drawn.done
        assert drawn.events[0]["seed"] == cinema.projector.painted[-1].seed != 7

    on_leaps(test)


def test_each_chunk_has_evidence_under_its_own_id() -> None:
    async def test() -> None:
        cinema = Cinema()
        viewer = cinema.watch({"x-request-id": "mine"}, seconds=4)
        await viewer.done
        painted = cinema.projector.painted
        assert [one.id for one in painted] == [f"{viewer.events[0]['id']}-{k}" for k in range(2)]
        spans = [one.trace for one in painted if one.trace is not None]
        assert spans[1].parent_id == spans[0].span_id
        index = cinema.app._plain.index
        tenant = cinema.app._door.keys.tenant(None)
        for name, requests in (("mine", 2), (str(viewer.events[0]["id"]), 2), (painted[1].id, 1)):
            found = index.find(name, tenant)
            assert found is not None
            assert found.requests == tuple(one.id for one in painted)[-requests:]

    on_leaps(test)


def test_a_chunk_that_takes_longer_than_any_request_may_ends_its_session() -> None:
    async def test() -> None:
        settings = GatewaySettings()
        limits = msgspec.structs.replace(settings.limits, request_timeout_s=1.0)
        cinema = Cinema(msgspec.structs.replace(settings, limits=limits))
        cinema.projector.takes_s = 5.0
        viewer = cinema.watch()
        await viewer.done
        assert viewer.events[-1]["error"]["code"] == "request_timeout"
        assert len(cinema.projector.cancelled) == 1
        assert asyncio.get_running_loop().time() == 1.0
        await cinema.left_nothing()

    on_leaps(test)


def test_a_chunk_without_video_or_latents_is_a_fault_of_ours() -> None:
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.errors[0] = FinishReason.STOP, None
        viewer = cinema.watch()
        await viewer.done
        assert viewer.events[-1]["error"]["code"] == "internal_error"
        await cinema.left_nothing()

    on_leaps(test)


def test_seeds_of_the_chunks_differ_and_frames_follow_each_other() -> None:
    async def test() -> None:
        cinema = Cinema()
        card = cinema.projector.cards[-1]
        looks = msgspec.structs.replace(card.pictures, frame_stride=4)  # the first chunk has 5 frames
        cinema.projector.cards[-1] = msgspec.structs.replace(card, pictures=looks)
        viewer = cinema.watch(seconds=6)
        await viewer.done
        chunks = viewer.chunks
        assert [one["frames"] for one in chunks] == [5, 4, 4]
        assert all(a["first_frame"] + a["frames"] == b["first_frame"] for a, b in pairwise(chunks))
        assert cinema.projector.begun_s == [0, 0.5, 3.0]  # the first one plays for 2.5 s

    on_leaps(test)
