import pytest
from msgspec.structs import replace
from tests.unit.sched.diffusion.pictures import COST, picture
from tests.unit.sched.router.views import llm

from headway.core.artifacts import CARRIED_BYTES_MAX, ArtifactKind, Made, RowFailed, RowMade, StageTimes
from headway.core.effects import Effect, Restart, RunDenoise, Send, WakeAt
from headway.core.events import DenoiseDone, Event, MessageArrived, PeerJoined, PeerLost, StepFailed, TimerFired
from headway.core.ids import NodeId, TimerId
from headway.core.messages import (
    Accepted,
    Artifacts,
    Cancel,
    Drain,
    Finished,
    Holding,
    Message,
    Progress,
    Refused,
    Report,
    Submit,
    Undrain,
    WhatDoYouHold,
)
from headway.core.plans import DenoisePlan, StepTiming
from headway.core.reports import DenoiseMemory, WarmShape
from headway.core.request import Content, FinishReason
from headway.core.units import NS_PER_S
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.holdings import Holdings
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams, Preemption, Watchdog
from headway.sched.diffusion.warmth import Warmth
from headway.sched.nodes import DiffusionNode, Membership, WorkerConfig
from headway.sched.registry import PolicyChoice

FRONT = NodeId("front-0")


class Easel:
    """A DiffusionNode alone."""

    def __init__(
        self,
        belief: DenoiseCost | None = None,
        params: DiffusionParams | None = None,
        holdings: Holdings | None = None,
        warmth: Warmth | None = None,
    ) -> None:
        member = Membership(NodeId("rep-d"), 1, (FRONT,))
        machine = DiffusionMachine(params or DiffusionParams(), belief, holdings, warmth)
        self.node = DiffusionNode(member, machine, "m", WorkerConfig())
        self.steps: list[int] = []
        self.last = self.event(PeerJoined(0, "t", FRONT, 1))

    def event(self, event: Event) -> list[Effect]:
        self.last = self.node.handle(event)
        self.node.check_invariants()
        self.steps += [effect.plan.step for effect in self.last if isinstance(effect, RunDenoise)]
        return self.last

    def message(self, message: Message) -> list[Message]:
        return sent(self.event(MessageArrived(0, "t", FRONT, message)))

    def step(self, **more: object) -> list[Message]:
        done = DenoiseDone(50, "t", self.steps.pop(0), StepTiming(0, 10, 50), **more)  # type: ignore[arg-type]  # fields by name
        return sent(self.event(done))


def sent(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send) and not isinstance(effect.message, Report)]


def test_reports_progress_per_step_and_finishes_with_its_device_time() -> None:  # SPEC H2, H6
    easel = Easel()
    assert easel.message(Submit(picture("req-1", steps=2), 1, number=1)) == [Accepted(picture("req-1").id, 1)]
    assert easel.step() == [Progress(picture("req-1").id, 1, 1, 2)]
    progress, finished = easel.step()
    assert progress == Progress(picture("req-1").id, 1, 2, 2)
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.output_tokens, finished.marks.device_ns) == (FinishReason.STOP, 0, 80)
    assert easel.steps == []


def test_a_cancelled_request_ends_with_the_step_that_is_under_way_and_is_charged_for_it_once() -> None:
    """SPEC H2, H6: the device goes on with that step, whoever has left."""
    easel = Easel()
    easel.message(Submit(picture("req-1"), 1, number=1))
    for _ in range(2):
        assert easel.message(Cancel(picture("req-1").id, 1)) == []
    assert not easel.node.worker.is_idle, "a replica that ended here would not tell what the step took"
    (finished,) = easel.step()
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.marks.device_ns) == (FinishReason.CANCELLED, 40)
    assert easel.node.worker.is_idle
    assert easel.steps == []


def test_one_that_is_cancelled_is_not_saved_any_more() -> None:  # SPEC H2
    easel = Easel()
    easel.message(Submit(picture("req-1"), 1, number=1))
    easel.step()
    easel.message(Cancel(picture("req-1").id, 1))
    assert easel.message(Cancel(picture("req-1").id, 1, saves=True)) == []
    (finished,) = easel.step()
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.CANCELLED


def test_a_cancelled_request_that_waits_ends_at_once_and_costs_nothing() -> None:  # SPEC H2, H6
    easel = Easel()
    for number in (1, 2):
        easel.message(Submit(picture(f"req-{number}", width=8 * number), 1, number=number))
    (finished,) = easel.message(Cancel(picture("req-2").id, 1))
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.marks.device_ns) == (FinishReason.CANCELLED, 0)


