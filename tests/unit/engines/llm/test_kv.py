from pathlib import Path

import pytest
import torch

from headway.core.errors import EngineError
from headway.engines.llm.config import ModelConfig, read_config
from headway.engines.llm.kv import KvPool


@pytest.fixture
def config(tiny_folder: Path) -> ModelConfig:
    return read_config(tiny_folder)


@pytest.fixture
def pool(config: ModelConfig) -> KvPool:
    made = KvPool(config, blocks=6, block_size=8, host_slots=3, device=torch.device("cpu"))
    made.keys.normal_()
    made.values.normal_()
    return made


def part(pool: KvPool, block: int) -> torch.Tensor:
    span = slice(block * 8, block * 8 + 8)
    return torch.stack([pool.keys[:, span], pool.values[:, span]]).clone()


def test_swapping_out_and_in_moves_blocks_unchanged(pool: KvPool) -> None:
    two, four = part(pool, 2), part(pool, 4)
    pool.swap_out((2, 4), (1, 0))
    pool.keys.zero_()
    pool.values.zero_()
    pool.swap_in((5, 3), (1, 0))
    assert torch.equal(part(pool, 5), two)
    assert torch.equal(part(pool, 3), four)


def test_bytes_of_blocks_can_be_written_elsewhere(pool: KvPool, config: ModelConfig) -> None:
    other = KvPool(config, blocks=4, block_size=8, host_slots=0, device=torch.device("cpu"))
    payload = pool.read((5, 1))
    assert len(payload) == 2 * pool.bytes_per_block
    other.write((0, 3), payload)
    assert torch.equal(part(other, 0), part(pool, 5))
    assert torch.equal(part(other, 3), part(pool, 1))


def test_refuses_a_payload_of_another_size(pool: KvPool) -> None:
    with pytest.raises(EngineError, match="2 blocks need"):
        pool.write((0, 1), pool.read((0,)))


def test_refuses_blocks_and_slots_that_do_not_exist(pool: KvPool) -> None:
    with pytest.raises(EngineError, match="block 6 is outside the pool of 6"):
        pool.read((6,))
    with pytest.raises(EngineError, match="host slot 3 is outside"):
        pool.swap_out((0,), (3,))


def test_the_scratch_slot_lies_in_no_block(pool: KvPool) -> None:
    assert pool.scratch_slot == 48 < pool.keys.shape[1]
