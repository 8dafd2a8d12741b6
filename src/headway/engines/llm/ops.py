"""The operations of a decoder layer besides matrix products, in two ways with one meaning: C++ kernels and torch."""

import ctypes
from typing import Protocol

import msgspec
import torch

from headway.engines.llm.config import ModelConfig
from headway.engines.llm.kernels import pointer

# The kernel keeps this many query vectors of one KV head on its stack.
_QUERIES_PER_TILE = 96


class Span(msgspec.Struct, frozen=True, gc=False):
    """Rows first to first + count: consecutive positions of `owner`, the first of which sees `context` positions."""

    first: int
    count: int
    owner: int
    context: int


class Spans(msgspec.Struct, frozen=True):
    """What the host knows of the rows, for attention that is launched in pieces: `singles` rows come first, each of
    another sequence and none with a context above `blocks` blocks; then chunks; what is left is padding."""

    singles: int
    blocks: int
    chunks: tuple[Span, ...] = ()


class Rows(msgspec.Struct, frozen=True):
    """The flattened batch of one step. Consecutive rows of one owner are consecutive positions of it.

    positions, contexts, owners: int32 [rows]; slots: int64 [rows]; tables: int32 [owners, blocks]. A padding row has
    context 0 and a slot in the scratch block. tile_starts: int32 [tiles + 1], where a tile of attention begins.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    contexts: torch.Tensor
    owners: torch.Tensor
    tables: torch.Tensor
    tile_starts: torch.Tensor
    spans: Spans


class HeadNorms(msgspec.Struct, frozen=True):
    """Weights of the per-head norms of Qwen3, each [head_dim]."""

    query: torch.Tensor
    key: torch.Tensor


class Ops(Protocol):
    """Row results depend on their own row and its KV only."""

    def add_norm(self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """Add `delta` to `residual` in place and return its RMS norm times `weight`, all [rows, hidden]."""
        ...

    def rope_store(
        self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor, norms: HeadNorms | None
    ) -> None:
        """Norm and rotate Q and K of qkv [rows, (heads + 2 kv_heads) * head_dim] in place; store K and V."""
        ...

    def attention(self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged pool [slots, kv_heads, head_dim]; returns [rows, heads * head_dim]."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of [rows, 2 * feed_forward]."""
        ...


class RopeTables(msgspec.Struct, frozen=True):
    cosines: torch.Tensor
    sines: torch.Tensor


