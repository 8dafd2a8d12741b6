from pathlib import Path

import pytest
import torch

from headway.core.errors import ConfigError
from headway.engines.llm.backend import (
    Backend,
    BackendChoice,
    Dtype,
    Kernels,
    choose_backend,
    device_backend,
    has_bfloat16_units,
)
from headway.engines.llm.captures import captures_on
from headway.engines.llm.config import read_config
from headway.engines.llm.kv import KvPool
from headway.engines.llm.model import Decoder
from headway.engines.llm.ops import NativeOps, RopeTables, Rows, Span, Spans, TorchOps
from headway.engines.llm.rope import rope_tables
from headway.engines.llm.weights import Checkpoint


@pytest.fixture
def choose(tiny_folder: Path, tmp_path: Path, kernel_cache: Path):
    def made(kernels: Kernels, dtype: Dtype = "float32", block_size: int = 8, fresh: bool = False) -> Backend:
        config = read_config(tiny_folder)
        cosines, sines = rope_tables(config, 8, torch.device("cpu"))
        cache = tmp_path if fresh else kernel_cache
        choice = BackendChoice(dtype=dtype, kernels=kernels, threads=1, block_size=block_size, cache=cache)
        return choose_backend(config, RopeTables(cosines=cosines, sines=sines), choice)

    return made


@pytest.fixture
def choose_on_device(tiny_folder: Path, tmp_path: Path):
    def made(kernels: Kernels) -> Backend:
        config = read_config(tiny_folder)
        cosines, sines = rope_tables(config, 8, torch.device("cpu"))
        choice = BackendChoice(dtype="float32", kernels=kernels, threads=1, block_size=8, cache=tmp_path)
        return device_backend(config, RopeTables(cosines=cosines, sines=sines), choice)

    return made


# SPEC E1
def test_declares_the_graphs_that_the_configuration_is_told_of(choose, choose_on_device) -> None:
    assert choose("torch").captures == captures_on("cpu") == "nothing"
    assert choose_on_device("auto").captures == captures_on("cuda") == "decodes"


def test_takes_the_kernels_where_they_can_be_built(choose, library: object) -> None:
    backend = choose("auto")
    assert isinstance(backend.ops, NativeOps)
    assert backend.dtype == "float32"


def test_serves_by_torch_without_a_compiler_and_says_why(choose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    backend = choose("auto", fresh=True)
    assert isinstance(backend.ops, TorchOps)
    assert "/no/such/compiler cannot be run" in backend.description


def test_serves_by_torch_where_the_cache_cannot_be_written(choose, tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file where the folder would be")
    backend = choose("auto", fresh=True)
    assert isinstance(backend.ops, TorchOps)
    assert "cannot be kept or loaded" in backend.description


def test_serves_by_torch_where_the_library_does_not_load(
    choose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cxx"  # as of a cache that another system has filled
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho no library > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert "cannot be kept or loaded" in choose("auto", fresh=True).description


def test_says_what_the_compiler_said(choose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'error: no such flag' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert "error: no such flag" in choose("auto", fresh=True).description


def test_refuses_what_was_asked_for_by_name_and_cannot_be_had(choose, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="kernels = native: block_size 12"):
        choose("native", block_size=12)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(ConfigError, match=r"kernels = native: .* cannot be run"):
        choose("native", fresh=True)


@pytest.mark.skipif(has_bfloat16_units(), reason="this CPU has bf16 units")
def test_refuses_bf16_products_on_a_cpu_without_units(choose) -> None:
    with pytest.raises(ConfigError, match="dtype = bfloat16: this CPU has no bf16 units"):
        choose("torch", dtype="bfloat16")
    assert choose("torch", dtype="auto").dtype == "float32"


def test_the_device_path_refuses_kernels_of_the_cpu(choose_on_device) -> None:
    with pytest.raises(ConfigError, match="kernels = native compute on the CPU, device = cpu"):
        choose_on_device("native")


def test_the_device_path_computes_what_the_cpu_path_computes(choose, choose_on_device, tiny_folder: Path) -> None:
    """With the CPU in the device's place: the code is the same but for where tensors lie."""
    config, checkpoint = read_config(tiny_folder), Checkpoint(tiny_folder)
    positions = torch.arange(8, dtype=torch.int32)
    rows = Rows(
        positions=positions,
        slots=positions.long(),
        contexts=positions + 1,
        owners=torch.zeros(8, dtype=torch.int32),
        tables=torch.zeros(1, 1, dtype=torch.int32),
        tile_starts=torch.tensor([0, 8], dtype=torch.int32),
        spans=Spans(singles=0, blocks=0, chunks=(Span(0, 8, 0, 1),)),
    )
    logits = []
    for backend in (choose("torch"), choose_on_device("auto")):
        kv = KvPool(config, 1, 8, 0, backend.device)
        logits.append(Decoder(config, checkpoint, backend).forward(positions + 5, rows, kv, positions.long()))
    # float32 sums of 64 to 96 terms in another order, logits below 20.
    torch.testing.assert_close(*logits, atol=1e-4, rtol=0)
