"""What a session is predicted to take, before anything is made (SPEC H5, F2)."""

from itertools import pairwise

import msgspec
import pytest
from tests.unit.adapters.gateway.playback.fakes import CHUNK_S, SESSIONS, STREAMER, Cinema, on_leaps

from headway.adapters.gateway.answer_fields import ANSWERS
from headway.adapters.gateway.ports import Foresee, PictureEstimate
from headway.core.request import DiffusionRequest

BODY: dict[str, object] = {"model": STREAMER, "prompt": "a red circle", "seed": 7}


def by_shape(request: DiffusionRequest) -> PictureEstimate:
    """As long as its shape says, on two devices; the first run of a shape takes half a second more."""
    took = request.steps * request.passes * request.frames * request.width * request.height / 2**18
    memory = request.frames * request.width
    gpu_s = 2 * (took + 0.5)
    return PictureEstimate({"denoise": took}, gpu_s, 0.25, "admit", {}, memory, cold_s=0.5, is_cold=True)


def small(request: DiffusionRequest) -> PictureEstimate:
    """No room for what goes on from frames."""
    why = "too large" if request.given_frames else None
    return PictureEstimate({"denoise": 0.5}, 0.5, 0.0, "admit", unservable=why)


def costed(foresee: Foresee = by_shape) -> Cinema:
    cinema = Cinema()
    cinema.projector.foresee = foresee
    return cinema


async def estimate(cinema: Cinema, **fields: object) -> dict[str, object]:
    status, answer = await cinema.ask("POST", "/v1/estimates", {"endpoint": SESSIONS, "body": {**BODY, **fields}})
    assert status == 200, answer
    return answer


def test_a_session_is_known_before_it_is_made() -> None:
    async def test() -> None:
        cinema = costed()
        answer = await estimate(cinema, seconds=6, guidance_scale=1.0)
        first_s, later_s = 0.25, 0.5  # 4 steps of 4 and of 8 frames, 64x64
        gpu_s = 2 * (first_s + 2 * later_s + 2 * 0.5)  # both shapes run for the first time
        assert answer == {
            "model": STREAMER,
            "requested_model": STREAMER,
            "degraded": None,
            "gpu_seconds": gpu_s,
            "price_usd": pytest.approx(gpu_s * 2.5 / 3600, rel=1e-3),
            "memory_bytes": 8 * 64,
            "verdict": "admit",
            "stage_seconds": {"denoise": later_s},
            "cold_start": True,
            "chunks": 3,
            "frames": 12,
            "chunk_seconds": CHUNK_S,
            "first_chunk_s": 0.25 + 0.5 + first_s,
            "predicted_chunk_seconds": later_s,
            "chunk_gpu_seconds": 2 * later_s,
            "gpu_seconds_per_second": 2 * later_s / CHUNK_S,
            "price_usd_per_minute": pytest.approx(30 * 2 * later_s * 2.5 / 3600, rel=1e-3),
            "realtime_factor": CHUNK_S / later_s,
            "realtime": True,
        }
        assert set(answer) <= set(ANSWERS["POST /v1/estimates"])
        assert cinema.projector.painted == []
        await cinema.left_nothing()

    on_leaps(test)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("num_inference_steps", [1, 4, 9, 50]),
        ("seconds", [0.5, 2, 2.5, 60]),
        ("size", ["64x64", "128x64", "128x128"]),
        ("guidance_scale", [1.0, 3.0]),
    ],
)
def test_more_work_is_never_told_to_take_less(field: str, values: list[object]) -> None:
    async def test() -> None:
        told = [await estimate(costed(), **{"seconds": 20, field: value}) for value in values]
        for less, more in pairwise(told):
            for name in ("gpu_seconds", "price_usd", "chunk_gpu_seconds", "price_usd_per_minute", "memory_bytes"):
                assert less[name] <= more[name], name  # type: ignore[operator]  # JSON
            assert less["realtime_factor"] >= more["realtime_factor"]  # type: ignore[operator]  # JSON

    on_leaps(test)


def test_an_estimate_says_what_the_session_then_says() -> None:
    async def test() -> None:
        cinema = costed()
        answer = await estimate(cinema, seconds=4, num_inference_steps=8)
        assert (answer["predicted_chunk_seconds"], answer["realtime"]) == (2.0, True)  # just in time
        viewer = cinema.watch(seconds=4, num_inference_steps=8, require_realtime=True)
        await viewer.done
        created = viewer.events[0]
        assert [created[name] for name in ("predicted_chunk_seconds", "realtime")] == [2.0, True]
        assert len(viewer.chunks) == answer["chunks"]
        slow = await estimate(cinema, num_inference_steps=9)
        assert (slow["realtime"], slow["realtime_factor"]) == (False, pytest.approx(2.0 / 2.25, rel=1e-3))

    on_leaps(test)


def test_what_has_no_room_or_is_not_known_is_told() -> None:
    async def test() -> None:
        cinema = Cinema()
        cinema.projector.predicted = PictureEstimate({}, 0.0, 0.0, "admit", unservable="too large")
        assert (await estimate(cinema))["verdict"] == "reject"
        cinema.projector.predicted = None
        asked = {"endpoint": SESSIONS, "body": BODY}
        status, answer = await cinema.ask("POST", "/v1/estimates", asked)
        assert (status, answer["error"]["code"]) == (503, "no_replica")  # type: ignore[index]  # JSON
        wrong = {"endpoint": SESSIONS, "body": {**BODY, "ahead": 99}}
        status, answer = await cinema.ask("POST", "/v1/estimates", wrong)
        assert (status, answer["error"]["param"]) == (400, "ahead")  # type: ignore[index]  # JSON

    on_leaps(test)


def test_a_session_of_one_chunk_needs_no_room_for_another() -> None:
    async def test() -> None:
        cinema = costed(small)
        viewer = cinema.watch(seconds=2)
        await viewer.done
        assert (viewer.status, len(viewer.chunks)) == (200, 1)
        refused = cinema.watch(seconds=4)
        await refused.done
        assert msgspec.json.decode(refused.body)["error"]["code"] == "unservable"

    on_leaps(test)
