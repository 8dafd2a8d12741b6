"""Captured graphs on a device that replays operators and addresses only. # SPEC E1"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.engines.llm.late_device import LateDevice
from tests.unit.engines.llm.planner import Planner
from tests.unit.engines.llm.recorded_device import RecordedDevice

from headway.core.ids import RequestId
from headway.core.plans import NewSequence
from headway.core.request import SamplingParams
from headway.engines.llm.device_engine import DeviceLlmEngine
from headway.engines.llm.engine import TorchLlmEngine
from headway.engines.llm.graphs import DecodeGraphs
from headway.engines.llm.loading import EngineSettings

LAYERS = 2
FIRST, SECOND = [5, 17, 3, 99, 41, 8, 77, 120, 64, 31], [9, 1, 88, 23, 4, 56, 71]
Make = Callable[..., tuple[DeviceLlmEngine, RecordedDevice]]


@pytest.fixture
def make(tiny_folder: Path, kernel_cache: Path) -> Make:
    def build(**changes: Any) -> tuple[DeviceLlmEngine, RecordedDevice]:
        device = RecordedDevice()
        return DeviceLlmEngine(settings(tiny_folder, kernel_cache, **changes), device), device

    return build


def settings(folder: Path, cache: Path, **changes: Any) -> EngineSettings:
    chosen = {"kv_blocks": 64, "block_size": 8, "dtype": "float32", "max_step_tokens": 64, **changes}
    return EngineSettings(folder=folder, model="tiny", cache=cache, **chosen)


def served(engine: DeviceLlmEngine, decode: str, mixed: str, **sampling: Any) -> tuple[Planner, bytes]:
    """A prefill with padding, one in two chunks beside a decode, one that fills its bucket, decodes; and all KV."""
    planner = Planner(engine)
    planner.new(1, FIRST, **sampling)
    planner.chunk(1, len(FIRST))
    planner.run(bucket=16, graph=mixed, kind="prefill")
    planner.join(1)
    planner.new(2, SECOND, **sampling)
    planner.chunk(2, 4)
    planner.run(bucket=8, graph=mixed)
    planner.chunk(2, 3)
    planner.run(bucket=4, graph=mixed)
    planner.join(2)
    for bucket in (2, 4, 8, 2, 4, 8):
        planner.run(bucket=bucket, graph=decode, kind="decode")
    return planner, engine.read_blocks(range(64))


SIZES = (2, 4, 8, 16)
OF_MIXED, OF_DECODES = (16, 8, 4), (2, 4, 8, 2, 4, 8)


# SPEC E1
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 7}, {"repetition_penalty": 1.3}])
def test_pieces_give_bit_for_bit_what_the_uncaptured_path_gives(make: Make, sampling: dict[str, Any]) -> None:
    captured, device = make(piece_rows=SIZES)
    assert device.captured == len(SIZES) * (LAYERS + 1)
    plain, kv = served(make()[0], "none", "none", **sampling)
    pieces, kv_of_pieces = served(captured, "piecewise", "piecewise", **sampling)
    assert pieces.tokens == plain.tokens
    assert kv_of_pieces == kv
    assert device.replayed == [rows for rows in OF_MIXED + OF_DECODES for _ in range(LAYERS + 1)]


# SPEC E1
def test_whole_steps_for_decodes_and_pieces_for_the_others(make: Make) -> None:
    captured, device = make(piece_rows=SIZES, graph_rows=(2, 4, 8))
    plain, kv = served(make()[0], "none", "none")
    both, kv_of_both = served(captured, "full", "piecewise")
    assert (both.tokens, kv_of_both) == (plain.tokens, kv)
    assert device.replayed == [*(rows for rows in OF_MIXED for _ in range(LAYERS + 1)), *OF_DECODES]


# SPEC E1, B7
def test_pieces_give_the_tokens_of_the_cpu_engine(make: Make, tiny_folder: Path, kernel_cache: Path) -> None:
    planner, _ = served(make(piece_rows=SIZES)[0], "piecewise", "piecewise")
    alone = Planner(TorchLlmEngine(settings(tiny_folder, kernel_cache, kernels="torch")))
    for seq, prompt in ((1, FIRST), (2, SECOND)):
        outputs = planner.tokens[seq][len(prompt) :]
        assert outputs == alone.alone(prompt, len(outputs))


# SPEC E1
def test_pieces_and_whole_steps_are_captured_again_when_a_buffer_moved(make: Make) -> None:
    captured, device = make(piece_rows=(4, 16), graph_rows=(4,))
    first = device.captured
    crowd = tuple(
        NewSequence(seq, RequestId(f"req-{seq}"), (1, 2), (), SamplingParams(max_tokens=9)) for seq in range(100, 700)
    )
    tokens = []
    for engine, whole, pieces in ((captured, "full", "piecewise"), (make()[0], "none", "none")):
        planner = Planner(engine)
        planner.new(1, FIRST)
        planner.chunk(1, len(FIRST))
        planner.run(bucket=16, graph=pieces)
        planner.join(1)
        planner.run(bucket=4, graph=whole, kind="decode")
        planner.run(bucket=4, graph=pieces, kind="decode", new=crowd)
        planner.run(bucket=4, graph=whole, kind="decode")
        tokens.append(planner.tokens[1])
    assert device.captured == 2 * first
    assert tokens[0] == tokens[1]


def test_padding_rows_of_pieces_write_the_scratch_block_only(make: Make) -> None:
    engine, _ = make(piece_rows=(16,))
    planner = Planner(engine)
    planner.new(1, FIRST)
    planner.chunk(1, len(FIRST))
    planner.run(bucket=16, graph="piecewise")
    assert any(engine.read_blocks(planner.tables[1]))
    assert not any(engine.read_blocks([block for block in range(64) if block not in planner.tables[1]]))


def test_a_step_larger_than_every_size_runs_without_pieces(make: Make) -> None:
    engine, device = make(piece_rows=(4,))
    Planner(engine).alone(FIRST, 3)
    assert device.replayed == []


@pytest.mark.parametrize(("blocks", "span"), [(0, 1), (1, 1), (2, 2), (3, 4), (5, 6), (6, 6)])
def test_a_replay_covers_the_blocks_that_are_needed(blocks: int, span: int) -> None:
    # SPEC E1
    graphs = DecodeGraphs(LateDevice(), lambda rows, blocks: torch.full((rows,), blocks), blocks_max=6)
    graphs.capture(4)
    assert graphs.replay(4, blocks).tolist() == [span] * 4


def test_knows_the_sizes_it_captured_also_after_capturing_again() -> None:
    device = LateDevice()
    graphs = DecodeGraphs(device, lambda rows, blocks: torch.zeros(rows), blocks_max=2)
    graphs.capture(2)
    graphs.capture(8)
    graphs.recapture()
    assert (graphs.rows, 2 in graphs, 4 in graphs, device.captured) == ([2, 8], True, False, 8)
