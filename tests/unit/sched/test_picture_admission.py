"""What is known of a picture when it arrives: device time against a quota, deadlines, fewer steps (SPEC F2, F5)."""

import pytest
from msgspec.structs import replace
from tests.unit.sched.desk import Desk
from tests.unit.sched.diffusion.pictures import COST, picture

from headway.core.artifacts import Made
from headway.core.effects import Admitted, Send, Show
from headway.core.events import ClientGone
from headway.core.evidence import WorkerMarks
from headway.core.ids import ModelId, NodeId, RequestId
from headway.core.messages import Artifacts, Cancel, Finished, Refused, Submit
from headway.core.reports import DenoiseAbilities, DenoiseMemory, WarmShape
from headway.core.request import Content, DiffusionRequest, FinishReason, Slo
from headway.cost.diffusion import left_ns
from headway.sched.admission.quota import GpuSeconds, Quota
from headway.sched.config import RouteConfig
from headway.sched.nodes import FrontConfig
from headway.sched.registry import PolicyChoice

SLOW = replace(COST, token_ns=1e6, devices=2)  # of a step: 16.016 ms for 64 x 64, on two devices
PREDICTIVE = PolicyChoice("predictive", {"shadow_share": 0.0})


def desk(config: FrontConfig | None = None, queued_ns: int = 0) -> Desk:
    """One diffusion replica."""
    made = Desk(config or FrontConfig(), ("rep-a",))
    made.report("rep-a", role="diffusion", model="m", denoise_cost=SLOW, queued_work_ns=queued_ns, running=1)
    return made


def gpu(made: Desk) -> tuple[int, int]:
    """Reserved and used device time of the tenant, in us."""
    (found,) = [a for a in made.node.ledger.views() if a.name == "tenant/default/gpu_seconds"]
    return found.reserved, found.used


def over(made: Desk, reason: FinishReason = FinishReason.STOP, device_ns: int = 0) -> None:
    """The replica has ended it, and its stream is closed."""
    marks = WorkerMarks(NodeId("rep-a"), 0, device_ns=device_ns)
    made.message("rep-a", Finished(RequestId("req-1"), 1, reason, 0, marks))
    made.close("req-1")


