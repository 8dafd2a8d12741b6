"""The device engine on a device that keeps account. Its results as an engine are tested beside the CPU's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.llm.late_device import LateDevice
from tests.unit.engines.llm.planner import Planner

from headway.core.errors import ConfigError, EngineError
from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.request import SamplingParams
from headway.engines.llm.device_engine import DeviceLlmEngine
from headway.engines.llm.engine import TorchLlmEngine
from headway.engines.llm.loading import EngineSettings

PROMPT = [5, 17, 3, 99, 41, 8, 77, 120, 64, 31]
Make = Callable[..., tuple[DeviceLlmEngine, LateDevice]]


def settings(folder: Path, cache: Path, **changes: Any) -> EngineSettings:
    chosen = {"kernels": "auto", "kv_blocks": 64, "block_size": 8, "dtype": "float32", "max_step_tokens": 64, **changes}
    return EngineSettings(folder=folder, model="tiny", cache=cache, **chosen)


@pytest.fixture
def make(tiny_folder: Path, kernel_cache: Path) -> Make:
    def build(**changes: Any) -> tuple[DeviceLlmEngine, LateDevice]:
        device = LateDevice()
        return DeviceLlmEngine(settings(tiny_folder, kernel_cache, **changes), device), device

    return build


@pytest.fixture
def on_cpu(tiny_folder: Path, kernel_cache: Path) -> Planner:
    return Planner(TorchLlmEngine(settings(tiny_folder, kernel_cache, kernels="torch")))


def new(seq: int, prompt: list[int], **sampling: Any) -> NewSequence:
    params = SamplingParams(**{"max_tokens": 1000, "temperature": 0.0, "ignore_eos": True, **sampling})
    return NewSequence(seq=seq, request=RequestId(f"req-{seq}"), prompt=tuple(prompt), outputs=(), sampling=params)


def prefill(step: int, seq: int, prompt: list[int], first_block: int = 0, **sampling: Any) -> StepPlan:
    table = tuple(range(first_block, first_block + 4))
    chunk = Chunk(seq=seq, start=0, count=len(prompt), samples=True, table=table)
    brought = (new(seq, prompt, **sampling),)
    return StepPlan(step, step - 1, "prefill", new=brought, chunks=(chunk,), prefill_tokens=len(prompt))


def decode(step: int, context: int, **changes: Any) -> StepPlan:
    return StepPlan(step, step - 2, "decode", decodes=1, kv_tokens=context, **changes)


# SPEC E1
def test_decode_steps_are_replayed_and_give_what_the_cpu_gives(make: Make, on_cpu: Planner) -> None:
    engine, device = make(graph_rows=(4, 8))
    planner = Planner(engine)
    planner.new(1, PROMPT)
    planner.chunk(1, len(PROMPT))
    planner.run()
    planner.join(1)
    for _ in range(12):
        planner.run(bucket=4, graph="full", kind="decode")
    assert device.replayed == [4] * 12
    assert planner.tokens[1] == [*PROMPT, *on_cpu.alone(PROMPT, 13)]


# SPEC E1
def test_a_step_without_a_graph_is_computed_without_one(make: Make) -> None:
    engine, device = make(graph_rows=(4,))
    planner = Planner(engine)
    planner.alone(PROMPT, 3)
    assert device.replayed == []


# SPEC E1
def test_captures_every_span_of_every_size_before_it_is_ready(make: Make) -> None:
    # 256 positions are 32 blocks: spans of 1, 2, 4, 8, 16, 32.
    assert make(graph_rows=(2, 4, 8))[1].captured == 3 * 6


def test_captures_and_padding_rows_write_the_scratch_block_only(make: Make) -> None:
    engine, _ = make(graph_rows=(8,))
    engine.run(prefill(1, 1, PROMPT))
    engine.run(decode(2, 11, join=(Join(seq=1, step=1),), bucket=8, graph="full"))
    assert not any(engine.read_blocks(range(4, 64)))
    assert any(engine.read_blocks([0]))


# SPEC E2
def test_a_launch_waits_for_no_result(make: Make, on_cpu: Planner) -> None:
    engine, device = make()
    waits = [engine.launch(prefill(1, 1, PROMPT))]
    waits.append(engine.launch(decode(2, 11, join=(Join(seq=1, step=1),))))
    waits += [engine.launch(decode(step, 9 + step)) for step in (3, 4)]
    assert device.waited == set()
    assert [wait().tokens[0] for wait in waits] == on_cpu.alone(PROMPT, 4)


# SPEC E2
def test_drawn_tokens_stay_on_the_device_too(make: Make, on_cpu: Planner) -> None:
    engine, device = make()
    how = {"temperature": 0.9, "seed": 7, "top_p": 0.8, "top_k": 20}
    waits = [engine.launch(prefill(1, 1, PROMPT, **how))]
    waits.append(engine.launch(decode(2, 11, join=(Join(seq=1, step=1),))))
    assert device.waited == set()
    assert [wait().tokens[0] for wait in waits] == on_cpu.alone(PROMPT, 2, **how)


def test_a_row_that_reads_its_history_waits_for_the_steps_before(make: Make, on_cpu: Planner) -> None:
    engine, device = make()
    how = {"repetition_penalty": 1.9, "frequency_penalty": 1.5}
    waits = [engine.launch(prefill(1, 1, PROMPT, **how))]
    waits.append(engine.launch(decode(2, 11, join=(Join(seq=1, step=1),))))
    assert device.waited == {0}
    waits.append(engine.launch(decode(3, 12)))
    assert [wait().tokens[0] for wait in waits] == on_cpu.alone(PROMPT, 3, **how)


def test_results_that_come_late_do_not_reach_the_next_tenant_of_a_slot(make: Make, on_cpu: Planner) -> None:
    engine, _ = make()
    engine.run(prefill(1, 1, PROMPT))
    late = engine.launch(decode(2, 11, join=(Join(seq=1, step=1),)))
    other = [*PROMPT[::-1], 2, 9]
    first = engine.launch(
        StepPlan(
            3,
            1,
            "prefill",
            leave=(1,),
            new=(new(2, other),),
            chunks=(Chunk(seq=2, start=0, count=5, samples=False, table=(8, 9, 10)),),
            prefill_tokens=5,
        )
    )
    assert late().seqs == (1,)
    first()
    rest = Chunk(seq=2, start=5, count=7, samples=True)
    tokens = [engine.run(StepPlan(4, 3, "prefill", chunks=(rest,), prefill_tokens=7)).tokens[0]]
    tokens.append(engine.run(decode(5, 13, join=(Join(seq=2, token=tokens[0]),))).tokens[0])
    assert tokens == on_cpu.alone(other, 2)


# SPEC B7
def test_a_preempted_sequence_is_recomputed_with_tokens_that_were_not_fetched(make: Make, on_cpu: Planner) -> None:
    engine, _ = make()
    waits = [engine.launch(prefill(1, 1, PROMPT))]
    waits.append(engine.launch(decode(2, 11, join=(Join(seq=1, step=1),))))
    again = Chunk(seq=1, start=0, count=12, samples=True, table=(20, 21))
    waits.append(
        engine.launch(StepPlan(3, 1, "prefill", preempt=(1,), chunks=(again,), prefill_tokens=12)),
    )
    assert [wait().tokens[0] for wait in waits] == on_cpu.alone(PROMPT, 3)


def test_the_outputs_of_a_stop_end_with_the_step_that_stopped(make: Make, on_cpu: Planner) -> None:
    alone = on_cpu.alone(PROMPT, 2)
    engine, _ = make()
    waits = [engine.launch(prefill(1, 1, PROMPT, stop_token_ids=(alone[1],)))]
    waits.append(engine.launch(decode(2, 11, join=(Join(seq=1, step=1),))))
    waits.append(engine.launch(decode(3, 12)))
    stops = [wait().stopped for wait in waits]
    assert [(stop.seq, stop.output) for stop in stops[1]] == [(1, tuple(alone))]
    assert (stops[0], stops[2]) == ((), ())


# SPEC E2
def test_a_stop_that_is_fetched_after_its_sequence_left_is_forgotten(make: Make, on_cpu: Planner) -> None:
    first = on_cpu.alone(PROMPT, 1)[0]
    engine, _ = make()
    wait = engine.launch(prefill(1, 1, PROMPT, stop_token_ids=(first,)))
    after = engine.launch(prefill(2, 2, PROMPT[:4], first_block=8))
    left = engine.launch(StepPlan(3, 1, "prefill", leave=(1, 2)))
    assert [stop.seq for stop in wait().stopped] == [1]
    after()
    left()
    again = engine.run(prefill(4, 1, PROMPT, stop_token_ids=(first,)))
    assert [stop.seq for stop in again.stopped] == [1]


# SPEC B7
def test_graphs_are_captured_again_when_tables_outgrow_their_buffer(make: Make, on_cpu: Planner) -> None:
    engine, device = make(graph_rows=(4,))
    engine.run(prefill(1, 1, PROMPT))
    captured = device.captured
    crowd = tuple(new(seq, [1, 2]) for seq in range(100, 700))
    tokens = [engine.run(decode(2, 11, join=(Join(seq=1, step=1),), bucket=4, graph="full")).tokens[0]]
    tokens.append(engine.run(decode(3, 12, new=crowd, bucket=4, graph="full")).tokens[0])
    tokens.append(engine.run(decode(4, 13, bucket=4, graph="full")).tokens[0])
    assert device.captured == 2 * captured
    assert tokens == on_cpu.alone(PROMPT, 4)[1:]
    assert not any(engine.read_blocks(range(4, 64)))


def test_refuses_graphs_it_has_not_by_name(make: Make) -> None:
    engine, _ = make(graph_rows=(4,))
    with pytest.raises(EngineError, match=r"graph mode full with 8 rows; captured are \[4\]"):
        engine.run(StepPlan(1, 0, "decode", bucket=8, graph="full"))
    with pytest.raises(EngineError, match="graph mode piecewise with 4 rows; captured are none"):
        engine.run(StepPlan(1, 0, "decode", bucket=4, graph="piecewise"))
    chunk = Chunk(seq=1, start=0, count=2, samples=True, table=(0,))
    with pytest.raises(EngineError, match="graph mode full with 1 chunks"):
        engine.run(StepPlan(1, 0, "mixed", chunks=(chunk,), graph="full"))
    for name in ("graph_rows", "piece_rows"):
        with pytest.raises(ConfigError, match=f"{name} has 4096 rows, max_step_tokens is 64"):
            make(**{name: (4096,)})


def test_says_that_rows_may_depend_on_the_batch(make: Make) -> None:
    assert "neither of which is batch-invariant" in make()[0].description
