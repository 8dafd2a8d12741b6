import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.unit.engines.llm.conftest import TINY, random_tensors

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
    decoder: Decoder, folder: Path, count: int, sampled: list[int] | None = None, sequences: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of `sampled` (all) of `count` rows of each sequence, and the keys they stored in a pool of their own."""
    kv, numbers = KvPool(read_config(folder), 8 * sequences, 8, 0, CPU), torch.arange(count * sequences)
    positions, owners = (numbers % count).int(), (numbers // count).int()
    starts = [one * count + at for one in range(sequences) for at in range(0, count, 8)]
    rows = Rows(
        positions=positions,
        slots=owners.long() * 64 + positions,
        contexts=positions + 1,
        owners=owners,
        tables=torch.arange(8 * sequences, dtype=torch.int32).view(sequences, 8),
        tile_starts=torch.tensor([*starts, len(numbers)], dtype=torch.int32),
        spans=Spans(singles=0, blocks=0, chunks=tuple(Span(one * count, count, one, 1) for one in range(sequences))),
    )
    with torch.inference_mode():
        wanted = numbers if sampled is None else torch.tensor(sampled, dtype=torch.int64)
        return decoder.forward((numbers + 5).int() % 128, rows, kv, wanted), kv.keys


@pytest.fixture(scope="session")
def biased_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every product has a bias, panels do not divide among threads, and the deepest product goes in parts."""
    folder = tmp_path_factory.mktemp("biased")
    config = TINY | {"intermediate_size": 600, "attention_bias": True, "mlp_bias": True}
    tensors, generator = dict(random_tensors(config, seed=4)), torch.Generator().manual_seed(5)
    for name in [name for name in tensors if "proj" in name]:
        tensors[name.replace("weight", "bias")] = torch.randn(len(tensors[name]), generator=generator).bfloat16()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


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
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_blocks_of_many_rows_give_the_bits_of_one_product_after_another(
    biased_folder: Path, kernel_cache: Path, library: object, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = made(biased_folder, kernel_cache, threads)
    monkeypatch.setattr(NativeStack, "suits", staticmethod(lambda layers: False))
    apart = made(biased_folder, kernel_cache)
    for sequences, sampled in ((6, None), (5, [0, 61, 229]), (5, [*range(3, 230, 2)]), (2, None)):
        wanted = forward(apart, biased_folder, 46, sampled, sequences)
        for _ in range(5):  # threads take other blocks every time
            got = forward(team, biased_folder, 46, sampled, sequences)
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