def test_device_time_is_reserved_on_arrival_and_settled_on_what_was_measured() -> None:  # SPEC H6, F5
    made = desk()
    request = picture("req-1", steps=10)
    made.arrive(request)
    assert gpu(made) == (2 * left_ns(SLOW, request) // 1000, 0)
    over(made, device_ns=400_000_000)
    assert gpu(made) == (0, 400_000)


def test_a_cancelled_picture_pays_for_the_steps_that_ran() -> None:  # vllm-omni#6403
    made = desk()
    made.arrive(picture("req-1", steps=10))
    made.event(ClientGone(0, "t", RequestId("req-1")))
    assert gpu(made)[0] > 0  # its plan still runs
    over(made, FinishReason.CANCELLED, device_ns=30_000_000)
    assert gpu(made) == (0, 30_000)


def test_what_a_tenant_cannot_pay_is_refused_before_it_begins() -> None:  # SPEC F5: quotas deducted up front
    quota = Quota(gpu_seconds=GpuSeconds(limit=0.5, period_s=100.0))
    made = desk(FrontConfig(quota_default=quota))
    made.arrive(picture("req-1", steps=10))  # 0.16 s on each of two devices
    made.arrive(picture("req-2", steps=10))
    (end,) = made.ends()
    assert end.error is not None
    assert (end.request, end.error.status, end.error.code) == ("req-2", 429, "quota_exceeded")


def late(*allowed: str, begun: int = 0, steps: int = 20) -> DiffusionRequest:
    """Alone it takes 20 x 16 ms, behind 100 ms of other work; 300 ms are left."""
    slo = Slo(e2e_deadline_ns=300_000_000)
    return picture("req-1", steps=steps, slo=slo, allow_degrade=allowed, begun=begun, checkpoint=b"x" * begun)


@pytest.mark.parametrize(
    ("queued_ms", "steps"),
    [
        (0, 14),  # 300 ms less the margin, 240 ms, hold 14.98 steps of 16.016 ms
        (60, 11),  # (240 - 60) / 16.016
        (100, 10),  # 8.7 would be below half of what was asked; 12 fit if nothing is slower than forecast
    ],
)
def test_a_late_picture_gets_fewer_steps_where_that_is_allowed_and_enough(queued_ms: int, steps: int) -> None:
    # SPEC F5: with a margin, as it is lost whole when it is late
    made = desk(FrontConfig(admission=PREDICTIVE), queued_ns=queued_ms * 1_000_000)
    made.arrive(late("steps"))
    (told,) = [effect for effect in made.last if isinstance(effect, Admitted)]
    ((_, submit),) = made.sent(Submit)
    assert isinstance(submit.request, DiffusionRequest)
    assert told.degraded == (("steps", submit.request.steps),)
    assert submit.request.steps == steps
    assert left_ns(SLOW, submit.request) + queued_ms * 1_000_000 <= 300_000_000


@pytest.mark.parametrize("request_", [late(), late("model"), late("steps", steps=60)])
def test_it_is_refused_where_its_client_wants_all_steps_or_too_few_would_stay(request_: DiffusionRequest) -> None:
    made = desk(FrontConfig(admission=PREDICTIVE), queued_ns=100_000_000)
    made.arrive(request_)
    (end,) = made.ends()
    assert end.error is not None
    assert end.error.code == "slo_unattainable"


def test_a_distilled_model_answers_in_its_own_number_of_steps_where_that_is_allowed() -> None:  # SPEC F5
    route = RouteConfig(fallbacks=("distilled",))
    made = desk(FrontConfig(admission=PREDICTIVE, routes={"m": route}), queued_ns=100_000_000)
    made.join("rep-b")
    made.report("rep-b", role="diffusion", model="distilled", denoise_cost=replace(SLOW, steps=4))
    guided = replace(late("model"), guidance_scale=3.0, passes=2)
    made.arrive(guided)
    (told,) = [effect for effect in made.last if isinstance(effect, Admitted)]
    assert told.degraded == (("model", "distilled"), ("steps", 4))
    ((node, submit),) = made.sent(Submit)
    assert node == "rep-b"
    assert submit.request == replace(guided, model=ModelId("distilled"), steps=4, guidance_scale=0.0, passes=0)


@pytest.mark.parametrize("chunk", [{"hand_on": 4}, {"given_frames": 4, "content": Content(given=b"x")}], ids=str)
def test_a_chunk_of_a_session_stays_with_the_model_whose_latents_it_goes_on_from(chunk: dict[str, object]) -> None:
    route = RouteConfig(fallbacks=("distilled",), transfers_to=("distilled",))  # SPEC H5
    made = desk(FrontConfig(admission=PREDICTIVE, routes={"m": route}), queued_ns=100_000_000)
    made.join("rep-b")
    made.report("rep-b", role="diffusion", model="distilled", denoise_cost=replace(SLOW, steps=4))
    made.arrive(replace(late("model"), **chunk))
    (end,) = made.ends()
    assert end.error is not None
    assert (end.error.code, made.sent(Submit)) == ("slo_unattainable", [])


@pytest.mark.parametrize("way", ["fallbacks", "transfers_to"])
def test_no_other_model_answers_that_cannot_do_what_is_asked(way: str) -> None:  # SPEC F1, F5
    made = desk(FrontConfig(admission=PREDICTIVE, routes={"m": RouteConfig(**{way: ("plain", "able")})}), 100_000_000)
    quick = replace(SLOW, steps=4)
    for node, model, shown in (("rep-b", "plain", False), ("rep-c", "able", True)):
        made.join(node)
        told = DenoiseAbilities(image_prompts=shown)
        made.report(node, role="diffusion", model=model, denoise_cost=quick, abilities=told)
    made.arrive(replace(late("model"), image_prompts=1))
    (admitted,) = [effect for effect in made.last if isinstance(effect, Admitted)]
    assert admitted.degraded == (("model", "able"), ("steps", 4))
    assert [node for node, _ in made.sent(Submit)] == ["rep-c"]


def test_what_no_replica_of_its_model_can_do_is_refused_and_not_kept_waiting() -> None:  # SPEC F1
    made = desk()
    made.report("rep-a", role="diffusion", model="m", denoise_cost=SLOW, abilities=DenoiseAbilities())
    made.arrive(picture("req-1", content=Content(pictures=(b"x",))))
    (end,) = made.ends()
    assert end.error is not None
    assert (end.error.status, end.error.code) == (400, "unservable")
    assert "m takes no pictures to start from" in end.error.message


def test_another_model_that_would_be_late_too_is_no_answer() -> None:
    route = RouteConfig(fallbacks=("distilled",))
    made = desk(FrontConfig(admission=PREDICTIVE, routes={"m": route}), queued_ns=100_000_000)
    made.join("rep-b")
    made.report("rep-b", role="diffusion", model="distilled", denoise_cost=SLOW, queued_work_ns=10**9, running=1)
    made.arrive(late("model"))
    (end,) = made.ends()
    assert (end.error is None, end.transfer_to) == (False, None)


def test_nothing_is_reserved_while_no_replica_has_told_what_its_work_costs() -> None:
    made = Desk(FrontConfig(), ("rep-a",))
    made.arrive(picture("req-1", steps=10, model=ModelId("m")))
    assert gpu(made) == (0, 0)


def leaving(config: FrontConfig | None = None) -> Desk:
    """A picture that runs, whose client wants it saved and stopped."""
    made = desk(config)
    made.arrive(picture("req-1", steps=10))
    made.event(ClientGone(0, "t", RequestId("req-1"), saves=True))
    return made


def test_a_picture_that_leaves_is_open_until_its_replica_has_let_it_go() -> None:  # SPEC H3
    made = leaving()
    assert made.sent(Cancel) == [("rep-a", Cancel(RequestId("req-1"), 1, saves=True))]
    assert made.ends() == []
    made.event(ClientGone(0, "t", RequestId("req-1"), saves=True))
    assert made.sent(Cancel) == []
    saved = Made("checkpoint", b"x", steps=3)
    made.message("rep-a", Artifacts(RequestId("req-1"), 1, (saved,)))
    assert [effect.made for effect in made.last if isinstance(effect, Show)] == [(saved,)]
    made.message("rep-a", Finished(RequestId("req-1"), 1, FinishReason.CANCELLED, 0, WorkerMarks(NodeId("rep-a"), 0)))
    assert [(end.reason, end.error) for end in made.ends()] == [(FinishReason.CANCELLED, None)]
    made.close("req-1")
    assert set(made.levels().values()) == {0}


def test_a_picture_that_leaves_is_not_begun_again_elsewhere() -> None:  # SPEC H3
    lost = leaving()
    lost.join("rep-b")
    lost.report("rep-b", role="diffusion", model="m", denoise_cost=SLOW)
    lost.lose("rep-a")
    assert (lost.submits(), [end.reason for end in lost.ends()]) == ([], [FinishReason.CANCELLED])
    refused = leaving()
    refused.message("rep-a", Refused(RequestId("req-1"), 1, "draining", "it drains"))
    assert (refused.submits(), [end.reason for end in refused.ends()]) == ([], [FinishReason.CANCELLED])


def test_a_picture_that_leaves_while_it_waits_here_ends_at_once() -> None:  # SPEC H3
    made = Desk(FrontConfig(), ())
    made.arrive(picture("req-1", steps=10))
    made.event(ClientGone(0, "t", RequestId("req-1"), saves=True))
    assert [end.reason for end in made.ends()] == [FinishReason.CANCELLED]


def test_one_that_leaves_can_still_be_cancelled() -> None:  # SPEC H2
    made = leaving()
    made.event(ClientGone(0, "t", RequestId("req-1")))
    assert made.sent(Cancel) == [("rep-a", Cancel(RequestId("req-1"), 1))]
    assert [end.reason for end in made.ends()] == [FinishReason.CANCELLED]


MEMORY = DenoiseMemory(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, room=2 * 64 * 64)  # two pictures of 64 x 64 are decoded together


def roomy(*rooms: int) -> Desk:
    """Replicas that have so much memory."""
    names = tuple(f"rep-{number}" for number in range(len(rooms)))
    made = Desk(FrontConfig(), names)
    for name, room in zip(names, rooms, strict=True):
        memory = replace(MEMORY, room=room)
        made.report(name, role="diffusion", model="m", denoise_cost=SLOW, denoise_memory=memory)
    return made


def test_what_fits_nowhere_is_refused_on_arrival_with_needed_and_present_bytes() -> None:
    # SPEC F5, FramePack#25, ai-toolkit PR#819: out of memory after all steps are paid
    made = roomy(2 * 64 * 64, 3 * 64 * 64)
    made.arrive(picture("req-1", n=4))
    (end,) = made.ends()
    assert end.error is not None
    assert (end.reason, end.error.status, end.error.code) == (FinishReason.REJECTED, 400, "unservable")
    assert not end.error.waiting_helps
    for words in (f"needs {4 * 64 * 64} bytes", f"rep-1 has {3 * 64 * 64}", "a smaller size or fewer pictures"):
        assert words in end.error.message
    made.close("req-1")
    assert made.node.explain(picture("req-2", n=4), 0).unservable == end.error.message.replace("req-1", "req-2")


# SPEC F8
def test_a_size_that_is_warm_nowhere_is_refused_on_arrival_where_that_is_wanted() -> None:
    made = Desk(FrontConfig(), ("rep-0", "rep-1"))
    for name, side, refuses in (("rep-0", 128, True), ("rep-1", 96, True)):
        warm = (WarmShape(side, side, 1, 4),)
        made.report(name, role="diffusion", model="m", denoise_cost=SLOW, warm=warm, refuses_new=refuses)
    made.arrive(picture("req-1"))
    (end,) = made.ends()
    assert end.error is not None
    assert (end.error.status, end.error.code) == (400, "unservable")
    assert "64x64, which has not run there; warm are: " in end.error.message
    made.arrive(picture("req-2", size=96))
    assert [node for node, _ in made.sent(Submit)] == ["rep-1"]


def test_what_fits_somewhere_goes_there() -> None:
    made = roomy(2 * 64 * 64, 4 * 64 * 64)
    made.arrive(picture("req-1", n=4))
    assert [effect.dst for effect in made.last if isinstance(effect, Send)] == ["rep-1"]
    shown = {each.replica: each.reason for each in made.node.explain(picture("req-2", n=4), 0).replicas}
    assert "needs 16384 bytes" in shown[NodeId("rep-0")]
    figures = made.node.replica_figures(0)
    assert [one.memory_room_bytes for one in figures] == [2 * 64 * 64, 4 * 64 * 64]
    assert [(one.save_ns, one.interruption_error, one.warm) for one in figures] == [(None, None, None)] * 2


def test_a_smaller_model_takes_what_does_not_fit() -> None:  # SPEC F5
    made = Desk(FrontConfig(routes={"m": RouteConfig(fallbacks=("small",))}), ("rep-a", "rep-b"))
    made.report("rep-a", role="diffusion", model="m", denoise_cost=SLOW, denoise_memory=MEMORY)
    made.report("rep-b", role="diffusion", model="small", denoise_cost=SLOW)
    made.arrive(picture("req-1", n=4, allow_degrade=("model",)))
    assert [effect.dst for effect in made.last if isinstance(effect, Send)] == ["rep-b"]


def test_a_checkpoint_is_in_the_ledger_until_its_request_is_closed() -> None:  # SPEC L-2
    def kept() -> int:
        (found,) = [view for view in made.node.ledger.views() if view.name == "gateway/checkpoint_bytes"]
        return found.used

    made = desk()
    made.arrive(picture("req-1", steps=9, begun=2, checkpoint=b"x" * 10, save_every=1))
    assert kept() == 10
    for steps, size in ((3, 30), (4, 20)):
        made.message("rep-a", Artifacts(RequestId("req-1"), 1, (Made("checkpoint", b"x" * size, steps=steps),)))
        assert kept() == size
    over(made)
    assert kept() == 0