@pytest.mark.parametrize("how", ["its row", "all"])
def test_a_cancelled_request_whose_step_failed_is_cancelled_and_no_failure(how: str) -> None:  # SPEC H2
    easel = Easel()
    easel.message(Submit(picture("req-1"), 1, number=1))
    easel.message(Cancel(picture("req-1").id, 1))
    if how == "all":
        (finished,) = sent(easel.event(StepFailed(50, "t", easel.steps.pop(0), "it broke")))
    else:
        (finished,) = easel.step(failed=(RowFailed(1, "out_of_memory", "too large"),))
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.error) == (FinishReason.CANCELLED, None)


def test_a_cancelled_request_that_is_sent_again_by_its_front_is_taken_anew() -> None:
    easel = Easel()
    easel.message(Submit(picture("req-1", steps=1), 1, number=1))
    easel.message(Cancel(picture("req-1").id, 1))
    assert easel.message(Submit(picture("req-1", steps=1), 2, number=2)) == [Accepted(picture("req-1").id, 2)]
    assert easel.step() == []  # nobody asks for the end of the first
    *_, finished = easel.step()
    assert isinstance(finished, Finished)
    assert (finished.epoch, finished.reason) == (2, FinishReason.STOP)


def test_refuses_text_and_what_comes_while_draining() -> None:  # SPEC A11
    easel = Easel()
    (refused,) = easel.message(Submit(llm("req-1"), 1, number=1))
    assert isinstance(refused, Refused)
    assert refused.code == "unservable"
    easel.message(Drain("maintenance"))
    (refused,) = easel.message(Submit(picture("req-2"), 1, number=2))
    assert isinstance(refused, Refused)
    assert refused.code == "draining"
    easel.message(Undrain("done"))
    assert not [said for said in easel.message(Submit(picture("req-3"), 1, number=3)) if isinstance(said, Refused)]


def test_says_what_it_holds_until_its_front_is_lost() -> None:
    easel = Easel()
    easel.message(Submit(picture("req-1"), 1, number=1))
    (holding,) = easel.message(WhatDoYouHold(3))
    assert isinstance(holding, Holding)
    assert [held.request for held in holding.held] == ["req-1"]
    easel.event(PeerLost(0, "t", FRONT, 1))
    assert easel.step() == []
    assert easel.steps == []


def test_an_old_epoch_is_ignored_and_a_newer_one_replaces_it() -> None:
    easel = Easel()
    easel.message(Submit(picture("req-1"), 2, number=1))
    assert easel.message(Submit(picture("req-1"), 1, number=2)) == []
    assert easel.message(Submit(picture("req-1"), 3, number=3)) == [Accepted(picture("req-1").id, 3)]
    assert easel.message(Cancel(picture("req-1").id, 2)) == []


def test_passes_on_what_was_made_before_it_says_that_it_is_over() -> None:  # SPEC H2
    easel = Easel()
    request = picture("req-1", steps=4, content=Content(previews=1), begun=1, checkpoint=b"x")
    easel.message(Submit(request, 1, number=1))
    easel.step()
    shown = Made("preview", b"half", index=7, steps=3)  # its own count
    progress, artifacts = easel.step(made=(RowMade(1, (shown,)),))
    assert progress == Progress(request.id, 1, 3, 4)
    assert artifacts == Artifacts(request.id, 1, (replace(shown, index=0),))
    final = RowMade(1, (Made("picture", b"whole"),))
    assert [type(said) for said in easel.step(made=(final,))] == [Progress, Artifacts, Finished]


@pytest.mark.parametrize("code", ["bad_input", "out_of_memory"])
def test_a_row_that_failed_by_itself_ends_and_the_batch_goes_on(code: str) -> None:
    # vllm-omni#4634: one bad request closes the executor; #2327: out of memory is swallowed, later ones are broken
    easel = Easel()
    for number in (1, 2):
        easel.message(Submit(picture(f"req-{number}", steps=2), 1, number=number))
    easel.step()
    easel.step()
    finished, *others = easel.step(failed=(RowFailed(2, code, "the reason"),))
    assert isinstance(finished, Finished)
    assert (finished.request, finished.reason, finished.code) == ("req-2", FinishReason.REJECTED, code)
    assert finished.error == "the reason"
    assert others == []
    easel.message(Submit(picture("req-3", steps=1), 1, number=3))
    assert [type(said) for said in easel.step()] == [Progress, Finished]


