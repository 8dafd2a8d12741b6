import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import picture

from headway.core.artifacts import Made
from headway.core.errors import InvariantError
from headway.core.ids import ModelId
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest
from headway.sim.painter import Painter, picture_alone


def plan(request: DiffusionRequest, start: int, count: int, **more: object) -> DenoisePlan:
    row = DenoiseRow(1, start, count, request.steps, request.n)
    return DenoisePlan(1, 0, (row,), request.height, request.width, **more)  # type: ignore[arg-type]  # fields by name


def test_a_picture_is_the_same_however_its_steps_are_cut_and_wherever_they_run() -> None:  # SPEC F6, F7
    request = picture("req-1", steps=5, n=2)
    first, second = Painter(), Painter()
    made, failed = first.apply(plan(request, 0, 3, new=(NewDenoise(1, request),), save=(1,)))
    assert failed == ()
    (saved,) = made[0].made
    resumed = picture("req-1", steps=5, n=2, begun=saved.steps, checkpoint=saved.body)
    made, _ = second.apply(plan(resumed, 3, 2, new=(NewDenoise(1, resumed),)))
    assert made[0].made == tuple(Made("picture", picture_alone(request, k), k, 5, 1 + k) for k in range(2))
    assert second.canvases == {}


def test_a_step_that_was_left_out_is_another_picture() -> None:
    assert picture_alone(picture("req-1", steps=4)) != picture_alone(picture("req-1", steps=5))


def test_a_bad_picture_fails_its_row_and_no_other() -> None:  # vllm-omni#4634
    bad = picture("req-1", steps=1, content=Content(pictures=(b"",)))
    good = picture("req-2", steps=1)
    rows = (DenoiseRow(1, 0, 1, 1), DenoiseRow(2, 0, 1, 1))
    made, failed = Painter().apply(DenoisePlan(1, 0, rows, 64, 64, new=(NewDenoise(1, bad), NewDenoise(2, good))))
    assert [(one.seq, one.code) for one in failed] == [(1, "bad_input")]
    assert [row.seq for row in made] == [2]


def test_refuses_steps_of_what_it_does_not_hold() -> None:
    request = picture("req-1")
    painter = Painter()
    painter.apply(plan(request, 0, 1, new=(NewDenoise(1, request),)))
    painter.lose()
    with pytest.raises(InvariantError, match="of which this engine has None"):
        painter.apply(plan(request, 1, 1))
    with pytest.raises(InvariantError, match="not here"):
        painter.apply(plan(request, 1, 1, leave=(7,)))


def test_a_chunk_goes_on_from_what_the_one_before_handed_on_and_from_nothing_foreign() -> None:  # SPEC H5
    first = picture("req-1", steps=1, frames=4, hand_on=4)
    made, _ = Painter().apply(plan(first, 0, 1, new=(NewDenoise(1, first),)))
    latents, video = made[0].made
    assert (latents.kind, video.kind) == ("latents", "video")
    second = picture("req-2", steps=1, frames=8, given_frames=4, content=Content(given=latents.body))
    made, failed = Painter().apply(plan(second, 0, 1, new=(NewDenoise(1, second),)))
    assert failed == ()
    assert made[0].made[0].body not in (picture_alone(first), picture_alone(picture("req-2", steps=1, frames=8)))
    for foreign in (
        replace(second, model=ModelId("other")),
        replace(second, width=128),
        replace(second, content=Content()),
    ):
        _, failed = Painter().apply(plan(foreign, 0, 1, new=(NewDenoise(1, foreign),)))
        assert [one.code for one in failed] == ["bad_input"]
