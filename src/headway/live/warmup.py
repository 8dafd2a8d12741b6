"""Runs an engine before it counts as ready: first-touch memory, compiled kernels, thread pools, every bucket. Then it
measures some steps, so that what is predicted for the first request is no guess (SPEC A7)."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from headway.core.ids import RequestId
from headway.core.plans import Chunk, Join, NewSequence, StepPlan
from headway.core.ports import LlmEngine
from headway.core.request import SamplingParams
from headway.cost.llm import MeasuredStep, StepShape, pairs
from headway.live.settling import PASSES_MAX, Mark, Settled, settle
from headway.sched.executor.buckets import Buckets, shaped

_TOKENS: Final = 32
_TOKENS_MEASURED: Final = 256  # enough that reading the weights is the smaller part of the step
_DECODES_MEASURED: Final = 4
_SAMPLING: Final = SamplingParams(max_tokens=1 + _DECODES_MEASURED, temperature=0.0, ignore_eos=True)


class _Round(NamedTuple):
    """A sequence of its own: most tokens of its prompt, what its steps are padded to, how many of them decode."""

    size: int
    of_prefill: Buckets
    of_decode: Buckets
    decodes: int = 1

    @property
    def steps(self) -> int:
        return 1 + self.decodes

    @property
    def words(self) -> str:
        bucket = max((*self.of_prefill.rows, *self.of_decode.rows), default=0)
        padded = f"padded to {bucket} rows" if bucket else "unpadded"
        return f"a prompt of {self.size} tokens and {self.decodes} decodes, {padded},"


class Warmed(msgspec.Struct, frozen=True):
    """An engine is warm: what steps took, and that its device's allocator takes nothing new for them."""

    steps: tuple[MeasuredStep, ...]
    settled: Settled


def warm_up(
    engine: LlmEngine,
    buckets: Buckets | None = None,
    decodes_max: int = 1,
    tokens_max: int = _TOKENS,
    passes_max: int = PASSES_MAX,
) -> Warmed:
    """Prefill one sequence, decode one token, forget it: unpadded, and in every bucket, the largest first. Then do so
    with prompts of two lengths, padded as requests will be, and return what each of these steps took.

    Decodes are padded to the buckets that `decodes_max` of them can have; a step holds at most `tokens_max` tokens.
    Steps are numbered below 0, and so are sequences, which no machine uses. All of it is repeated, up to `passes_max`
    times, until the device's allocator takes nothing new, and the last pass is the one that is told. Raises EngineError
    when it always takes more.
    """
    padded = buckets or Buckets()
    rounds = list(_rounds(padded, decodes_max))
    firsts = len(rounds)
    rounds += [_Round(min(size, tokens_max), padded, padded, _DECODES_MEASURED) for size in (_TOKENS_MEASURED, _TOKENS)]
    passes = 1 + passes_max
    step, seq = -passes * sum(one.steps for one in rounds) - 1, -passes * len(rounds)
    gone: tuple[int, ...] = ()
    measured: list[MeasuredStep] = []

    def over(mark: Mark) -> None:
        nonlocal step, seq, gone
        measured.clear()
        for number, one in enumerate(rounds):
            took = _run(engine, seq, one, step, gone)
            step, seq, gone = step + len(took), seq + 1, (seq,)
            if number >= firsts:
                measured.extend(took)
            mark(one.words)

    over(lambda _part: None)
    settled = settle(engine, over, passes_max)
    engine.run(StepPlan(step, step - 1, "dummy", leave=gone))
    return Warmed(tuple(measured), settled)


def _run(engine: LlmEngine, seq: int, one: _Round, step: int, gone: tuple[int, ...]) -> list[MeasuredStep]:
    """Prefill and decode one sequence, from step number `step` on; those in `gone` leave before."""
    chunk, decodes = _prefill(engine, seq, one)
    prefill = StepPlan(
        step,
        step - 1,
        "prefill",
        leave=gone,
        new=(NewSequence(seq, RequestId("req-warm-up"), (0,) * chunk.count, (), _SAMPLING),),
        chunks=(chunk,),
        prefill_tokens=chunk.count,
    )
    done = engine.run(shaped(prefill, one.of_prefill))
    shape = StepShape(0, 0, chunk.count, pairs(0, chunk.count), 1, chunk.count)
    measured = [MeasuredStep(shape, done.timing.done_ns - done.timing.started_ns)]
    join: tuple[Join, ...] = (Join(seq, token=done.tokens[0]),)
    for number in range(1, decodes + 1):
        context = chunk.count + number
        decode = StepPlan(step + number, step + number - 1, "decode", join=join, decodes=1, kv_tokens=context)
        timing, join = engine.run(shaped(decode, one.of_decode)).timing, ()
        measured.append(MeasuredStep(StepShape(1, context), timing.done_ns - timing.started_ns))
    return measured


def _rounds(buckets: Buckets, decodes_max: int) -> Iterator[_Round]:
    plain = Buckets()
    yield _Round(_TOKENS, plain, plain)
    of_decodes = buckets.rows[: bisect_left(buckets.rows, decodes_max) + 1]
    for size in reversed(buckets.rows):
        only = Buckets((size,), buckets.graph_mode)
        yield _Round(min(size, _TOKENS), only, only if size in of_decodes else plain)


def _prefill(engine: LlmEngine, seq: int, one: _Round) -> tuple[Chunk, int]:
    """The prompt, in blocks for all of the sequence, and as many decodes as there is room for: one at least."""
    limits = engine.limits
    room = min(limits.max_model_len, (limits.kv_blocks - 1) * limits.block_size) - 1
    decodes = max(1, min(one.decodes, room - 1))
    tokens = min(one.size, room - decodes)
    blocks = -(-(tokens + decodes + 1) // limits.block_size)
    return Chunk(seq, 0, tokens, samples=True, table=tuple(range(blocks))), decodes
