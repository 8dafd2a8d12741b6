from typing import Any

import pytest

from headway.core.errors import EngineError
from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan, Swap
from headway.core.request import SamplingParams
from headway.engines.synthetic.engine import SyntheticEngine, SyntheticParams
from headway.engines.synthetic.tokens import reference

PROMPT = tuple(range(1, 8))
GREEDY = SamplingParams(max_tokens=6, temperature=0)
EXPECTED = reference(PROMPT, GREEDY, 32_000, (2,))[0]
PARAMS = SyntheticParams(kv_blocks=16, block_size=4, host_slots=4, check=True)


def step(number: int, **change: Any) -> StepPlan:  # Any: fields of StepPlan
    return StepPlan(number, number - 1, "mixed", **change)


def new(outputs: tuple[int, ...] = ()) -> NewSequence:
    return NewSequence(1, RequestId("req-1"), PROMPT, outputs, GREEDY)


def decoded(engine: SyntheticEngine, first: int, count: int, grants: dict[int, int]) -> list[int]:
    tokens = []
    for number in range(first, first + count):
        grant = ((1, grants[number]),) if number in grants else ()
        tokens += engine.apply(step(number, grant=grant, decodes=1))[1]
    return tokens


def test_prefill_in_chunks_then_decode_gives_the_reference() -> None:  # SPEC B7
    engine = SyntheticEngine(PARAMS)
    assert engine.apply(step(1, new=(new(),), chunks=(Chunk(1, 0, 3, False, (5, 2)),)))[1] == ()
    tokens = list(engine.apply(step(2, chunks=(Chunk(1, 3, 4, True),)))[1])
    tokens += engine.apply(step(3, join=(Join(1, step=2),), decodes=1))[1]
    tokens += decoded(engine, 4, 4, {4: 9, 7: 10})
    assert tokens == EXPECTED


def test_preemption_keeps_the_tokens_and_computes_the_kv_again() -> None:  # SPEC B4
    engine = SyntheticEngine(PARAMS)
    engine.apply(step(1, new=(new(),), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    engine.apply(step(2, join=(Join(1, step=1),), decodes=1))
    engine.apply(step(3, preempt=(1,)))
    assert engine.apply(step(4, chunks=(Chunk(1, 0, 9, True, (8, 7, 6)),)))[1] == (EXPECTED[2],)


def test_swap_brings_the_kv_back() -> None:  # SPEC B4
    engine = SyntheticEngine(PARAMS)
    engine.apply(step(1, new=(new(),), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    engine.apply(step(2, preempt=(), pause=(1,), swap_out=(Swap(1, (5, 2), (0, 1)),)))
    tokens = engine.apply(step(3, swap_in=(Swap(1, (11, 12), (0, 1)),), join=(Join(1, token=EXPECTED[0]),), decodes=1))
    assert tokens[1] == (EXPECTED[1],)


def test_blocks_read_here_and_written_there_go_on_exactly() -> None:  # SPEC C4
    source, destination = SyntheticEngine(PARAMS), SyntheticEngine(PARAMS)
    source.apply(step(1, new=(new(),), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    destination.write_blocks((3, 4), source.read_blocks((5, 2)))
    adopted = new((EXPECTED[0],))
    assert destination.apply(step(1, new=(adopted,), chunks=(Chunk(1, 7, 1, True, (3, 4)),)))[1] == (EXPECTED[1],)


def test_foreign_kv_is_noticed() -> None:
    engine = SyntheticEngine(PARAMS)
    engine.apply(step(1, new=(new(),), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    engine.write_blocks((5,), engine.read_blocks((2,)))
    with pytest.raises(EngineError, match="foreign KV at position 0"):
        engine.apply(step(2, join=(Join(1, step=1),), decodes=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"decodes": 1},
        {"chunks": (Chunk(9, 0, 1, False),)},
        {"join": (Join(1, token=4),), "decodes": 1},
        {"chunks": (Chunk(1, 0, 99, True),)},
        {"new": (new(),)},
    ],
)
def test_a_plan_that_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:  # Any: fields of StepPlan
    engine = SyntheticEngine(PARAMS)
    engine.apply(step(1, new=(new(),), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    with pytest.raises(EngineError, match="step 2"):
        engine.apply(step(2, **wrong))


def test_a_step_past_the_table_is_refused() -> None:
    engine = SyntheticEngine(PARAMS)
    engine.apply(step(1, new=(new(),), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    engine.apply(step(2, join=(Join(1, step=1),), decodes=1))
    with pytest.raises(EngineError, match="table has 2 blocks"):
        engine.apply(step(3, decodes=1))


def test_stopped_names_every_output() -> None:
    engine = SyntheticEngine(PARAMS)
    ends = SamplingParams(max_tokens=6, temperature=0, stop_token_ids=(EXPECTED[0],))
    sequence = NewSequence(1, RequestId("req-1"), PROMPT, (), ends)
    _, _, (stopped,) = engine.apply(step(1, new=(sequence,), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    assert (stopped.seq, stopped.output) == (1, (EXPECTED[0],))


def test_the_fixed_clock_is_what_a_step_takes() -> None:
    engine = SyntheticEngine(SyntheticParams(kv_blocks=16, block_size=4, step_s=0.001))
    done = engine.run(step(1, new=(new(),), chunks=(Chunk(1, 0, 7, True, (5, 2)),)))
    assert done.tokens == (EXPECTED[0],)
    assert done.timing.done_ns - done.timing.started_ns >= 1_000_000
