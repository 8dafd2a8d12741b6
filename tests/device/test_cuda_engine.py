"""The engine on a CUDA device, on random weights.  # never run on a device

`benchmarks/device.sh` runs these and the timings in one go.
"""

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from tests.unit.engines.llm.conftest import TINY, random_tensors  # noqa: E402  (torch decides)
from tests.unit.engines.llm.kv_world import KvWorld, end  # noqa: E402
from tests.unit.engines.llm.planner import Planner  # noqa: E402
from tests.unit.engines.llm.step_world import GRAPH_ROWS, StepWorld, texts  # noqa: E402

from headway.core.errors import InvariantError  # noqa: E402
from headway.core.plans import Join, StepPlan, Swap  # noqa: E402
from headway.engines.llm.cuda import CudaDevice  # noqa: E402
from headway.engines.llm.device_engine import DeviceLlmEngine  # noqa: E402
from headway.engines.llm.engine import TorchLlmEngine  # noqa: E402
from headway.engines.llm.loading import EngineSettings  # noqa: E402

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
MARGIN = 1e-3  # of SPEC B7, for float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import json

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    safetensors.save_file(dict(random_tensors(TINY, seed=3)), str(folder / "model.safetensors"))
    return folder


def settings(folder: Path, **changes: Any) -> EngineSettings:
    chosen = {"kv_blocks": 256, "block_size": 8, "dtype": "float32", **changes}
    return EngineSettings(folder=folder, model="tiny", cache=folder, **chosen)


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(4)
    return [[draw.randrange(3, 128) for _ in range(draw.randrange(3, 40))] for _ in range(count)]


def together(planner: Planner, texts: list[list[int]], steps: int, **more: Any) -> list[list[int]]:
    for seq, text in enumerate(texts):
        planner.new(seq, text)
        planner.chunk(seq, len(text))
        planner.run()
        planner.join(seq)
    for _ in range(steps):
        planner.run(**more)
    return [planner.tokens[seq][len(text) : len(text) + steps] for seq, text in enumerate(texts)]


# SPEC B7, E1
def test_greedy_tokens_are_those_of_the_cpu_but_where_two_are_nearly_equal(folder: Path) -> None:
    """The first difference of a sequence must lie within the margin; how many differ is printed."""
    texts = prompts(12)
    cpu = Planner(TorchLlmEngine(settings(folder)))
    ours = together(Planner(DeviceLlmEngine(settings(folder), CudaDevice())), texts, 24)
    differing = 0
    for text, found in zip(texts, ours, strict=True):
        exact = cpu.alone(text, 24)
        if found[:24] == exact:
            continue
        differing += 1
        at = next(index for index, pair in enumerate(zip(found, exact, strict=True)) if pair[0] != pair[1])
        cpu.alone([*text, *exact[:at]], 1, logprobs=8)
        best = cpu.scores[0]
        chances = dict(zip(best.top_ids, best.top_logprobs, strict=True))
        assert found[at] in chances
        assert best.top_logprobs[0] - chances[found[at]] < MARGIN
    sys.stdout.write(f"{differing} of {len(texts)} sequences differ within {MARGIN}\n")


# SPEC E1
def test_a_replayed_graph_gives_what_the_step_gives_without_one(folder: Path) -> None:
    texts = prompts(5)
    eager = together(Planner(DeviceLlmEngine(settings(folder), CudaDevice())), texts, 16, bucket=8)
    engine = DeviceLlmEngine(settings(folder, graph_rows=(8,)), CudaDevice())
    planner = Planner(engine)
    graphed = together(planner, texts, 16, bucket=8, graph="full")
    assert graphed == eager
    assert "whole decode steps captured for [8] rows" in engine.description


# SPEC E1
def test_replayed_pieces_give_what_the_steps_give_without_them(folder: Path) -> None:
    """Chunks and decodes of one step: its pieces are replayed, its attention is not. Both run the same shapes."""

    def tokens(graph: str, **sizes: tuple[int, ...]) -> dict[int, list[int]]:
        planner = Planner(DeviceLlmEngine(settings(folder, **sizes), CudaDevice()))
        for seq, text in enumerate(prompts(5)):
            planner.new(seq, text)
            planner.chunk(seq, len(text))
            planner.run(bucket=128, graph=graph)
            planner.join(seq)
        for _ in range(16):
            planner.run(bucket=8, graph=graph, kind="decode")
        return planner.tokens

    assert tokens("piecewise", piece_rows=(8, 128)) == tokens("none")


