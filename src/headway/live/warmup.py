"""Runs an engine once before it counts as ready: first-touch memory, compiled kernels, thread pools, every bucket."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.ports import LlmEngine
from headway.core.request import SamplingParams
from headway.sched.executor.buckets import Buckets, shaped

_TOKENS: Final = 32
_SAMPLING: Final = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)


def warm_up(engine: LlmEngine, buckets: Buckets | None = None, decodes_max: int = 1) -> None:
    """Prefill one sequence, decode one token, forget it: unpadded, and in every bucket, the largest first.

    Decodes are padded to the buckets that `decodes_max` of them can have. Steps are numbered below 0, and so are
    sequences, which no machine uses.
    """
    rounds = list(_rounds(buckets or Buckets(), decodes_max))
    step = -2 * len(rounds) - 1
    gone: tuple[int, ...] = ()
    for number, (size, of_prefill, of_decode) in enumerate(rounds):
        seq = number - len(rounds)
        prefill = _prefill(engine, seq, size)
        plan = StepPlan(
            step,
            step - 1,
            "prefill",
            leave=gone,
            new=(NewSequence(seq, RequestId("req-warm-up"), (0,) * prefill.count, (), _SAMPLING),),
            chunks=(prefill,),
            prefill_tokens=prefill.count,
        )
        token = engine.run(shaped(plan, of_prefill)).tokens[0]
        join = (Join(seq, token=token),)
        decode = StepPlan(step + 1, step, "decode", join=join, decodes=1, kv_tokens=prefill.count + 1)
        engine.run(shaped(decode, of_decode))
        step, gone = step + 2, (seq,)
    engine.run(StepPlan(step, step - 1, "dummy", leave=gone))


def _rounds(buckets: Buckets, decodes_max: int) -> Iterator[tuple[int, Buckets, Buckets]]:
    """Most tokens of the prompt, and what its prefill and its decode are padded to."""
    plain = Buckets()
    yield _TOKENS, plain, plain
    of_decodes = buckets.rows[: bisect_left(buckets.rows, decodes_max) + 1]
    for size in reversed(buckets.rows):
        only = Buckets((size,), buckets.graph_mode)
        yield size, only, only if size in of_decodes else plain


def _prefill(engine: LlmEngine, seq: int, size: int) -> Chunk:
    limits = engine.limits
    tokens = min(_TOKENS, size, limits.max_model_len - 2, (limits.kv_blocks - 1) * limits.block_size - 2)
    blocks = -(-(tokens + 2) // limits.block_size)
    return Chunk(seq, 0, tokens, samples=True, table=tuple(range(blocks)))
