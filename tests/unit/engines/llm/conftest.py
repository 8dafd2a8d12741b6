"""Tiny random models in Hugging Face's layout, the compiled kernels, and a planner that drives an engine by hand."""

import ctypes
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from headway.core.plans import Chunk, Join, NewSequence, StepPlan  # noqa: E402  (torch decides whether to go on)
from headway.core.request import SamplingParams  # noqa: E402
from headway.engines.llm.engine import EngineSettings, TorchLlmEngine  # noqa: E402
from headway.engines.llm.kernels import KernelsUnavailable, load_kernels  # noqa: E402

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


def _random_tensors(config: dict[str, object], seed: int) -> Iterator[tuple[str, "torch.Tensor"]]:
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
    return tmp_path_factory.mktemp("kernels")


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
    safetensors.save_file(dict(_random_tensors(TINY, seed=3)), str(folder / "model.safetensors"))
    return folder


@pytest.fixture(params=["native", "torch"])
def make_engine(request: pytest.FixtureRequest, tiny_folder: Path, kernel_cache: Path) -> Callable[..., TorchLlmEngine]:
    if request.param == "native":
        request.getfixturevalue("library")

    def make(**changes: int) -> TorchLlmEngine:
        return TorchLlmEngine(
            EngineSettings(
                folder=tiny_folder,
                model="tiny",
                cache=kernel_cache,
                kernels=request.param,
                dtype="float32",
                **{"kv_blocks": 256, "block_size": 8, "host_slots": 16, **changes},
            ),
            clock=iter(range(0, 10**12, 1000)).__next__,
        )

    return make


class Planner:
    """Writes plans for one engine: blocks are never reused, so that a test sees only what it does itself."""

    def __init__(self, engine: TorchLlmEngine) -> None:
        self.engine = engine
        self.step = 0
        self.next_block = 0
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}  # positions stored
        self.decoding: list[int] = []
        self.tokens: dict[int, list[int]] = {}
        self.pending: dict[str, list[object]] = {}

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.engine.limits.block_size)

    def take(self, count: int) -> tuple[int, ...]:
        self.next_block += count
        return tuple(range(self.next_block - count, self.next_block))

    def new(self, seq: int, prompt: list[int], outputs: tuple[int, ...] = (), **sampling: object) -> None:
        params = SamplingParams(**{"max_tokens": 1000, "temperature": 0.0, **sampling})
        self.pending.setdefault("new", []).append(
            NewSequence(seq=seq, request=f"req-{seq}", prompt=tuple(prompt), outputs=outputs, sampling=params)
        )
        self.tokens[seq] = [*prompt, *outputs]

    def chunk(self, seq: int, count: int) -> None:
        """Prefill `count` more tokens; the first one after `new` or `preempt` brings the table."""
        table: tuple[int, ...] = ()
        if seq not in self.tables:
            table = self.take(self.blocks_for(len(self.tokens[seq])))
            self.tables[seq] = list(table)
            self.lengths[seq] = 0
        start = self.lengths[seq]
        samples = start + count == len(self.tokens[seq])
        self.pending.setdefault("chunks", []).append(
            Chunk(seq=seq, start=start, count=count, samples=samples, table=table)
        )
        self.lengths[seq] = start + count

    def join(self, seq: int, token: int = -1) -> None:
        self.pending.setdefault("join", []).append(Join(seq=seq, token=token, step=self.step))
        self.decoding.append(seq)

    def drop(self, seq: int, how: str) -> None:
        """`how`: leave, preempt or pause."""
        self.pending.setdefault(how, []).append(seq)
        if seq in self.decoding:
            self.decoding.remove(seq)
        if how != "pause":
            del self.tables[seq]

    def run(self, **more: object) -> "dict[int, int]":
        """Run the step that was prepared; returns what it sampled."""
        self.step += 1
        grants = []
        for seq in self.decoding:
            if self.blocks_for(self.lengths[seq] + 1) > len(self.tables[seq]):
                block = self.take(1)[0]
                self.tables[seq].append(block)
                grants.append((seq, block))
            self.lengths[seq] += 1
        chunks = self.pending.get("chunks", [])
        parts = {key: tuple(value) for key, value in self.pending.items()}
        plan = StepPlan(
            step=self.step,
            basis_step=self.step - 1,
            kind="mixed",
            grant=tuple(grants),
            decodes=len(self.decoding),
            kv_tokens=sum(self.lengths[seq] for seq in self.decoding),
            prefill_tokens=sum(chunk.count for chunk in chunks),
            **parts,
        )
        plan = msgspec.structs.replace(plan, **more)
        self.pending = {}
        self.done = self.engine.run(plan)
        sampled = dict(zip(self.done.seqs, self.done.tokens, strict=True))
        for seq, token in sampled.items():
            self.tokens[seq].append(token)
        return sampled

    def alone(self, prompt: list[int], outputs: int, **sampling: object) -> list[int]:
        """The outputs of a fresh sequence, prefilled whole, decoded with no neighbour."""
        seq = 100_000 + self.step
        self.new(seq, prompt, **sampling)
        self.chunk(seq, len(prompt))
        self.run()
        self.join(seq)
        for _ in range(outputs - 1):
            self.run()
        self.drop(seq, "leave")
        return self.tokens[seq][len(prompt) :]


@pytest.fixture
def planner_of() -> type[Planner]:
    return Planner
