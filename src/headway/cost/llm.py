"""Belief about the time of one LLM step: a linear model whose coefficients are learned while serving.

step_ns = base + row*decodes + kv*(context of decodes) + token*(prefill tokens) + pair*(query-key pairs of prefill)

With `mode = "roofline"` the memory part (base, kv) and the compute part (row, token, pair) overlap: the larger counts.
A policy reads it, the machine that owns it feeds it with what steps took; it never sees a simulator's truth.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from headway.core.reports import StepCoefficients
from headway.core.units import NS_PER_S, Ns

NotNegative = Annotated[float, msgspec.Meta(ge=0)]

_FEATURES = 5
_PRIOR_SPREAD = 1000.0  # the prior may be off by three times its size while single steps scatter by a tenth of it


class StepShape(msgspec.Struct, frozen=True, gc=False):
    """What decides the time of a step."""

    decodes: int = 0
    kv_tokens: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0  # sum over chunks of count * start + count * (count + 1) / 2
    chunks: int = 0
    chunk_context: int = 0  # sum over chunks of start + count: prompt KV that the step reads or writes


class MeasuredStep(msgspec.Struct, frozen=True):
    """One step, and its device time."""

    shape: StepShape
    took_ns: Ns


def pairs(start: int, count: int) -> int:
    """Query-key pairs of `count` prompt tokens after `start` tokens of history."""
    return count * start + count * (count + 1) // 2


class StepCostParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an engine step is believed to take, to begin with, and how fast that is learned."""

    base_ns: NotNegative = 5_000_000.0  # of every step
    row_ns: NotNegative = 50_000.0  # per decode
    kv_ns: NotNegative = 30.0  # per token of context of the decodes
    token_ns: NotNegative = 100_000.0  # per prompt token
    pair_ns: NotNegative = 10.0  # per query-key pair of prompts
    mode: Literal["linear", "roofline"] = "linear"  # roofline: the larger of base + kv and row + token + pair counts
    learn: bool = True  # fit these to the measured steps
    memory_steps: Annotated[int, msgspec.Meta(ge=2)] = 200  # after so many an observation weighs a third
    swap_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] = 4e9  # between device and host memory
    kv_bytes_per_block: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0: as many as the model needs


def step_ns(cost: StepCoefficients, shape: StepShape) -> Ns:
    """Device time of a step by what a replica told; a `StepCost` with these coefficients says the same."""
    memory = cost.base_ns + cost.kv_ns * shape.kv_tokens
    compute = cost.row_ns * shape.decodes + cost.token_ns * shape.prefill_tokens + cost.pair_ns * shape.prefill_pairs
    return int(max(memory, compute) if cost.is_roofline else memory + compute)


def roofline(
    *,
    weight_bytes: float,
    parameters: float,
    kv_bytes_per_token: float,
    flops: float,
    bytes_per_s: float,
    overhead_ns: float = 0.0,
) -> StepCostParams:
    """Return where to start when only the device is known: weights and KV are read once, two flops per parameter."""
    return StepCostParams(
        base_ns=weight_bytes / bytes_per_s * NS_PER_S + overhead_ns,
        row_ns=2 * parameters / flops * NS_PER_S,
        kv_ns=kv_bytes_per_token / bytes_per_s * NS_PER_S,
        token_ns=2 * parameters / flops * NS_PER_S,
        pair_ns=0.0,
        mode="roofline",
    )


