"""Layer operations of an accelerator: torch's fused attention over gathered pages.  # never run on a device

Not batch-invariant (SPEC B7): the fused kernels choose their tiles by the shapes of the whole batch, and the products
of an accelerator do too. Nothing here waits for the device, so that a decode step can be captured as a graph.
"""

import torch
from torch.nn import functional

from headway.engines.llm.config import ModelConfig
from headway.engines.llm.forks import Fork, in_line
from headway.engines.llm.ops import HeadNorms, RopeTables, Rows, TorchOps


class SdpaOps(TorchOps):
    """Query heads that share a KV head are folded into its query rows; products in `dtype`."""

    def __init__(
        self, config: ModelConfig, rope: RopeTables, block_size: int, dtype: torch.dtype, fork: Fork = in_line
    ) -> None:
        super().__init__(config, rope, block_size)
        self._dtype, self._fork = dtype, fork
        self._group = config.heads // config.kv_heads
        self._width = config.heads * config.head_dim
        device = rope.cosines.device
        self._offsets = torch.arange(block_size, device=device)
        self._numbers = torch.arange(rope.cosines.shape[0] + block_size, device=device)

    def rope_store(
        self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor, norms: HeadNorms | None
    ) -> None:
        """V is neither normed nor turned: a captured step stores it beside the kernels that Q and K go through."""
        join = self._fork(lambda: self._store_values(qkv, rows, values))
        self._turn_and_store_keys(qkv, rows, keys, norms)
        join()

    def _store_values(self, qkv: torch.Tensor, rows: Rows, values: torch.Tensor) -> None:
        config = self._config
        values[rows.slots] = qkv.view(qkv.shape[0], -1, config.head_dim)[:, config.heads + config.kv_heads :]

    def attention(self, qkv: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        config, spans = self._config, rows.spans
        queries = qkv[:, : self._width].view(-1, config.kv_heads, self._group, config.head_dim).to(self._dtype)
        out = qkv.new_zeros(qkv.shape[0], self._width)
        if spans.singles:
            out[: spans.singles] = self._singles(queries[: spans.singles], rows, keys, values)
        for span in spans.chunks:
            at = slice(span.first, span.first + span.count)
            last = span.context + span.count - 1
            table = rows.tables[span.owner, : -(-last // self._block_size)]
            out[at] = self._chunk(queries[at], span.context, *self._pages(table[None], keys, values))
        return out

    def _singles(self, queries: torch.Tensor, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """queries [rows, kv_heads, group, head_dim], each of another sequence; a row without context gives zeros."""
        count = queries.shape[0]
        contexts = rows.contexts[:count, None]
        tables = rows.tables[rows.owners[:count].long(), : max(1, rows.spans.blocks)]
        k, v = self._pages(tables, keys, values)
        # A row that sees nothing has no softmax: it is shown one position, and its result is left out.
        seen = self._numbers[: k.shape[2]] < contexts.clamp(min=1)
        found = functional.scaled_dot_product_attention(queries, k, v, attn_mask=seen[:, None, None])
        return torch.where(contexts > 0, found.reshape(count, -1).float(), 0.0)

    def _chunk(self, queries: torch.Tensor, context: int, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """queries [rows, kv_heads, group, head_dim] at consecutive positions of one sequence."""
        count = queries.shape[0]
        folded = queries.transpose(0, 1).reshape(1, queries.shape[1], count * self._group, queries.shape[3])
        seen = self._numbers[: k.shape[2]] < (self._numbers[:count, None] + context)
        mask = seen.repeat_interleave(self._group, dim=0, output_size=count * self._group)
        found = functional.scaled_dot_product_attention(folded, k, v, attn_mask=mask)
        return found[0].view(queries.shape[1], count, -1).transpose(0, 1).reshape(count, -1).float()

    def _pages(
        self, tables: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the blocks in tables [sequences, blocks], each [sequences, kv_heads, slots, head_dim]."""
        slots = (tables.long()[..., None] * self._block_size + self._offsets).flatten(1)
        return keys[slots].transpose(1, 2).to(self._dtype), values[slots].transpose(1, 2).to(self._dtype)
