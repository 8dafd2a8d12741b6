"""Runs an engine once before it counts as ready: first-touch memory, compiled kernels, thread pools."""

from typing import Final

from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.ports import LlmEngine
from headway.core.request import SamplingParams

_SEQ: Final = -1  # machines count from 0
_TOKENS: Final = 32


def warm_up(engine: LlmEngine) -> None:
    """Prefill one sequence, decode one token, forget it. Steps are numbered below 0, which no machine uses."""
    limits = engine.limits
    tokens = min(_TOKENS, limits.max_model_len - 2, (limits.kv_blocks - 1) * limits.block_size - 2)
    blocks = -(-(tokens + 2) // limits.block_size)
    sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    new = NewSequence(_SEQ, RequestId("req-warm-up"), (0,) * tokens, (), sampling)
    chunk = Chunk(_SEQ, 0, tokens, samples=True, table=tuple(range(blocks)))
    prefill = StepPlan(-3, -4, "prefill", new=(new,), chunks=(chunk,), prefill_tokens=tokens)
    token = engine.run(prefill).tokens[0]
    decode = StepPlan(-2, -3, "decode", join=(Join(_SEQ, token=token),), decodes=1, kv_tokens=tokens + 1)
    engine.run(decode)
    engine.run(StepPlan(-1, -2, "dummy", leave=(_SEQ,)))