def _dot(a: list[float], b: list[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4]


class StepCost:
    """The belief of one replica. Deterministic: plain floats, no clock."""

    def __init__(self, params: StepCostParams) -> None:
        self.params = params
        prior = (params.base_ns, params.row_ns, params.kv_ns, params.token_ns, params.pair_ns)
        # Features are scaled by the prior, so all weights start at 1 and one covariance fits all.
        self._unit = [value if value > 0 else 1.0 for value in prior]
        self._weight = [1.0 if value > 0 else 0.0 for value in prior]
        self._spread = [[_PRIOR_SPREAD if i == j else 0.0 for j in range(_FEATURES)] for i in range(_FEATURES)]
        self._keep = 1.0 - 1.0 / params.memory_steps
        self._fix()
        self.observed = 0

    def _fix(self) -> None:
        """Coefficients in ns; negative ones would make more work look cheaper, so they count as zero."""
        values = [max(w, 0.0) * u for w, u in zip(self._weight, self._unit, strict=True)]
        self._base, self._row, self._kv, self._token, self._pair = values

    @property
    def coefficients(self) -> StepCoefficients:
        """What is believed now, for a report."""
        is_roofline = self.params.mode == "roofline"
        return StepCoefficients(self._base, self._row, self._kv, self._token, self._pair, is_roofline)

    def step_ns(self, decodes: int, kv_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0) -> Ns:
        """Predicted device time of a step."""
        memory = self._base + self._kv * kv_tokens
        compute = self._row * decodes + self._token * prefill_tokens + self._pair * prefill_pairs
        if self.params.mode == "roofline":
            return int(max(memory, compute))
        return int(memory + compute)

    def largest_chunk(self, base: StepShape, start: int, limit_ns: Ns, room: int) -> int:
        """Return the most prompt tokens (0..room) after `start` that keep `base` plus them within `limit_ns`."""
        low, high = 0, room
        while low < high:
            middle = (low + high + 1) // 2
            took = self.step_ns(
                base.decodes,
                base.kv_tokens,
                base.prefill_tokens + middle,
                base.prefill_pairs + pairs(start, middle),
            )
            if took <= limit_ns:
                low = middle
            else:
                high = middle - 1
        return low

    def prefill_ns(self, start: int, count: int) -> Ns:
        """Marginal time to prefill `count` tokens after `start` inside steps that run anyway."""
        return int(self._token * count + self._pair * pairs(start, count))

    def recompute_ns(self, tokens: int) -> Ns:
        """Time to compute again what a preemption of `tokens` tokens throws away."""
        return self.prefill_ns(0, tokens)

    def swap_ns(self, blocks: int) -> Ns:
        """Time to copy `blocks` out and back in."""
        return int(2 * blocks * self.params.kv_bytes_per_block / self.params.swap_bytes_per_s * NS_PER_S)

    def _active(self, x: list[float]) -> list[float]:
        """Keep the part that counts. A step whose prompts compute longer than the weights are read says nothing of the
        weights: fitted to all parts, a first prompt makes an empty batch look free, and routers send everything there.
        """
        w = self._weight
        if x[0] * w[0] + x[2] * w[2] >= x[1] * w[1] + x[3] * w[3] + x[4] * w[4]:
            return [x[0], 0.0, x[2], 0.0, 0.0]
        return [0.0, x[1], 0.0, x[3], x[4]]

    def begin(self, steps: Sequence[MeasuredStep]) -> None:
        """Take what a warm-up has measured."""
        for step in steps:
            self.observe(step.shape, step.took_ns)

    def observe(self, shape: StepShape, elapsed_ns: Ns) -> None:
        """Fold in one measured step: recursive least squares with forgetting (Haykin, Adaptive Filter Theory)."""
        if not self.params.learn or elapsed_ns <= 0:
            return
        self.observed += 1
        weight, unit, spread = self._weight, self._unit, self._spread
        features = (1.0, shape.decodes, shape.kv_tokens, shape.prefill_tokens, shape.prefill_pairs)
        x = [value * scale for value, scale in zip(features, unit, strict=True)]
        if self.params.mode == "roofline":
            x = self._active(x)
        predicted = max(_dot(x, weight), 1.0)
        x = [value / predicted for value in x]  # relative errors: a long step must not drown the short ones
        px = [_dot(row, x) for row in spread]
        down = self._keep + _dot(x, px)
        gain = [value / down for value in px]
        error = elapsed_ns / predicted - _dot(x, weight)
        self._weight = [w + g * error for w, g in zip(weight, gain, strict=True)]
        # Without news in a direction, forgetting would blow its spread up; it stops at the prior's size.
        trace = spread[0][0] + spread[1][1] + spread[2][2] + spread[3][3] + spread[4][4]
        grow = 1.0 / self._keep if trace < _PRIOR_SPREAD * _FEATURES else 1.0
        a, b, c, d, e = px
        self._spread = [
            [
                (r[0] - g * a) * grow,
                (r[1] - g * b) * grow,
                (r[2] - g * c) * grow,
                (r[3] - g * d) * grow,
                (r[4] - g * e) * grow,
            ]
            for r, g in zip(spread, gain, strict=True)
        ]
        self._fix()