def test_what_the_engine_failed_goes_back_to_the_front() -> None:  # vllm-omni PR#2729
    easel = Easel()
    for number in (1, 2):
        easel.message(Submit(picture(f"req-{number}"), 1, number=number))
    told = sent(easel.event(StepFailed(50, "t", easel.steps.pop(0), "device lost")))
    assert [(type(said), getattr(said, "reason", None)) for said in told] == [(Finished, FinishReason.LOST)]
    assert easel.steps  # the other one was not in it
    (finished,) = easel.step(failed=(RowFailed(2, "engine_failed", "nan"),))
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.code) == (FinishReason.LOST, None)


def test_the_evidence_says_where_the_time_went_and_that_every_device_was_busy() -> None:  # SPEC I1, H6, F3
    easel = Easel(DenoiseCost(replace(COST, devices=4)))
    easel.message(Submit(picture("req-1", steps=2), 1, number=1))
    easel.step(stages=StageTimes(text_encode_ns=7, denoise_ns=20, image_hits=1))
    *_, finished = easel.step(stages=StageTimes(denoise_ns=20, vae_decode_ns=9))
    assert isinstance(finished, Finished)
    marks = finished.marks
    assert (marks.text_encode_ns, marks.vae_encode_ns, marks.vae_decode_ns) == (7, 0, 9)
    assert (marks.device_ns, marks.steps) == (4 * 80, 2)
    assert easel.node.worker.numbers.counters()["image_cache_hits"] == 1  # SPEC G2


def test_who_left_in_the_middle_of_a_step_leaves_its_share_to_nobody() -> None:  # SPEC H6
    easel = Easel()
    for number in (1, 2, 3):
        easel.message(Submit(picture(f"req-{number}", steps=1), 1, number=number))
    easel.step()  # of the first
    assert easel.message(Cancel(picture("req-2").id, 1)) == []
    ends = {end.request: end for end in easel.step() if isinstance(end, Finished)}
    assert {end: (one.reason, one.marks.device_ns) for end, one in ends.items()} == {
        "req-2": (FinishReason.CANCELLED, 20),
        "req-3": (FinishReason.STOP, 20),
    }


def test_an_engine_that_is_stuck_gives_all_back_and_asks_to_be_started_anew() -> None:  # ComfyUI#3670
    watchdog = Watchdog(factor=2.0, floor_s=0.75, more_s=0.25)
    easel = Easel(DenoiseCost(COST), DiffusionParams(batch_max=1, watchdog=watchdog))
    for number in (1, 2):
        easel.message(Submit(picture(f"req-{number}"), 1, number=number))
    easel.event(TimerFired(NS_PER_S - 1, "t", TimerId("stuck")))
    assert sent(easel.last) == []
    told = easel.event(TimerFired(NS_PER_S, "t", TimerId("stuck")))
    assert [said.reason for said in sent(told) if isinstance(said, Finished)] == [FinishReason.LOST] * 2
    (restart,) = [effect for effect in told if isinstance(effect, Restart)]
    assert "has run for 1 s" in restart.reason
    (refused,) = easel.message(Submit(picture("req-3"), 1, number=3))
    assert isinstance(refused, Refused)
    assert easel.steps == [1]


def test_a_plan_may_take_for_ever_where_nothing_is_believed_or_nobody_watches() -> None:
    for belief, watchdog in ((None, Watchdog()), (DenoiseCost(COST), None)):
        easel = Easel(belief, DiffusionParams(watchdog=watchdog))
        easel.message(Submit(picture("req-1"), 1, number=1))
        assert not [effect for effect in easel.last if isinstance(effect, WakeAt) and effect.timer == "stuck"]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_time_of_an_interruption_is_evidence_of_its_own(is_cancelled: bool) -> None:  # SPEC I2
    params = DiffusionParams(order=PolicyChoice("sjf"), batch_max=1, preempt=Preemption(price_s=0.0))
    easel = Easel(DenoiseCost(COST), params)
    video, picture_ = picture("req-1", steps=2, size=256), picture("req-2", steps=1)
    easel.message(Submit(video, 1, number=1))
    easel.message(Submit(picture_, 1, number=2))

    def step(at_ns: int, took_ns: int = 272_000) -> list[Message]:
        timing = StepTiming(0, 10, 10 + took_ns)
        return sent(easel.event(DenoiseDone(at_ns, "t", easel.steps.pop(0), timing)))

    step(100)  # the picture begins
    if is_cancelled:
        (finished,) = sent(easel.event(MessageArrived(400, "t", FRONT, Cancel(video.id, 1))))
    else:
        step(400, 32_000)
        *_, finished = step(900)
    assert isinstance(finished, Finished)
    marks = finished.marks
    assert (finished.request, marks.preemptions, marks.preempted_ns) == ("req-1", 1, 300)
    assert marks.steps == (1 if is_cancelled else 2)
    assert marks.device_ns == (272_000 if is_cancelled else 544_000)  # nothing of the picture's


