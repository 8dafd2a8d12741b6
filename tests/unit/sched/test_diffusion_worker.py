from tests.unit.sched.diffusion.pictures import picture
from tests.unit.sched.router.views import llm

from headway.core.effects import Effect, RunDenoise, Send
from headway.core.events import DenoiseDone, Event, MessageArrived, PeerJoined, PeerLost
from headway.core.ids import NodeId
from headway.core.messages import (
    Accepted,
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
from headway.core.plans import StepTiming
from headway.core.request import FinishReason
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.nodes import DiffusionNode, Membership, WorkerConfig

FRONT = NodeId("front-0")


class Easel:
    """A DiffusionNode alone."""

    def __init__(self) -> None:
        member = Membership(NodeId("rep-d"), 1, (FRONT,))
        self.node = DiffusionNode(member, DiffusionMachine(DiffusionParams()), "m", WorkerConfig())
        self.steps: list[int] = []
        self.last = self.event(PeerJoined(0, "t", FRONT, 1))

    def event(self, event: Event) -> list[Effect]:
        self.last = self.node.handle(event)
        self.node.check_invariants()
        self.steps += [effect.plan.step for effect in self.last if isinstance(effect, RunDenoise)]
        return self.last

    def message(self, message: Message) -> list[Message]:
        return sent(self.event(MessageArrived(0, "t", FRONT, message)))

    def step(self) -> list[Message]:
        return sent(self.event(DenoiseDone(50, "t", self.steps.pop(0), StepTiming(0, 10, 50))))


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


def test_a_cancelled_request_ends_at_once_and_says_nothing_more() -> None:  # SPEC H2
    easel = Easel()
    easel.message(Submit(picture("req-1"), 1, number=1))
    (finished,) = easel.message(Cancel(picture("req-1").id, 1))
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.CANCELLED
    assert easel.step() == []


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
