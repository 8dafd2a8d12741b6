"""Paged KV memory: a pool on the device, a pool of the same blocks on the host, copies between them and to bytes."""

from collections.abc import Sequence

import torch

from headway.core.errors import EngineError
from headway.engines.llm.config import ModelConfig


class KvPool:
    """Keys and values, float32 [layers, slots, kv_heads, head_dim]; slot = block * block_size + offset.

    One block more than asked for is kept: `scratch_slot` lies in it, where padding rows write.
    """

    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, host_slots: int, device: torch.device
    ) -> None:
        self.blocks, self.block_size, self.host_slots = blocks, block_size, host_slots
        per_slot = (config.kv_heads, config.head_dim)
        shape = (config.layers, (blocks + 1) * block_size, *per_slot)
        # zeros is calloc: pages are committed when a block is first written.
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)
        self.layers = tuple(zip(self.keys.unbind(), self.values.unbind(), strict=True))
        self._host = torch.zeros(2, config.layers, host_slots, block_size, *per_slot)
        self._block_shape = (block_size, *per_slot)
        self.block_shape = (2, config.layers, *self._block_shape)  # keys and values of one block
        self.scratch_slot = blocks * block_size
        self.bytes_per_block = 2 * config.layers * block_size * config.kv_heads * config.head_dim * 4

    def swap_out(self, blocks: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copy device blocks to host slots, pairwise."""
        index, slots = self._block_index(blocks), self._host_index(host_slots)
        for part, pool in enumerate((self.keys, self.values)):
            self._host[part][:, slots] = self._by_block(pool)[:, index].cpu()

    def swap_in(self, blocks: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copy host slots to device blocks, pairwise."""
        index, slots = self._block_index(blocks), self._host_index(host_slots)
        for part, pool in enumerate((self.keys, self.values)):
            self._by_block(pool)[:, index] = self._host[part][:, slots].to(pool.device)

    def read(self, blocks: Sequence[int]) -> bytes:
        """Layout: [keys and values, layers, blocks, block_size, kv_heads, head_dim], float32, this machine's order."""
        index = self._block_index(blocks)
        parts = [self._by_block(pool)[:, index] for pool in (self.keys, self.values)]
        return torch.stack(parts).cpu().numpy().tobytes()

    def write(self, blocks: Sequence[int], payload: bytes) -> None:
        """The inverse of `read`."""
        self.check_payload(blocks, payload)
        index = self._block_index(blocks)
        flat = torch.frombuffer(bytearray(payload), dtype=torch.float32)
        parts = flat.view(2, self.keys.shape[0], len(blocks), *self._block_shape)
        for part, pool in zip(parts, (self.keys, self.values), strict=True):
            self._by_block(pool)[:, index] = part.to(pool.device)

    def gather(self, index: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the blocks that `index` (int64, where the pool lies) names to out [blocks, *block_shape]."""
        for part, pool in enumerate((self.keys, self.values)):
            out[:, part].copy_(self._by_block(pool).index_select(1, index).transpose(0, 1))

    def scatter(self, index: torch.Tensor, source: torch.Tensor) -> None:
        """The inverse of `gather`."""
        for part, pool in enumerate((self.keys, self.values)):
            self._by_block(pool)[:, index] = source[:, part].transpose(0, 1)

    def check_blocks(self, blocks: Sequence[int]) -> None:
        """Raises EngineError for a block that does not exist."""
        if outside := [block for block in blocks if not 0 <= block < self.blocks]:
            raise EngineError(f"block {outside[0]} is outside the pool of {self.blocks} blocks")

    def check_payload(self, blocks: Sequence[int], payload: bytes) -> None:
        """Raises EngineError for bytes that are not the KV of so many blocks."""
        if len(payload) != len(blocks) * self.bytes_per_block:
            raise EngineError(
                f"{len(blocks)} blocks need {len(blocks) * self.bytes_per_block} bytes of KV, {len(payload)} came;"
                " both replicas must serve the same model with the same block size"
            )

    def _by_block(self, pool: torch.Tensor) -> torch.Tensor:
        return pool.view(pool.shape[0], self.blocks + 1, *self._block_shape)

    def _block_index(self, blocks: Sequence[int]) -> torch.Tensor:
        self.check_blocks(blocks)
        return torch.tensor(blocks, dtype=torch.long)

    def _host_index(self, slots: Sequence[int]) -> torch.Tensor:
        if outside := [slot for slot in slots if not 0 <= slot < self.host_slots]:
            raise EngineError(f"host slot {outside[0]} is outside the swap space of {self.host_slots} slots")
        return torch.tensor(slots, dtype=torch.long)
