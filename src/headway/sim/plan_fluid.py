"""The fewest replicas that a load needs whatever a scheduler does: work against time (REFERENCE 2, fluid).

In a steady state steps last a period T and carry what arrives in T: with n replicas b = rate * output * T / n
decodes and rate * prompt * T / n prompt tokens. n is enough when a step of that shape takes T at most. A longer period
spreads what every step costs, so only the longest one counts: the TPOT that is promised, the sequences that KV or
`max_seqs` hold, the tokens of a step.
"""

import math
from typing import Final

import msgspec

from headway.core.units import NS_PER_S
from headway.cost.llm import StepShape, pairs
from headway.cost.step import StepModel

REPLICAS_MAX: Final = 1 << 14


class Flow(msgspec.Struct, frozen=True):
    """What arrives, per second and per request. `held`: mean tokens of context that a decoding sequence holds."""

    rate_per_s: float
    prompt: float  # tokens to compute
    query_pairs: float  # of them, with the keys before
    decodes: float
    held: float


class Room(msgspec.Struct, frozen=True):
    """What a step of one replica may carry. `period_ns` None: nobody was promised a TPOT."""

    kv_tokens: int
    max_seqs: int
    step_tokens: int
    period_ns: float | None = None


class Bound(msgspec.Struct, frozen=True):
    """At least so many replicas, and what keeps steps from being longer, and so cheaper per token."""

    replicas: int
    limit: str


def fewest(step: StepModel, flow: Flow, room: Room, slower: float = 1.0) -> Bound | None:
    """Return the bound; None: no number of replicas is enough. `slower`: steps take so many times the model's."""
    if flow.rate_per_s <= 0 or flow.prompt + flow.decodes <= 0:
        return Bound(1, "no rate is known")
    high = 1
    while not _is_enough(step, flow, room, slower, high):
        if high >= REPLICAS_MAX:
            return None
        high *= 2
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        if _is_enough(step, flow, room, slower, middle):
            high = middle
        else:
            low = middle
    return Bound(high, _period(flow, room, high)[1])


def _period(flow: Flow, room: Room, replicas: int) -> tuple[float, str]:
    """The longest period, in ns, and what limits it."""
    share = flow.rate_per_s / replicas / NS_PER_S
    limits = [(room.step_tokens / (share * (flow.prompt + flow.decodes)), "step_tokens")]
    if flow.decodes > 0:
        rows = share * flow.decodes  # per ns
        limits.append((room.max_seqs / rows, "max_seqs"))
        limits.append((room.kv_tokens / (rows * flow.held), "KV"))
        if room.period_ns is not None:
            limits.append((room.period_ns, "TPOT"))
    return min(limits)


def _is_enough(step: StepModel, flow: Flow, room: Room, slower: float, replicas: int) -> bool:
    period_ns, _ = _period(flow, room, replicas)
    arrived = flow.rate_per_s / replicas / NS_PER_S * period_ns
    decodes, prompt = math.floor(arrived * flow.decodes), math.floor(arrived * flow.prompt)
    shape = StepShape(
        decodes,
        math.floor(decodes * flow.held),
        prompt,
        math.floor(arrived * flow.query_pairs),
        chunks=math.floor(arrived) if prompt else 0,
        chunk_context=prompt,
    )
    if not decodes and not prompt:
        return True
    return step.step_ns(shape) * slower <= period_ns


def prompt_ns(step: StepModel, tokens: int, chunk: int) -> float:
    """Least time to the first token of a prompt that is alone on a replica."""
    total, start = 0.0, 0
    while start < tokens:
        count = min(chunk, tokens - start)
        total += step.step_ns(StepShape(0, 0, count, pairs(start, count), chunks=1, chunk_context=start + count))
        start += count
    return total


def balance(prefill_ns: float, decode_ns: float, batch: float, output: float) -> float:
    """Best N_p / N_d of two pools: E[t_pf] * b / (E[o] * t(b)) (REFERENCE 2)."""
    return prefill_ns * batch / (output * decode_ns)
