"""What clients see of one replica under a constant number of requests, from its step times alone: no queue, no policy.

For calibration against measurements at fixed concurrency, and for rules of thumb; a simulation knows better.
"""

import msgspec

from headway.cost.llm import StepShape, pairs
from headway.cost.step import StepModel


class ClosedLoop(msgspec.Struct, frozen=True):
    """`concurrency` requests at a time, each of `prompt` tokens and `output` tokens; one starts when one ends."""

    prompt: int
    output: int
    concurrency: int


def tpot_ns(model: StepModel, load: ClosedLoop) -> float:
    """Mean time per output token.

    Of the `output` steps that a request lives through, `concurrency` also prefill somebody's prompt, whole.
    """
    batch, prompt = load.concurrency, load.prompt
    context = prompt + load.output // 2
    alone = model.step_ns(StepShape(batch, batch * context)) + model.host_ns(batch)
    others = batch - 1
    mixed = StepShape(others, others * context, prompt, pairs(0, prompt), 1, prompt)
    return alone + batch / load.output * (model.step_ns(mixed) + model.host_ns(batch) - alone)


def prefill_ns(model: StepModel, tokens: int, start: int = 0) -> float:
    """A prompt computed alone, `start` of its tokens cached before."""
    shape = StepShape(0, 0, tokens, pairs(start, tokens), 1, start + tokens)
    return model.step_ns(shape) + model.host_ns(1)
