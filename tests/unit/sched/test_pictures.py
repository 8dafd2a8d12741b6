import pytest
from msgspec.structs import replace
from tests.unit.sched.desk import Desk
from tests.unit.sched.diffusion.pictures import picture

from headway.core.artifacts import Made
from headway.core.effects import End, Show
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Artifacts, Finished, Progress, Submit
from headway.core.request import DiffusionRequest, FinishReason

REQUEST = RequestId("req-1")
CHECKPOINT, PREVIEW, PICTURE = (Made(kind, b"x", steps=4) for kind in ("checkpoint", "preview", "picture"))


def asked(**more: object) -> DiffusionRequest:
    return picture("req-1", **more)  # type: ignore[arg-type]  # fields by name


def desk(request: DiffusionRequest) -> tuple[Desk, str, str]:
    """A front whose request runs; its owner and the other replica."""
    desk = Desk()
    for node in ("rep-a", "rep-b"):
        desk.report(node, role="diffusion", model="m")
    desk.arrive(request)
    ((owner, _),) = desk.sent(Submit)
    return desk, owner, "rep-a" if owner == "rep-b" else "rep-b"


def shows(desk: Desk) -> list[Show]:
    return [effect for effect in desk.last if isinstance(effect, Show)]


def failed(code: str) -> Finished:
    marks = WorkerMarks(NodeId("rep-a"), 0)
    return Finished(REQUEST, 1, FinishReason.REJECTED, 0, marks, "the reason", code=code)


def test_progress_and_what_was_made_reach_the_client_in_order() -> None:  # SPEC H2
    front, owner, _ = desk(asked(steps=8))
    front.message(owner, Progress(REQUEST, 1, 4, 8))
    assert shows(front) == [Show(REQUEST, 4, 8)]
    front.message(owner, Artifacts(REQUEST, 1, (PREVIEW,)))
    assert shows(front) == [Show(REQUEST, 4, 8, (PREVIEW,))]
    front.message(owner, Progress(REQUEST, 1, 4, 8))
    assert shows(front) == []


def test_a_replica_that_does_not_own_it_or_speaks_of_an_older_epoch_is_not_heard() -> None:
    front, owner, other = desk(asked(steps=8))
    front.message(other, Progress(REQUEST, 1, 4, 8))
    front.message(owner, Artifacts(REQUEST, 0, (PREVIEW,)))
    assert not [effect for effect in front.all if isinstance(effect, Show)]
    assert front.node.book.stale_dropped == 2


def test_after_the_loss_of_its_replica_a_request_goes_on_from_the_newest_checkpoint() -> None:  # SPEC F6, PR#2729
    request = asked(steps=8, save_every=4)
    front, owner, other = desk(request)
    front.message(owner, Progress(REQUEST, 1, 4, 8))
    front.message(owner, Artifacts(REQUEST, 1, (CHECKPOINT, PREVIEW)))
    front.lose(owner)
    ((again, submit),) = front.sent(Submit)
    assert (again, submit.epoch) == (other, 2)
    assert submit.request == replace(request, begun=4, checkpoint=b"x")
    front.message(other, Artifacts(REQUEST, 2, (PREVIEW, PICTURE)))
    assert shows(front) == [Show(REQUEST, 4, 8, (PICTURE,))]


def test_without_a_checkpoint_it_begins_anew_and_shows_nothing_twice() -> None:
    front, owner, other = desk(asked(steps=8))
    front.message(owner, Progress(REQUEST, 1, 5, 8))
    front.lose(owner)
    ((_, submit),) = front.sent(Submit)
    assert submit.request.begun == 0  # type: ignore[union-attr]  # it is a picture
    front.message(other, Progress(REQUEST, 2, 1, 8))
    assert shows(front) == []


def test_a_replica_lost_after_the_last_picture_costs_nothing() -> None:
    front, owner, _ = desk(asked(steps=4))
    front.message(owner, Artifacts(REQUEST, 1, (PICTURE,)))
    front.lose(owner)
    assert [(end.reason, end.error) for end in front.last if isinstance(end, End)] == [(FinishReason.STOP, None)]


@pytest.mark.parametrize(("code", "status"), [("bad_input", 400), ("unservable", 400), ("out_of_memory", 500)])
def test_an_error_of_the_request_itself_reaches_its_client_and_says_nothing_about_the_replica(
    code: str, status: int
) -> None:  # vllm-omni#2327, #4634
    front, owner, _ = desk(asked())
    for _ in range(9):  # the breaker would have opened
        front.message(owner, failed(code))
    (end,) = [effect for effect in front.all if isinstance(effect, End)]
    assert end.error is not None
    assert (end.error.status, end.error.code, end.error.waiting_helps) == (status, code, False)
    assert "the reason" in end.error.message
    front.close("req-1")
    assert REQUEST not in front.node.book.requests
    assert {one.breaker for one in front.node.replica_figures(0)} == {"closed"}
