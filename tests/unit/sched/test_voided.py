from tests.unit.sched.router.views import llm

from headway.core.ids import NodeId, RequestId
from headway.core.plans import Chunk, NewSequence, StepPlan
from headway.core.request import LlmRequest
from headway.sched.stays import Stay
from headway.sched.voided import Voided


def stays(*seqs: int) -> dict[int, Stay]:
    held = {seq: Stay(llm(f"req-{seq}"), 1, NodeId("front-0"), seq, 0) for seq in seqs}
    for stay in held.values():
        stay.outputs.extend((7, 8))
    return held


def new(seq: int) -> NewSequence:
    request: LlmRequest = llm(f"req-{seq}")
    return NewSequence(seq, request.id, request.prompt, (), request.sampling)


def prefill(step: int, *seqs: int, preempt: tuple[int, ...] = (), leave: tuple[int, ...] = ()) -> StepPlan:
    chunks = tuple(Chunk(seq, 0, 4, False) for seq in seqs)
    return StepPlan(step, 0, "prefill", leave=leave, preempt=preempt, chunks=chunks)


def test_an_intact_executor_gets_plans_untouched() -> None:
    plan = prefill(1, 1)
    assert Voided().amend(plan, stays(1)) is plan


def test_everybody_leaves_once_and_comes_back_with_the_tokens_that_landed() -> None:  # SPEC A11
    voided, held = Voided(), stays(1, 2)
    voided.fail([StepPlan(5, 4, "prefill", leave=(9,), new=(new(3),))], held)
    first = voided.amend(prefill(6, 1, preempt=(1, 2)), held)
    assert first.leave == (9, 3, 1, 2)
    assert first.preempt == ()
    assert [(item.seq, item.request, item.outputs) for item in first.new] == [(1, RequestId("req-1"), (7, 8))]
    second = voided.amend(prefill(7, 1, 2), held)
    assert second.leave == ()
    assert [item.seq for item in second.new] == [2]


def test_who_ended_meanwhile_is_not_introduced_again() -> None:
    voided, held = Voided(), stays(1, 2)
    voided.fail([prefill(5, 1, 2)], held)
    voided.amend(prefill(6, 1), held)
    assert voided.amend(prefill(7, leave=(2,)), held).leave == (2,)
    plan = prefill(8, 1)
    assert voided.amend(plan, held) is plan


def test_a_stay_that_ends_before_its_plan_is_launched_is_introduced_all_the_same() -> None:
    voided, held = Voided(), stays(1, 2)
    voided.fail([prefill(5, 1, 2)], held)
    del held[2]  # cancelled while the group agreed on the plan; its blocks are written by it
    assert [one.seq for one in voided.amend(prefill(6, 1, 2), held).new] == [1, 2]
