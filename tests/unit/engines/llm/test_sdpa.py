import msgspec
import pytest
import torch
from tests.unit.engines.llm.test_ops import BLOCK, SHAPES, pools, random, rope_of, rows_of

from headway.engines.llm.config import ModelConfig
from headway.engines.llm.ops import NativeOps, Spans
from headway.engines.llm.sdpa import SdpaOps

# float32 sums in another order: measured up to 1.2e-6 for values of size 1.
CLOSE = {"atol": 1e-5, "rtol": 0.0}


def both(config: ModelConfig, spans: list[tuple[int, int, int]], library, singles: int = 0):
    """Attention of the same rows by the kernel and by SDPA, the first `singles` of them as decodes."""
    rows = rows_of(config, spans)
    qkv = random(len(rows.positions), (config.heads + 2 * config.kv_heads) * config.head_dim)
    keys, values = pools(config)
    exact = NativeOps(library, 1, config, rope_of(config), BLOCK).attention(qkv, rows, keys, values)
    longest = max((start + 1 for _, start, _ in spans[:singles]), default=0)
    parts = Spans(singles=singles, blocks=-(-longest // BLOCK), chunks=rows.spans.chunks[singles:])
    rows = msgspec.structs.replace(rows, spans=parts)
    return SdpaOps(config, rope_of(config), BLOCK, torch.float32).attention(qkv, rows, keys, values), exact


@pytest.mark.parametrize("config", SHAPES)
def test_decodes_attend_as_the_kernel_does(config: ModelConfig, library) -> None:
    found, exact = both(config, [(0, 0, 1), (1, 37, 1), (2, 99, 1), (3, 15, 1)], library, singles=4)
    torch.testing.assert_close(found, exact, **CLOSE)


@pytest.mark.parametrize("config", SHAPES)
@pytest.mark.parametrize("start", [0, 5, 16, 90])
def test_chunks_see_what_lies_before_each_of_their_rows(config: ModelConfig, start: int, library) -> None:
    found, exact = both(config, [(0, 3, 1), (2, start, 21), (1, 0, 2)], library, singles=1)
    torch.testing.assert_close(found, exact, **CLOSE)


def test_padding_gives_zeros_and_no_nan(library) -> None:
    config = SHAPES[0]
    rows = rows_of(config, [(0, 9, 1), (1, 0, 1)])
    rows.contexts[1] = 0
    qkv = random(2, (config.heads + 2 * config.kv_heads) * config.head_dim)
    rows = msgspec.structs.replace(rows, spans=Spans(singles=2, blocks=1))
    found = SdpaOps(config, rope_of(config), BLOCK, torch.float32).attention(qkv, rows, *pools(config))
    assert found[1].abs().max() == 0
    assert found[0].isfinite().all()