@pytest.mark.parametrize("kind", ["picture", "video", "latents"])
def test_a_result_that_no_message_carries_fails_its_row_and_no_other(kind: ArtifactKind) -> None:  # SPEC H5
    easel = Easel()
    large, small = (picture(f"req-{number}", steps=1) for number in range(2))
    done: list[Message] = []
    for request, size in ((large, CARRIED_BYTES_MAX + 1), (small, 9)):
        easel.message(Submit(request, 1, number=1))
        (row,) = (row for effect in easel.last if isinstance(effect, RunDenoise) for row in effect.plan.rows)
        done += easel.step(made=(RowMade(row.seq, (Made(kind, bytes(size), 0, 1),)),))
    ends = {message.request: (message.reason, message.code) for message in done if isinstance(message, Finished)}
    assert ends == {
        large.id: (FinishReason.REJECTED, "result_too_large"),
        small.id: (FinishReason.STOP, None),
    }
    assert [message.request for message in done if isinstance(message, Artifacts)] == [small.id]


def test_a_checkpoint_that_could_not_travel_with_its_request_is_not_told() -> None:
    easel = Easel()
    brought = Content(pictures=(bytes(CARRIED_BYTES_MAX - 100),))
    request = replace(picture("req-1", steps=3), save_every=1, content=brought)
    easel.message(Submit(request, 1, number=1))
    told: list[Message] = []
    for size in (101, 100):
        (row,) = (row for effect in easel.last if isinstance(effect, RunDenoise) for row in effect.plan.rows)
        told += easel.step(made=(RowMade(row.seq, (Made("checkpoint", bytes(size), 0, 1),)),))
    assert [len(message.made[0].body) for message in told if isinstance(message, Artifacts)] == [100]


def plan_in(easel: Easel) -> DenoisePlan:
    (plan,) = (effect.plan for effect in easel.last if isinstance(effect, RunDenoise))
    return plan


def test_one_that_is_to_be_saved_goes_with_the_checkpoint_of_its_next_step() -> None:  # SPEC H3
    easel = Easel()
    request = picture("req-1", steps=6)  # no checkpoints on its way
    easel.message(Submit(request, 1, number=1))
    easel.step()
    assert easel.message(Cancel(request.id, 1, saves=True)) == []
    assert easel.step() == [Progress(request.id, 1, 2, 6)]  # the step that ran was not to be saved
    assert plan_in(easel).save == (1,)
    saved = Made("checkpoint", b"state", steps=3)
    progress, artifacts, finished = easel.step(made=(RowMade(1, (saved,)),))
    assert (progress, artifacts) == (Progress(request.id, 1, 3, 6), Artifacts(request.id, 1, (saved,)))
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.CANCELLED
    easel.message(Submit(picture("req-2"), 1, number=2))
    assert plan_in(easel).leave == (1,)


def test_one_that_is_to_be_saved_and_has_one_step_left_is_finished() -> None:  # SPEC H3
    easel = Easel()
    easel.message(Submit(picture("req-1", steps=2), 1, number=1))
    easel.message(Cancel(picture("req-1").id, 1, saves=True))
    easel.step()
    assert plan_in(easel).save == ()
    _, finished = easel.step()
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.STOP


def test_of_one_that_waits_nothing_is_to_be_saved() -> None:  # SPEC H3
    easel = Easel()
    easel.message(Submit(picture("req-1"), 1, number=1))
    easel.message(Submit(picture("req-2", size=128), 1, number=2))
    (finished,) = easel.message(Cancel(picture("req-2").id, 1, saves=True))
    assert isinstance(finished, Finished)
    assert (finished.request, finished.reason) == ("req-2", FinishReason.CANCELLED)


def crowded(*, saves: bool) -> Easel:
    """A long picture has done its first step, and a short one may interrupt it."""
    params = DiffusionParams(order=PolicyChoice("sjf"), batch_max=1, preempt=Preemption(price_s=0.0))
    easel = Easel(DenoiseCost(COST), params)
    easel.message(Submit(picture("req-1", steps=9, size=256), 1, number=1))
    if saves:
        easel.message(Cancel(picture("req-1").id, 1, saves=True))
    easel.message(Submit(picture("req-2", steps=1), 1, number=2))
    took(easel, 272_000)
    return easel


