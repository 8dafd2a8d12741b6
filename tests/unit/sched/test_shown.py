from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import picture

from headway.core.artifacts import ArtifactKind, Made
from headway.sched.shown import Shown


def made(kind: ArtifactKind, index: int = 0, steps: int = 0) -> Made:
    return Made(kind, b"x", index, steps)


def test_what_another_replica_makes_again_is_passed_on_once() -> None:
    shown = Shown(picture("req-1", steps=8, n=2))
    first = (made("preview", 0, 4), made("preview", 1, 4), made("picture", 0, 8))
    assert shown.take(first) == first
    again = (made("preview", 0, 4), made("picture", 0, 8), made("picture", 1, 8))
    assert shown.take(again) == (made("picture", 1, 8),)
    assert shown.is_complete


def test_progress_never_goes_back() -> None:
    shown = Shown(picture("req-1", steps=8))
    assert [shown.advance(done) for done in (1, 4, 2, 4, 5)] == [True, True, False, False, True]


def test_a_request_goes_on_from_the_newest_checkpoint_that_came() -> None:  # SPEC F6
    request = picture("req-1", steps=8, save_every=2)
    shown = Shown(request)
    assert shown.resumed(request) == request
    shown.take((made("checkpoint", steps=2),))
    shown.take((made("checkpoint", steps=4),))
    assert shown.take((made("checkpoint", steps=2),)) == ()  # of a replica that was lost, and came late
    assert shown.resumed(request) == replace(request, begun=4, checkpoint=b"x")


def test_a_job_that_comes_back_begins_where_it_was() -> None:  # SPEC H3
    shown = Shown(picture("req-1", steps=8, begun=4))
    assert not shown.advance(4)
    assert shown.take((made("preview", 1, 4),)) == ()
    assert shown.advance(5)


def test_a_video_is_complete_with_one_thing() -> None:
    shown = Shown(picture("req-1", n=3))
    assert not shown.is_complete
    shown.take((made("video"),))
    assert shown.is_complete


def test_latents_come_before_their_video_and_do_not_complete_a_chunk() -> None:  # SPEC H5
    shown = Shown(picture("req-1", steps=8, frames=8, hand_on=4))
    assert shown.take((made("latents", 0, 8),)) == (made("latents", 0, 8),)
    assert not shown.is_complete
    assert shown.take((made("latents", 0, 8), made("video", 0, 8))) == (made("video", 0, 8),)
    assert shown.is_complete