def rows_per_tile(config: ModelConfig) -> int:
    """How many consecutive rows of one sequence share a tile of attention."""
    return max(1, min(32, _QUERIES_PER_TILE // (config.heads // config.kv_heads)))


def native_refusal(config: ModelConfig, block_size: int) -> str | None:
    """Why the C++ kernels cannot serve this shape, or None."""
    if config.head_dim % 16 or config.head_dim > 256:
        return f"head_dim {config.head_dim} is not a multiple of 16 up to 256"
    if config.hidden % 8 or config.feed_forward % 8:
        return f"hidden {config.hidden} or feed_forward {config.feed_forward} is not a multiple of 8"
    if config.heads // config.kv_heads > _QUERIES_PER_TILE:
        return f"{config.heads // config.kv_heads} heads share a KV head, above {_QUERIES_PER_TILE}"
    if block_size % 8 or block_size > 64:
        return f"block_size {block_size} is not a multiple of 8 up to 64"
    return None


class NativeOps:
    """The C++ kernels."""

    def __init__(
        self, library: ctypes.CDLL, threads: int, config: ModelConfig, rope: RopeTables, block_size: int
    ) -> None:
        self.library, self.threads, self._config, self.rope = library, threads, config, rope
        self._rope_pointers = (rope.cosines.data_ptr(), rope.sines.data_ptr())
        self.block_size = block_size

    def add_norm(self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        rows, width = residual.shape
        out = torch.empty_like(residual)
        stride = 0 if delta is None else delta.stride(0)
        self.library.hw_add_rms_norm(
            *(residual.data_ptr(), pointer(delta), stride, weight.data_ptr(), out.data_ptr()),
            *(rows, width, self._config.norm_eps, self.threads),
        )
        return out

    def rope_store(
        self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor, norms: HeadNorms | None
    ) -> None:
        config = self._config
        q_norm, k_norm = (None, None) if norms is None else (norms.query, norms.key)
        self.library.hw_rope_store(
            *(qkv.data_ptr(), qkv.stride(0), *self._rope_pointers),
            *(rows.positions.data_ptr(), rows.slots.data_ptr(), keys.data_ptr(), values.data_ptr()),
            *(pointer(q_norm), pointer(k_norm), config.norm_eps, qkv.shape[0]),
            *(config.heads, config.kv_heads, config.head_dim, self.threads),
        )

    def attention(self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        config = self._config
        out = qkv.new_empty(qkv.shape[0], config.heads * config.head_dim)
        self.library.hw_attention(
            *(qkv.data_ptr(), qkv.stride(0), keys.data_ptr(), values.data_ptr()),
            *(rows.tables.data_ptr(), rows.tables.stride(0), rows.owners.data_ptr(), rows.contexts.data_ptr()),
            *(rows.tile_starts.data_ptr(), rows.tile_starts.shape[0] - 1, out.data_ptr()),
            *(config.heads, config.kv_heads, config.head_dim, self.block_size),
            *(config.head_dim**-0.5, self.threads),
        )
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape[0], self._config.feed_forward
        out = gate_up.new_empty(rows, width)
        self.library.hw_silu_mul(gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), rows, width, self.threads)
        return out


class TorchOps:
    """Plain torch, for machines without a compiler and for devices; slower on a CPU, the same meaning."""

    _ROWS_AT_ONCE = 32
    _BLOCKS_AT_ONCE = 4

    def __init__(self, config: ModelConfig, rope: RopeTables, block_size: int) -> None:
        self._config, self._rope, self._block_size = config, rope, block_size

    def add_norm(self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        if delta is not None:
            residual.add_(delta)
        return self._norm(residual, weight)

    def rope_store(
        self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor, norms: HeadNorms | None
    ) -> None:
        parts = self._turn_and_store_keys(qkv, rows, keys, norms)
        values[rows.slots] = parts[:, self._config.heads + self._config.kv_heads :]

    def _turn_and_store_keys(
        self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, norms: HeadNorms | None
    ) -> torch.Tensor:
        """All but V; returns qkv by heads, [rows, heads + 2 kv_heads, head_dim]."""
        config = self._config
        parts = qkv.view(qkv.shape[0], -1, config.head_dim)
        turned = config.heads + config.kv_heads
        if norms is not None:
            parts[:, : config.heads] = self._norm(parts[:, : config.heads], norms.query)
            parts[:, config.heads : turned] = self._norm(parts[:, config.heads : turned], norms.key)
        index = rows.positions.long()
        cosines, sines = self._rope.cosines[index][:, None], self._rope.sines[index][:, None]
        low, high = parts[:, :turned].chunk(2, dim=-1)
        parts[:, :turned] = torch.cat([low * cosines - high * sines, high * cosines + low * sines], dim=-1)
        keys[rows.slots] = parts[:, config.heads : turned]
        return parts

    def attention(self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        config = self._config
        queries = qkv[:, : config.heads * config.head_dim].view(
            -1, config.kv_heads, config.heads // config.kv_heads, config.head_dim
        )
        out = qkv.new_empty(qkv.shape[0], config.heads * config.head_dim)
        for start in range(0, qkv.shape[0], self._ROWS_AT_ONCE):
            part = slice(start, start + self._ROWS_AT_ONCE)
            tables = rows.tables[rows.owners[part].long()].long()
            out[part] = self._attend(queries[part], tables, rows.contexts[part], keys, values)
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return gate / (1 + torch.exp(-gate)) * up

    def _attend(
        self,
        queries: torch.Tensor,
        tables: torch.Tensor,
        contexts: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Running softmax over groups of blocks, ascending; a row sees the same sizes whatever its batch."""
        rows, kv_heads, group, width = queries.shape
        span = self._BLOCKS_AT_ONCE * self._block_size
        scaled = queries * width**-0.5
        peak = queries.new_full((rows, kv_heads, group, 1), -torch.inf)
        mass = torch.zeros_like(peak)
        total = torch.zeros_like(queries)
        offsets = torch.arange(span, device=queries.device)
        for start in range(0, int(contexts.max()), span):
            blocks = tables[:, (start + offsets).clamp(max=tables.shape[1] * self._block_size - 1) // self._block_size]
            slots = blocks * self._block_size + offsets % self._block_size
            seen = (start + offsets) < contexts[:, None]
            k = torch.where(seen[..., None, None], keys[slots], 0.0)
            v = torch.where(seen[..., None, None], values[slots], 0.0)
            scores = (scaled[:, None] * k[:, :, :, None]).sum(-1).permute(0, 2, 3, 1)
            scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
            top = torch.maximum(peak, scores.amax(-1, keepdim=True))
            # A row without context keeps -inf, and exp(-inf - -inf) is no number.
            base = top.clamp(min=torch.finfo(top.dtype).min)
            shrink, weights = torch.exp(peak - base), torch.exp(scores - base)
            mass = mass * shrink + weights.sum(-1, keepdim=True)
            total = total * shrink + (weights.permute(0, 3, 1, 2)[..., None] * v[:, :, :, None]).sum(1)
            peak = top
        result = torch.where(mass > 0, total / mass, 0.0)
        return result.reshape(rows, -1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x * (1.0 / torch.sqrt(mean + self._config.norm_eps)) * weight
