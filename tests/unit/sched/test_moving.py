"""Pictures and videos of a replica that drains: what is long goes on elsewhere, what is short ends there (SPEC F6)."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.desk import Desk
from tests.unit.sched.diffusion.pictures import COST, picture

from headway.core.artifacts import Made
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Artifacts, Cancel, Finished, Progress, Refused
from headway.core.request import DiffusionRequest, FinishReason
from headway.sched.admission.quota import GpuSeconds, Quota
from headway.sched.dispatch import Patience
from headway.sched.nodes import FrontConfig

SLOW = replace(COST, token_ns=1e8)  # 1.6 s a step of 64 x 64
SAVE = Cancel(RequestId("req-1"), 1, saves=True)
GONE = Finished(RequestId("req-1"), 1, FinishReason.CANCELLED, 0, WorkerMarks(NodeId("rep-a"), 0))


def told(made: Desk, replica: str, *, draining: bool = False, queued_ns: int = 0) -> None:
    made.report(
        replica, role="diffusion", model="m", denoise_cost=SLOW, draining=draining, queued_work_ns=queued_ns, running=1
    )


def running(config: FrontConfig | None = None, replicas: tuple[str, ...] = ("rep-a", "rep-b")) -> Desk:
    """A picture of 20 steps that rep-a runs."""
    made = Desk(config or FrontConfig(), replicas)
    for place, replica in enumerate(replicas):
        told(made, replica, queued_ns=place)
    made.arrive(picture("req-1", steps=20))
    assert [node for node, _ in made.submits()] == ["rep-a"]
    return made


def test_a_long_one_goes_on_elsewhere_from_the_checkpoint_that_is_taken_for_it() -> None:
    made = running()
    made.message("rep-a", Progress(RequestId("req-1"), 1, 3, 20))
    told(made, "rep-a", draining=True)
    assert made.sent(Cancel) == [("rep-a", SAVE)]
    told(made, "rep-a", draining=True)
    assert made.sent(Cancel) == []  # once
    made.message("rep-a", Artifacts(RequestId("req-1"), 1, (Made("checkpoint", b"x", steps=4),)))
    made.message("rep-a", GONE)
    ((node, submit),) = made.submits()
    assert isinstance(submit.request, DiffusionRequest)
    assert (node, submit.epoch, submit.request.begun, submit.request.checkpoint) == ("rep-b", 2, 4, b"x")
    assert made.ends() == []
    assert dict(made.node.recovery_figures())["resumed"] == 1


def test_the_tenant_pays_for_what_every_replica_did() -> None:  # SPEC H6
    made = running(FrontConfig(quotas={"default": Quota(gpu_seconds=GpuSeconds(1000, 1000))}))
    told(made, "rep-a", draining=True)
    made.message("rep-a", replace(GONE, marks=WorkerMarks(NodeId("rep-a"), 0, device_ns=3_000_000_000)))
    last = WorkerMarks(NodeId("rep-b"), 0, device_ns=5_000_000_000)
    made.message("rep-b", Artifacts(RequestId("req-1"), 2, (Made("picture", b"p", steps=20),)))
    made.message("rep-b", Finished(RequestId("req-1"), 2, FinishReason.STOP, 0, last))
    made.close("req-1")
    assert [a.used for a in made.node.ledger.views() if a.name == "tenant/default/gpu_seconds"] == [8_000_000]


def test_one_that_is_soon_over_ends_where_it_is() -> None:
    made = running()
    made.message("rep-a", Progress(RequestId("req-1"), 1, 15, 20))  # 8 s are left
    told(made, "rep-a", draining=True)
    assert made.sent(Cancel) == []


@pytest.mark.parametrize("seconds", [0.0, 7.0])
def test_how_long_is_long_is_a_setting(seconds: float) -> None:
    made = running(FrontConfig(patience=Patience(move_min_s=seconds)))
    made.message("rep-a", Progress(RequestId("req-1"), 1, 15, 20))
    told(made, "rep-a", draining=True)
    assert made.sent(Cancel) == [("rep-a", SAVE)]


def test_one_stays_where_no_other_replica_would_take_it() -> None:
    alone = running(replicas=("rep-a",))
    told(alone, "rep-a", draining=True)
    assert alone.sent(Cancel) == []
    both = running()
    told(both, "rep-b", draining=True)
    told(both, "rep-a", draining=True)
    assert both.sent(Cancel) == []


def test_one_that_ends_meanwhile_has_ended() -> None:
    made = running()
    told(made, "rep-a", draining=True)
    made.message("rep-a", Artifacts(RequestId("req-1"), 1, (Made("picture", b"p", steps=20),)))
    made.message("rep-a", replace(GONE, reason=FinishReason.STOP))
    assert ([end.reason for end in made.ends()], made.submits()) == ([FinishReason.STOP], [])


def test_one_whose_replica_dies_while_it_is_saved_goes_on_all_the_same() -> None:
    made = running()
    told(made, "rep-a", draining=True)
    made.lose("rep-a")
    assert [(node, submit.epoch) for node, submit in made.submits()] == [("rep-b", 2)]
    made.join("rep-c")
    told(made, "rep-c")
    told(made, "rep-b", draining=True)
    assert made.sent(Cancel) == [("rep-b", replace(SAVE, epoch=2))]  # and it can move again


def test_one_that_was_refused_while_it_was_asked_back_goes_elsewhere() -> None:
    made = running()
    told(made, "rep-a", draining=True)
    made.message("rep-a", Refused(RequestId("req-1"), 1, "draining", "it drains"))
    assert [node for node, _ in made.submits()] == ["rep-b"]
