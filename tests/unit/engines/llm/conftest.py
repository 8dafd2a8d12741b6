"""Tiny random models in Hugging Face's layout, and the compiled kernels."""

import contextlib
import ctypes
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from tests.unit.engines.llm.late_device import LateDevice  # noqa: E402

from headway.adapters.models import cache_folder  # noqa: E402
from headway.engines.llm.device_engine import DeviceLlmEngine  # noqa: E402
from headway.engines.llm.engine import TorchLlmEngine  # noqa: E402
from headway.engines.llm.kernels import KernelsUnavailable, load_kernels  # noqa: E402
from headway.engines.llm.loading import EngineSettings  # noqa: E402  (torch decides)

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def random_tensors(config: dict[str, object], seed: int) -> Iterator[tuple[str, "torch.Tensor"]]:
    generator = torch.Generator().manual_seed(seed)
    hidden, feed, layers, heads, kv, width, vocab = (
        int(str(config[key]))
        for key in (
            *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "vocab_size"),
        )
    )

    def matrix(rows: int, columns: int) -> "torch.Tensor":
        return torch.randn(rows, columns, generator=generator).mul(2 * columns**-0.5).bfloat16()

    yield "model.embed_tokens.weight", matrix(vocab, hidden)
    yield "model.norm.weight", torch.ones(hidden)
    for index in range(layers):
        prefix = f"model.layers.{index}."
        yield prefix + "input_layernorm.weight", torch.ones(hidden)
        yield prefix + "post_attention_layernorm.weight", torch.ones(hidden)
        yield prefix + "self_attn.q_proj.weight", matrix(heads * width, hidden)
        yield prefix + "self_attn.k_proj.weight", matrix(kv * width, hidden)
        yield prefix + "self_attn.v_proj.weight", matrix(kv * width, hidden)
        yield prefix + "self_attn.o_proj.weight", matrix(hidden, heads * width)
        yield prefix + "mlp.gate_proj.weight", matrix(feed, hidden)
        yield prefix + "mlp.up_proj.weight", matrix(feed, hidden)
        yield prefix + "mlp.down_proj.weight", matrix(hidden, feed)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what the set-up compiled: to compile it takes 9 CPU seconds, and test_kernels.py does it."""
    folder = tmp_path_factory.mktemp("kernels")
    with contextlib.suppress(KernelsUnavailable):
        built = Path(load_kernels(cache_folder())._name)
        (folder / "kernels").mkdir()
        shutil.copy(built, folder / "kernels")
    return folder


@pytest.fixture(scope="session")
def library(kernel_cache: Path) -> ctypes.CDLL:
    try:
        return load_kernels(kernel_cache)
    except KernelsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    safetensors.save_file(dict(random_tensors(TINY, seed=3)), str(folder / "model.safetensors"))
    return folder


Engine = TorchLlmEngine | DeviceLlmEngine


def tiny_engine(kind: str, folder: Path, cache: Path, **changes: Any) -> Engine:
    """`kind`: native or torch kernels, or the device engine on a `LateDevice`."""
    settings = EngineSettings(
        folder=folder,
        model="tiny",
        cache=cache,
        kernels="auto" if kind == "device" else kind,
        dtype="float32",
        **{"kv_blocks": 256, "block_size": 8, "host_slots": 16, **changes},
    )
    clock = iter(range(0, 10**12, 1000)).__next__
    return DeviceLlmEngine(settings, LateDevice(), clock) if kind == "device" else TorchLlmEngine(settings, clock)


@pytest.fixture(params=["native", "torch", "device"])
def make_engine(request: pytest.FixtureRequest, tiny_folder: Path, kernel_cache: Path) -> Callable[..., Engine]:
    if request.param == "native":
        request.getfixturevalue("library")
    return partial(tiny_engine, request.param, tiny_folder, kernel_cache)