def took(easel: Easel, device_ns: int, **more: object) -> list[Message]:
    timing = StepTiming(0, 10, 10 + device_ns)
    return sent(easel.event(DenoiseDone(50, "t", easel.steps.pop(0), timing, **more)))  # type: ignore[arg-type]  # fields by name


def test_the_steps_of_one_that_gave_way_are_saved_when_its_turn_comes() -> None:  # SPEC H3, F6
    easel = crowded(saves=False)
    assert [row.seq for row in plan_in(easel).rows] == [2]
    assert easel.message(Cancel(picture("req-1").id, 1, saves=True)) == []
    took(easel, 32_000)
    assert ([row.seq for row in plan_in(easel).rows], plan_in(easel).save) == ([1], (1,))
    *_, finished = took(easel, 272_000, made=(RowMade(1, (Made("checkpoint", b"x", steps=2),)),))
    assert isinstance(finished, Finished)
    assert (finished.request, finished.reason) == ("req-1", FinishReason.CANCELLED)


def test_nobody_interrupts_one_that_is_being_saved() -> None:  # SPEC H3
    easel = crowded(saves=True)
    assert ([row.seq for row in plan_in(easel).rows], plan_in(easel).save) == ([1], (1,))


def test_the_ledger_is_told_empty_after_a_cancelled_request() -> None:  # SPEC L-2: after idle every level is zero
    memory = DenoiseMemory(10.0, 0.0, 100.0, 0.0, 0.0, 0.0, room=1 << 20)
    easel = Easel(holdings=Holdings("rep-d", memory, COST))

    def told() -> list[int]:
        reports = [e.message.report for e in easel.last if isinstance(e, Send) and isinstance(e.message, Report)]
        return [view.used for report in reports for view in report.accounts if view.name == "device/rep-d/bytes"]

    easel.message(Submit(picture("req-1", steps=9), 1, number=1))
    easel.event(TimerFired(NS_PER_S, "t", TimerId("report")))
    assert told() == [110]
    easel.event(MessageArrived(2 * NS_PER_S, "t", FRONT, Cancel(picture("req-1").id, 1)))
    assert told() == [100]  # its plan still runs
    done = DenoiseDone(3 * NS_PER_S, "t", easel.steps.pop(0), StepTiming(0, 10, 50))
    easel.event(done)
    assert told() == [0]


# SPEC F8
def test_a_request_that_waits_for_its_shape_is_cold_and_the_next_is_not() -> None:
    easel = Easel(DenoiseCost(COST), warmth=Warmth((WarmShape(128, 128, 1, 4),)))
    told = []
    for name, size in (("req-1", 64), ("req-2", 64), ("req-3", 128)):
        easel.message(Submit(picture(name, steps=1, size=size), 1, number=1))
        if name == "req-1":  # in two slices
            assert [*easel.step(), *easel.step()] == []
        *_, finished = easel.step()
        assert isinstance(finished, Finished)
        told.append(finished.marks.is_cold)
    assert told == [True, False, False]
    easel.event(TimerFired(10**9, "t", TimerId("report")))
    reports = [
        effect.message for effect in easel.last if isinstance(effect, Send) and isinstance(effect.message, Report)
    ]
    assert reports[-1].report.warm == (WarmShape(64, 64, 1, 1), WarmShape(128, 128, 1, 4))


# SPEC F8, H6: a slice between its steps is nothing of it.
def test_one_that_is_cancelled_while_a_slice_runs_is_over_at_once() -> None:
    easel = Easel(DenoiseCost(COST), warmth=Warmth((WarmShape(64, 64, 1, 4),)))
    easel.message(Submit(picture("req-1"), 1, number=1))
    easel.message(Submit(picture("req-2", size=128), 1, number=2))
    easel.step()  # of the first; now a slice runs
    (finished,) = sent(easel.event(MessageArrived(100, "t", FRONT, Cancel(picture("req-1").id, 1))))
    assert isinstance(finished, Finished)
    assert (finished.request, finished.reason) == ("req-1", FinishReason.CANCELLED)
    assert [*easel.step(), *easel.step()] == []
    assert [isinstance(one, Finished) for one in [*easel.step(), *easel.step(), *easel.step()]][-1]
