from pathlib import Path

import pytest
import torch

from headway.engines.llm.backend import BackendChoice, choose_backend
from headway.engines.llm.config import read_config
from headway.engines.llm.kv import KvPool
from headway.engines.llm.layers import NativeStack
from headway.engines.llm.model import Decoder
from headway.engines.llm.ops import RopeTables, Rows, Span, Spans
from headway.engines.llm.rope import rope_tables
from headway.engines.llm.weights import Checkpoint

CPU = torch.device("cpu")


def made(folder: Path, cache: Path, threads: int = 1) -> Decoder:
    config = read_config(folder)
    cosines, sines = rope_tables(config, 64, CPU)
    choice = BackendChoice(dtype="float32", kernels="native", threads=threads, block_size=8, cache=cache)
    return Decoder(config, Checkpoint(folder), choose_backend(config, RopeTables(cosines=cosines, sines=sines), choice))


def forward(
    decoder: Decoder, folder: Path, count: int, sampled: list[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of `sampled` (all) of `count` rows of one sequence, and the keys they stored in a pool of their own."""
    kv, positions = KvPool(read_config(folder), 8, 8, 0, CPU), torch.arange(count, dtype=torch.int32)
    rows = Rows(
        positions=positions,
        slots=positions.long(),
        contexts=positions + 1,
        owners=torch.zeros(count, dtype=torch.int32),
        tables=torch.arange(8, dtype=torch.int32)[None].contiguous(),
        tile_starts=torch.tensor([*range(0, count, 8), count], dtype=torch.int32),
        spans=Spans(singles=0, blocks=0, chunks=(Span(0, count, 0, 1),)),
    )
    with torch.inference_mode():
        wanted = positions.long() if sampled is None else torch.tensor(sampled, dtype=torch.int64)
        return decoder.forward(positions + 5, rows, kv, wanted), kv.keys


# SPEC B7
@pytest.mark.parametrize("count", [2, 7, 40])
def test_one_call_gives_to_the_bit_what_call_by_call_gives(
    tiny_folder: Path, kernel_cache: Path, library, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = forward(made(tiny_folder, kernel_cache), tiny_folder, count)
    monkeypatch.setattr(NativeStack, "suits", staticmethod(lambda layers: False))
    apart = forward(made(tiny_folder, kernel_cache), tiny_folder, count)
    assert all(torch.equal(*pair) for pair in zip(together, apart, strict=True))


# SPEC B7
@pytest.mark.parametrize("sampled", [[], [39], [0, 7, 8, 38]], ids=str)
def test_leaving_rows_out_of_the_last_layer_changes_no_other_row(
    tiny_folder: Path, kernel_cache: Path, library: object, sampled: list[int]
) -> None:
    decoder = made(tiny_folder, kernel_cache)
    logits, keys = forward(decoder, tiny_folder, 40)
    some, same_keys = forward(decoder, tiny_folder, 40, sampled)
    assert some.shape == (len(sampled), logits.shape[1])
    assert torch.equal(some, logits[sampled])
    assert torch.equal(same_keys, keys)


# SPEC B7
@pytest.mark.parametrize("threads", [2, 3])
def test_any_team_of_threads_gives_the_same_bits_step_after_step(
    tiny_folder: Path, kernel_cache: Path, library: object, threads: int
) -> None:
    alone, team = made(tiny_folder, kernel_cache), made(tiny_folder, kernel_cache, threads)
    for count, sampled in ((1, None), (2, None), (40, None), (40, [0, 7, 38]), (40, [])):
        wanted = forward(alone, tiny_folder, count, sampled)
        for _ in range(20):  # threads meet in another order every time
            got = forward(team, tiny_folder, count, sampled)
            assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))


# SPEC B7
def test_what_earlier_steps_left_in_the_buffers_does_not_matter(
    tiny_folder: Path, kernel_cache: Path, library: object
) -> None:
    decoder = made(tiny_folder, kernel_cache)
    for count in (7, 40, 2, 7):
        used = forward(decoder, tiny_folder, count)
        fresh = forward(made(tiny_folder, kernel_cache), tiny_folder, count)
        assert all(torch.equal(*pair) for pair in zip(used, fresh, strict=True))


# SPEC E1
def test_steps_use_the_same_buffers_until_a_larger_one_comes(
    tiny_folder: Path, kernel_cache: Path, library: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[int] = []
    grow = NativeStack._grow

    def seen(stack: NativeStack, residual: torch.Tensor) -> None:
        grown.append(len(residual))
        grow(stack, residual)

    monkeypatch.setattr(NativeStack, "_grow", seen)
    decoder = made(tiny_folder, kernel_cache)
    for count in (7, 2, 7, 40, 39):
        forward(decoder, tiny_folder, count)
    assert grown == [7, 40]
