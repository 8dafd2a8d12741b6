import ctypes
from pathlib import Path

import pytest
import torch

from headway.engines.llm.config import ModelConfig
from headway.engines.llm.ops import (
    HeadNorms,
    NativeOps,
    Ops,
    RopeTables,
    Rows,
    Span,
    Spans,
    TorchOps,
    native_refusal,
    rows_per_tile,
)
from headway.engines.llm.rope import rope_tables

BLOCK, BLOCKS = 16, 40
CPU = torch.device("cpu")


def shape(heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        hidden=heads * head_dim,
        feed_forward=88,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=64,
        max_position=512,
        norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tied_head=True,
        eos_token_ids=(),
    )


SHAPES = [shape(9, 3, 64), shape(4, 2, 128), shape(6, 1, 32), shape(2, 2, 16), shape(8, 1, 256)]


def rope_of(config: ModelConfig) -> RopeTables:
    cosines, sines = rope_tables(config, 512, CPU)
    return RopeTables(cosines=cosines, sines=sines)


@pytest.fixture(params=["native", "torch"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ops_of(kind: str, config: ModelConfig, request: pytest.FixtureRequest) -> Ops:
    if kind == "torch":
        return TorchOps(config, rope_of(config), BLOCK)
    library: ctypes.CDLL = request.getfixturevalue("library")
    return NativeOps(library, 1, config, rope_of(config), BLOCK)


def rows_of(config: ModelConfig, spans: list[tuple[int, int, int]]) -> Rows:
    """One span (owner, first position, count) after another; owner k holds blocks of its own, scattered."""
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(1)).int()
    tables = order.view(4, BLOCKS // 4).contiguous()
    owners = torch.cat([torch.full((count,), owner) for owner, _, count in spans]).int()
    positions = torch.cat([torch.arange(start, start + count) for _, start, count in spans]).int()
    slots = tables[owners.long(), positions.long() // BLOCK].long() * BLOCK + positions.long() % BLOCK
    starts, chunks, at = [], [], 0
    for owner, start, count in spans:
        chunks.append(Span(at, count, owner, start + 1))
        starts += range(at, at + count, rows_per_tile(config))
        at += count
    return Rows(
        positions=positions,
        slots=slots,
        contexts=positions + 1,
        owners=owners,
        tables=tables,
        tile_starts=torch.tensor([*starts, at], dtype=torch.int32),
        spans=Spans(singles=0, blocks=0, chunks=tuple(chunks)),
    )


def random(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def pools(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = (BLOCKS * BLOCK, config.kv_heads, config.head_dim)
    return random(*sizes, seed=2), random(*sizes, seed=3)


def width(config: ModelConfig) -> int:
    return (config.heads + 2 * config.kv_heads) * config.head_dim


def exact_attention(config: ModelConfig, qkv: torch.Tensor, rows: Rows, *pool: torch.Tensor) -> torch.Tensor:
    """softmax(q k / sqrt(d)) v in float64, row by row."""
    out = []
    for row in range(len(qkv)):
        context = int(rows.contexts[row])
        at = torch.arange(context)
        slots = rows.tables[int(rows.owners[row])].long()[at // BLOCK] * BLOCK + at % BLOCK
        keys, values = (part.double()[slots].transpose(0, 1) for part in pool)
        query = qkv[row, : config.heads * config.head_dim].double().view(config.kv_heads, -1, config.head_dim)
        weights = torch.softmax(query @ keys.transpose(1, 2) * config.head_dim**-0.5, dim=-1)
        out.append((weights @ values).reshape(-1))
    return torch.stack(out)


@pytest.mark.parametrize("config", SHAPES, ids=lambda config: f"{config.heads}-{config.kv_heads}-{config.head_dim}")
def test_attention_is_close_to_float64(kind: str, config: ModelConfig, request: pytest.FixtureRequest) -> None:
    rows = rows_of(config, [(0, 40, 1), (1, 0, 37), (2, 149, 1), (3, 16, 140)])
    qkv, (keys, values) = random(len(rows.positions), width(config)), pools(config)
    got = ops_of(kind, config, request).attention(qkv, rows, keys, values)
    # Values are below 5 and sums have at most 156 terms: 156 roundings of 2**-24 each stay below 1e-5 of them.
    torch.testing.assert_close(got.double(), exact_attention(config, qkv, rows, keys, values), atol=5e-5, rtol=0)


# SPEC B7
@pytest.mark.parametrize("config", SHAPES, ids=lambda config: f"{config.heads}-{config.kv_heads}-{config.head_dim}")
def test_a_row_attends_alike_in_a_chunk_and_alone(
    kind: str, config: ModelConfig, request: pytest.FixtureRequest
) -> None:
    ops = ops_of(kind, config, request)
    rows = rows_of(config, [(1, 0, 37), (0, 40, 1), (3, 16, 20)])
    qkv, (keys, values) = random(len(rows.positions), width(config)), pools(config)
    together = ops.attention(qkv, rows, keys, values)
    for row in (0, 15, 16, 36, 37, 38, 57):
        lone = rows_of(config, [(int(rows.owners[row]), int(rows.positions[row]), 1)])
        alone = ops.attention(qkv[row : row + 1].contiguous(), lone, keys, values)
        assert torch.equal(alone[0], together[row])


# SPEC B7
@pytest.mark.parametrize("block", [8, 16, 24, 64])
@pytest.mark.parametrize("config", SHAPES, ids=lambda config: f"{config.heads}-{config.kv_heads}-{config.head_dim}")
def test_a_row_attends_alike_however_its_chunk_is_cut(config: ModelConfig, block: int, library: ctypes.CDLL) -> None:
    # 150 positions from the 60th on: over several spans of the running softmax, which are at most 64 keys wide.
    count, context = 150, 60
    blocks = -(-(context + count) // block)
    tables = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).int()[None].contiguous()
    sizes = (blocks * block, config.kv_heads, config.head_dim)
    qkv, keys, values = random(count, width(config)), random(*sizes, seed=2), random(*sizes, seed=3)
    ops = NativeOps(library, 1, config, rope_of(config), block)
    positions = torch.arange(context, context + count, dtype=torch.int32)
    results = []
    for rows_of_tile in (1, 2, 5, rows_per_tile(config)):
        starts = torch.tensor([*range(0, count, min(rows_of_tile, rows_per_tile(config))), count], dtype=torch.int32)
        rows = Rows(
            positions=positions,
            slots=positions.long(),
            contexts=positions + 1,
            owners=torch.zeros(count, dtype=torch.int32),
            tables=tables,
            tile_starts=starts,
            spans=Spans(singles=0, blocks=0),
        )
        results.append(ops.attention(qkv, rows, keys, values))
    assert all(torch.equal(result, results[0]) for result in results[1:])


# SPEC B7
@pytest.mark.parametrize("config", SHAPES[:3], ids=lambda config: f"{config.heads}-{config.kv_heads}-{config.head_dim}")
def test_one_thread_and_two_give_the_same_bits(config: ModelConfig, library: ctypes.CDLL) -> None:
    rows = rows_of(config, [(1, 0, 37), (0, 40, 1), (3, 16, 20)])
    weight, gate_up = random(config.hidden, seed=5), random(len(rows.positions), 2 * config.feed_forward)
    results = []
    for threads in (1, 2):
        ops = NativeOps(library, threads, config, rope_of(config), BLOCK)
        qkv, (keys, values) = random(len(rows.positions), width(config)), pools(config)
        residual = random(len(rows.positions), config.hidden)
        ops.rope_store(qkv, rows, keys, values, None)
        attended = ops.attention(qkv, rows, keys, values)
        results.append([qkv, keys, values, attended, ops.silu_mul(gate_up), ops.add_norm(residual, None, weight)])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


# SPEC B7
def test_attention_reads_only_its_own_context(kind: str, request: pytest.FixtureRequest) -> None:
    config = SHAPES[0]
    ops = ops_of(kind, config, request)
    rows = rows_of(config, [(0, 20, 1)])
    qkv, (keys, values) = random(1, width(config)), pools(config)
    before = ops.attention(qkv, rows, keys, values)
    used = rows.tables[0].long()[torch.arange(21) // BLOCK] * BLOCK + torch.arange(21) % BLOCK
    unused = torch.ones(len(keys), dtype=torch.bool)
    unused[used] = False
    keys[unused], values[unused] = torch.nan, torch.nan
    assert torch.equal(ops.attention(qkv, rows, keys, values), before)


def test_a_padding_row_gives_zeros(kind: str, request: pytest.FixtureRequest) -> None:
    config = SHAPES[0]
    rows = rows_of(config, [(0, 20, 1), (1, 5, 1)])
    rows.contexts[1] = 0
    out = ops_of(kind, config, request).attention(random(2, width(config)), rows, *pools(config))
    assert out[0].abs().sum() > 0
    assert torch.equal(out[1], torch.zeros_like(out[1]))


# SPEC B7
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 33])
def test_norms_and_activations_are_alike_in_any_batch(kind: str, rows: int, request: pytest.FixtureRequest) -> None:
    config = SHAPES[0]
    ops = ops_of(kind, config, request)
    weight = random(config.hidden, seed=5)
    residual, delta = random(40, config.hidden), random(40, config.hidden, seed=1)
    gate_up = random(40, 2 * config.feed_forward)
    whole_residual = residual.clone()
    whole = ops.add_norm(whole_residual, delta, weight)
    part_residual = residual[3 : 3 + rows].clone()
    part = ops.add_norm(part_residual, delta[3 : 3 + rows], weight)
    assert torch.equal(part, whole[3 : 3 + rows])
    assert torch.equal(part_residual, whole_residual[3 : 3 + rows])
    assert torch.equal(ops.silu_mul(gate_up[3 : 3 + rows].contiguous()), ops.silu_mul(gate_up)[3 : 3 + rows])


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("config", SHAPES, ids=lambda config: f"{config.heads}-{config.kv_heads}-{config.head_dim}")
def test_the_kernels_agree_with_torch(config: ModelConfig, normed: bool, request: pytest.FixtureRequest) -> None:
    native, plain = ops_of("native", config, request), ops_of("torch", config, request)
    rows = rows_of(config, [(0, 40, 1), (1, 0, 37)])
    norms = HeadNorms(query=random(config.head_dim, seed=7), key=random(config.head_dim, seed=8)) if normed else None
    gate_up = random(len(rows.positions), 2 * config.feed_forward).mul(20)
    weight = random(config.hidden, seed=5)
    results = []
    for ops in (native, plain):
        qkv, (keys, values) = random(len(rows.positions), width(config)), pools(config)
        residual = random(len(rows.positions), config.hidden)
        ops.rope_store(qkv, rows, keys, values, norms)
        results.append([qkv, keys, values, ops.silu_mul(gate_up), ops.add_norm(residual, None, weight)])
    for one, other in zip(*results, strict=True):
        # The exponential and the order of sums differ; 4 units in the last place of the largest value (about 20 * 20).
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-6)


def test_the_kernel_of_silu_survives_extreme_gates(request: pytest.FixtureRequest) -> None:
    config = SHAPES[0]
    gates = torch.tensor([-1e4, -200.0, -88.0, -1.0, 0.0, 1.0, 88.0, 1e4]).repeat(config.feed_forward // 8)
    out = ops_of("native", config, request).silu_mul(torch.cat([gates, torch.ones_like(gates)])[None])
    torch.testing.assert_close(out[0], torch.nn.functional.silu(gates), atol=1e-30, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "block", "word"),
    [
        (shape(2, 2, 24), 16, "head_dim 24"),
        (shape(2, 2, 512), 16, "head_dim 512"),
        (shape(97, 1, 16), 16, "97 heads"),
        (shape(2, 2, 16), 12, "block_size 12"),
    ],
)
def test_names_the_shape_that_the_kernels_cannot_serve(config: ModelConfig, block: int, word: str) -> None:
    assert word in str(native_refusal(config, block))


def test_serves_the_shapes_of_known_models() -> None:
    assert [native_refusal(config, BLOCK) for config in SHAPES] == [None] * len(SHAPES)


def test_the_library_is_compiled_once(library: ctypes.CDLL, kernel_cache: Path) -> None:
    assert len(list((kernel_cache / "kernels").iterdir())) == 1
