"""A step model of three numbers, for scenarios that name no device: synthetic engines and queues with known answers."""

from typing import Annotated

import msgspec

from headway.core.units import NS_PER_US
from headway.cost.llm import StepShape

NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class LinearParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step takes base + token x (prompt tokens and decodes) + kv x (context of the decodes)."""

    step_us: NotNegative = 5000.0  # of every step
    token_us: NotNegative = 20.0  # per token that it computes
    kv_ns: NotNegative = 10.0  # per token of context of its decodes
    host_us: NotNegative = 0.0  # host time between steps
    host_row_us: NotNegative = 0.0  # and per row of a step
    kv_bytes_per_token: Annotated[int, msgspec.Meta(ge=1)] = 131_072  # what a hand-off copies
    max_model_len: Annotated[int, msgspec.Meta(ge=2)] = 131_072


class LinearStep:
    """Implements `cost.step.StepModel`."""

    def __init__(self, params: LinearParams) -> None:
        self._params = params
        self._base, self._token = params.step_us * NS_PER_US, params.token_us * NS_PER_US

    def step_ns(self, shape: StepShape) -> float:
        """Device time of a step of this shape."""
        tokens = shape.decodes + shape.prefill_tokens
        return self._base + self._token * tokens + self._params.kv_ns * shape.kv_tokens

    def host_ns(self, rows: int) -> float:
        """Host time between steps."""
        return (self._params.host_us + self._params.host_row_us * rows) * NS_PER_US
