import pytest

from headway.core.effects import RunStep
from headway.core.events import MessageArrived, StepDone
from headway.core.ids import NodeId
from headway.core.messages import ResetPrefixCache
from headway.core.plans import Chunk, StepPlan, StepTiming
from headway.cost.llm import StepShape
from headway.live.eventlog import Entry
from headway.live.steps import StepRecord, steps_of

PREFILL = StepPlan(1, 0, "prefill", chunks=(Chunk(0, 4, 3, True),), prefill_tokens=3)
DECODE = StepPlan(2, 1, "decode", decodes=1, kv_tokens=8)


def done(step: int, launched_ns: int, done_ns: int) -> StepDone:
    return StepDone(done_ns + 5, f"step-{step}", step, (), (), StepTiming(launched_ns, launched_ns + 2, done_ns))


def test_a_step_on_an_idle_executor_has_host_time_and_its_shape() -> None:
    turns = [
        Entry(MessageArrived(100, "m", NodeId("a"), ResetPrefixCache(1)), [RunStep(PREFILL)]),
        Entry(done(1, 130, 200), [RunStep(DECODE)]),
        Entry(done(2, 215, 260), []),
    ]
    shape = StepShape(0, 0, 3, 3 * 4 + 6, chunks=1, chunk_context=7)
    assert list(steps_of(turns)) == [
        StepRecord(1, shape, began_ns=130, done_ns=200, host_ns=30, is_after_step=False),
        StepRecord(2, StepShape(1, 8), began_ns=215, done_ns=260, host_ns=15, is_after_step=True),
    ]


def test_a_step_planned_behind_another_begins_with_its_end_and_tells_no_host_time() -> None:
    turns = [
        Entry(MessageArrived(100, "m", NodeId("a"), ResetPrefixCache(1)), [RunStep(PREFILL), RunStep(DECODE)]),
        Entry(done(1, 130, 200), []),
        Entry(done(2, 140, 260), []),
    ]
    _, second = steps_of(turns)
    assert (second.began_ns, second.device_ns, second.host_ns) == (200, 60, None)


def test_results_of_a_step_that_nobody_planned_here_are_left_out() -> None:
    assert list(steps_of([Entry(done(7, 1, 2), [])])) == []


@pytest.mark.parametrize(("plan", "rows"), [(PREFILL, 1), (DECODE, 1)])
def test_rows_are_decodes_and_chunks(plan: StepPlan, rows: int) -> None:
    turns = [
        Entry(MessageArrived(1, "m", NodeId("a"), ResetPrefixCache(1)), [RunStep(plan)]),
        Entry(done(plan.step, 2, 3), []),
    ]
    assert next(steps_of(turns)).rows == rows
