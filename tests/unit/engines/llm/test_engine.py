import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.engines.llm.planner import Planner

from headway.core.errors import ConfigError, EngineError, InvariantError
from headway.core.plans import Join, LayerWait, StepPlan, Swap
from headway.engines.llm.device_engine import DeviceLlmEngine
from headway.engines.llm.engine import TorchLlmEngine
from headway.engines.llm.loading import EngineSettings

MakeEngine = Callable[..., TorchLlmEngine | DeviceLlmEngine]


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 128) for _ in range(draw.randrange(3, 40))] for _ in range(count)]


# SPEC B7
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_chunks_of_any_size_give_the_tokens_of_a_whole_prefill(make_engine: MakeEngine, count: int) -> None:
    planner = Planner(make_engine())
    prompt = prompts(1, seed=5)[0]
    whole = planner.alone(prompt, 6)
    planner.new(1, prompt)
    while planner.lengths.get(1, 0) < len(prompt):
        planner.chunk(1, min(count, len(prompt) - planner.lengths.get(1, 0)))
        planner.run()
    planner.join(1)
    for _ in range(5):
        planner.run()
    assert planner.tokens[1][len(prompt) :] == whole


# SPEC B7
def test_neighbours_do_not_change_a_sequence(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    texts = prompts(9)
    alone = [planner.alone(text, 6) for text in texts]
    for seq, text in enumerate(texts):
        planner.new(seq, text)
        planner.chunk(seq, len(text))
        planner.run()
        planner.join(seq)
    for _ in range(6):
        planner.run()
    together = [planner.tokens[seq][len(text) : len(text) + 6] for seq, text in enumerate(texts)]
    assert together == alone


# SPEC B7
def test_preemption_and_recompute_continue_where_the_sequence_stopped(
    make_engine: MakeEngine,
) -> None:
    planner = Planner(make_engine())
    prompt = prompts(1, seed=8)[0]
    alone = planner.alone(prompt, 8)
    planner.new(1, prompt)
    planner.chunk(1, len(prompt))
    planner.run()
    planner.join(1)
    planner.run()
    planner.run()
    planner.drop(1, "preempt")
    planner.run()
    planner.chunk(1, 5)
    planner.run()
    planner.chunk(1, len(planner.tokens[1]) - 5)
    planner.run()
    planner.join(1)
    for _ in range(4):
        planner.run()
    assert planner.tokens[1][len(prompt) :] == alone


# SPEC B7
def test_a_swapped_sequence_continues_without_recompute(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    prompt = prompts(1, seed=9)[0]
    alone = planner.alone(prompt, 6)
    planner.new(1, prompt)
    planner.chunk(1, len(prompt))
    planner.run()
    planner.join(1)
    planner.run()
    held = tuple(planner.tables[1])
    planner.drop(1, "preempt")
    slots = tuple(range(len(held)))
    planner.run(swap_out=(Swap(seq=1, device_blocks=held, host_slots=slots),))
    moved = planner.take(len(held))
    planner.tables[1] = list(moved)
    planner.join(1, token=planner.tokens[1][-1])
    planner.run(swap_in=(Swap(seq=1, device_blocks=moved, host_slots=slots),))
    for _ in range(3):
        planner.run()
    assert planner.tokens[1][len(prompt) :] == alone


def test_a_paused_sequence_keeps_its_table(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    prompt = prompts(1, seed=10)[0]
    alone = planner.alone(prompt, 4)
    planner.new(1, prompt)
    planner.chunk(1, len(prompt))
    planner.run()
    planner.join(1)
    planner.run()
    planner.drop(1, "pause")
    assert planner.run() == {}
    planner.join(1)
    planner.run()
    planner.run()
    assert planner.tokens[1][len(prompt) :] == alone


# SPEC B7
def test_kv_that_moves_to_another_engine_continues_there(make_engine: MakeEngine) -> None:
    source, target = Planner(make_engine()), Planner(make_engine())
    prompt = prompts(1, seed=11)[0]
    alone = source.alone(prompt, 4)
    source.new(1, prompt)
    source.chunk(1, len(prompt))
    first = source.run()[1]
    blocks = target.take(target.blocks_for(len(prompt) + 1))
    target.engine.write_blocks(blocks[: len(source.tables[1])], source.engine.read_blocks(source.tables[1]))
    target.new(7, prompt, outputs=(first,))
    target.admit(7, computed=len(prompt), shared=list(blocks))
    target.chunk(7, 1)
    target.run()
    target.join(7)
    target.run()
    target.run()
    assert target.tokens[7][len(prompt) :] == alone


# SPEC B7
def test_after_a_failed_step_every_sequence_leaves_and_comes_again(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    first, second = prompts(2, seed=15)
    alone = planner.alone(first, 4)
    planner.new(1, first)
    planner.chunk(1, len(first))
    planner.run()
    planner.join(1)
    planner.new(2, second)
    planner.chunk(2, 2)
    with pytest.raises(InvariantError, match="the engine counts"):
        planner.run(decodes=5)
    kept = planner.tokens[1][len(first) :]
    planner.decoding.clear()
    planner.tables.clear()
    planner.new(1, first, outputs=tuple(kept))
    planner.chunk(1, len(first) + len(kept))
    planner.run(leave=(1, 2, 77))
    planner.join(1)
    planner.run()
    planner.run()
    assert planner.tokens[1][len(first) :] == alone


def test_a_bucket_pads_rows_without_touching_the_real_ones(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    prompt = prompts(1, seed=12)[0]
    alone = planner.alone(prompt, 2)
    planner.new(1, prompt)
    planner.chunk(1, len(prompt))
    planner.run(bucket=64)
    assert planner.done.timing.padded_rows == 64 - len(prompt)
    planner.join(1)
    planner.run(bucket=8)
    assert planner.tokens[1][len(prompt) :] == alone


def test_reports_a_stop_token_once_with_all_outputs(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    prompt = prompts(1, seed=13)[0]
    alone = planner.alone(prompt, 4)
    planner.new(1, prompt, stop_token_ids=(alone[1],))
    planner.chunk(1, len(prompt))
    planner.run()
    planner.join(1)
    planner.run()
    assert [(stop.seq, stop.output) for stop in planner.done.stopped] == [(1, tuple(alone[:2]))]
    planner.run()
    assert planner.done.stopped == ()


def test_takes_more_sequences_than_its_first_tables_hold(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    texts = prompts(40, seed=14)
    alone = planner.alone(texts[0], 2)
    for seq, text in enumerate(texts):
        planner.new(seq, text[:8])
    planner.new(99, texts[0])
    planner.chunk(99, len(texts[0]))
    planner.run()
    planner.join(99)
    planner.run()
    assert planner.tokens[99][len(texts[0]) :] == alone


@pytest.mark.parametrize("field", ["decodes", "kv_tokens", "prefill_tokens"])
def test_notices_a_plan_that_counts_otherwise(make_engine: MakeEngine, field: str) -> None:
    planner = Planner(make_engine())
    planner.new(1, [5, 6, 7])
    planner.chunk(1, 3)
    with pytest.raises(InvariantError, match="the engine counts"):
        planner.run(**{field: 77})


def test_refuses_a_token_that_differs_from_its_own(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    planner.new(1, [5, 6, 7])
    planner.chunk(1, 2)
    planner.run()
    planner.join(1, token=9)
    with pytest.raises(InvariantError, match="joins with token 9, the engine has 7"):
        planner.run()


def test_refuses_a_join_before_the_prefill_is_over(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    planner.new(1, [5, 6, 7])
    planner.chunk(1, 1)
    planner.run()
    planner.join(1)
    with pytest.raises(InvariantError, match="joins with 1 of 3 known tokens computed"):
        planner.run()


def test_refuses_a_row_without_a_block(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine())
    planner.new(1, [5] * 8)
    planner.chunk(1, 8)
    planner.run()
    with pytest.raises(InvariantError, match="row 0 has no block for position 8"):
        planner.engine.run(
            StepPlan(step=2, basis_step=1, kind="decode", join=(Join(seq=1, step=1),), decodes=1, kv_tokens=9)
        )


def test_refuses_a_block_outside_the_pool(make_engine: MakeEngine) -> None:
    planner = Planner(make_engine(kv_blocks=4))
    planner.free = [4, 3, 2, 1, 0]
    planner.new(1, [5] * 40)
    planner.chunk(1, 40)
    with pytest.raises(InvariantError, match="block 4 is outside the pool of 4 blocks"):
        planner.run()


def test_refuses_layer_waits_and_graphs_by_name(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(EngineError, match="waits for layers"):
        engine.run(StepPlan(step=1, basis_step=0, kind="decode", waits=(LayerWait(transfer="t", layer=0),)))
    with pytest.raises(EngineError, match="graph mode full"):
        engine.run(StepPlan(step=1, basis_step=0, kind="decode", graph="full"))


def test_a_dummy_step_computes_padding_only(make_engine: MakeEngine) -> None:
    done = make_engine().run(StepPlan(step=1, basis_step=0, kind="dummy"))
    assert (done.seqs, done.timing.padded_rows) == ((), 2)


def test_counts_the_gap_between_steps_only_while_work_was_runnable(
    make_engine: MakeEngine,
) -> None:
    planner = Planner(make_engine())
    planner.new(1, [5, 6, 7])
    planner.chunk(1, 3)
    planner.run()
    planner.join(1)
    planner.run()
    assert planner.done.timing.idle_gap_ns == 0
    before = planner.done.timing.done_ns
    planner.run()
    assert planner.done.timing.idle_gap_ns == planner.done.timing.started_ns - before > 0


def test_refuses_a_length_beyond_the_model(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="max_model_len 512 exceeds"):
        make_engine(max_model_len=512)


def test_a_cpu_captures_no_graphs(tiny_folder: Path, kernel_cache: Path) -> None:
    for name in ("graph_rows", "piece_rows"):
        settings = EngineSettings(folder=tiny_folder, model="tiny", cache=kernel_cache, kv_blocks=8, **{name: (8,)})
        with pytest.raises(ConfigError, match=rf"{name} = \[8\]: attention on cpu captures nothing"):
            TorchLlmEngine(settings)