# SPEC E1
def test_what_follows_a_join_sees_the_work_of_the_branch() -> None:
    device = CudaDevice()
    source, beside, after = (torch.zeros(8, device=device.where) for _ in range(3))

    def compute() -> Any:
        def branch() -> None:
            torch.cuda._sleep(1_000_000)
            beside.copy_(source)

        join = device.fork(branch)
        doubled = source * 2
        join()
        return after.copy_(beside + doubled)

    replay = device.capture(compute)
    for value in (1.0, 2.0):
        source.fill_(value)
        assert replay().tolist() == [3 * value] * 8


# SPEC E1
def test_a_capture_with_a_branch_that_is_not_joined_is_refused_and_leaves_the_device_whole() -> None:
    device = CudaDevice()
    source = torch.ones(8, device=device.where)

    def compute() -> Any:
        device.fork(lambda: source.add_(0))
        return source * 2

    with pytest.raises(InvariantError, match="1 branches that were forked and not joined"):
        device.capture(compute)
    assert device.capture(lambda: source * 3)().tolist() == [3.0] * 8


# SPEC E2
def test_a_launch_returns_before_the_device_is_done(folder: Path) -> None:
    engine = DeviceLlmEngine(settings(folder), CudaDevice())
    planner = Planner(engine)
    planner.new(1, prompts(1)[0])
    planner.chunk(1, len(planner.tokens[1]))
    planner.run()
    context = planner.lengths[1]
    torch.cuda._sleep(2_000_000_000)  # about a second of the device's clock, queued before the step
    began = time.perf_counter()
    first = StepPlan(2, 1, "decode", join=(Join(seq=1, step=1),), decodes=1, kv_tokens=context + 1)
    wait = engine.launch(first)
    launched = time.perf_counter() - began
    wait()
    waited = time.perf_counter() - began
    assert launched < 0.5 * waited


# SPEC E2
@pytest.mark.parametrize("seed", range(4))
def test_sequences_that_are_swapped_and_moved_go_on_with_the_same_tokens(folder: Path, seed: int) -> None:
    how = settings(folder, kv_blocks=24, host_slots=6, max_model_len=32, graph_rows=(GRAPH_ROWS,))
    known = texts(DeviceLlmEngine(how, CudaDevice()))
    engine = DeviceLlmEngine(how, CudaDevice())
    world = KvWorld(engine, known, seed, 6)
    world.play(40)
    end(world, engine)
    assert world.counts["out"] > 0


# SPEC E2
def test_a_step_is_over_before_a_swap_that_was_queued_before_it(folder: Path) -> None:
    device = CudaDevice()
    engine = DeviceLlmEngine(settings(folder, host_slots=8), device)
    planner = Planner(engine)
    text = prompts(1)[0][:10]
    for seq in (1, 2):
        planner.new(seq, text)
        planner.chunk(seq, len(text))
    planner.run()
    planner.join(1)
    held = tuple(planner.tables[2])
    before = engine.read_blocks(held)
    with device.within("kv_out"):
        torch.cuda._sleep(2_000_000_000)  # about a second of the device's clock
    planner.drop(2, "preempt")
    planner.free = planner.free[: -len(held)]  # its blocks are not given out again
    planner.run(swap_out=(Swap(seq=2, device_blocks=held, host_slots=(0, 1)),))
    assert len(engine.transfers.names) == 1
    moved = planner.take(2)
    planner.run(swap_in=(Swap(seq=2, device_blocks=moved, host_slots=(0, 1)),))
    assert len(engine.transfers.names) == 2
    assert engine.read_blocks(moved) == before


class Sound:
    """Fails never by itself."""

    fail = 0.0


# SPEC E2
@pytest.mark.parametrize("seed", range(4))
def test_steps_launched_ahead_give_the_same_tokens_and_return_what_they_borrowed(folder: Path, seed: int) -> None:
    """Copies beside computing, in real lanes; the odd seeds bring plans that are refused, too."""
    how = settings(folder, max_model_len=32, graph_rows=(GRAPH_ROWS,))
    known = texts(DeviceLlmEngine(how, CudaDevice()))
    world = StepWorld(DeviceLlmEngine(how, CudaDevice()), Sound(), known, seed)
    world.play(40)
    assert world.fetched > 0
